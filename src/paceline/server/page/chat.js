// Asks one question twice, without and with drafts, and shows which tokens of the answer were drafted.
"use strict";

const WAITING = "…";
let stopping = null;

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function showPieces(element, pieces) {
  for (const piece of pieces) {
    if (!piece.is_draft) {
      element.append(piece.text);
      continue;
    }
    const mark = document.createElement("mark");
    mark.textContent = piece.text;
    element.append(mark);
  }
}

async function answer(place, speculation) {
  const text = document.getElementById(`${place}-text`);
  const note = document.getElementById(`${place}-note`);
  const route = document.getElementById("route").value;
  text.replaceChildren();
  note.textContent = WAITING;
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    signal: stopping.signal,
    headers: { ...bearer("api-key"), "Content-Type": "application/json", "X-Paceline-Route": route },
    body: JSON.stringify({
      model: document.body.dataset.model,
      messages: [{ role: "user", content: document.getElementById("message").value }],
      max_completion_tokens: Number(document.getElementById("max-tokens").value),
      temperature: Number(document.getElementById("temperature").value),
      seed: Number(document.getElementById("seed").value),
      stream: true,
      return_speculation: true,
      ...(speculation && { speculation }),
    }),
  });
  if (!response.ok) throw new Error(await reason(response));
  let firstAt = null;
  let whole = "";
  let numAfter = 0;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    const record = choice?.speculation;
    if (!record) continue;
    if (record.pieces) {
      if (firstAt === null) firstAt = performance.now();
      else numAfter += record.num_tokens;
      whole += choice.delta.content;
      showPieces(text, record.pieces);
      continue;
    }
    const seconds = (performance.now() - firstAt) / 1000;
    const rate = seconds > 0 ? `${(numAfter / seconds).toFixed(1)} tokens/s as seen here` : "one step";
    const drafts = record.num_drafted
      ? `, ${record.num_accepted} of ${record.num_drafted} drafts accepted, ${record.acceptance_length.toFixed(2)} tokens a step`
      : ", no drafts";
    note.textContent = rate + drafts + (record.fallback ? ` (${record.fallback})` : "");
  }
  return { whole, rate: numAfter / ((performance.now() - firstAt) / 1000) };
}

document.getElementById("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button[type=submit]");
  const verdict = document.getElementById("verdict");
  stopping = new AbortController();
  button.disabled = true;
  document.getElementById("stop").disabled = false;
  verdict.textContent = "";
  document.getElementById("on-text").replaceChildren();
  try {
    // One after the other, so that neither takes time from the other.
    const off = await answer("off", { enabled: false });
    const on = await answer("on", null);
    const same = off.whole === on.whole ? "The texts are the same." : "The texts differ.";
    const ratio = Number.isFinite(on.rate / off.rate) ? ` ${(on.rate / off.rate).toFixed(2)}x as fast.` : "";
    verdict.textContent = same + ratio;
  } catch (error) {
    verdict.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    for (const note of document.querySelectorAll("#off-note, #on-note")) {
      if (note.textContent === WAITING) note.textContent = "";
    }
  } finally {
    button.disabled = false;
    document.getElementById("stop").disabled = true;
  }
});

document.getElementById("stop").addEventListener("click", () => stopping?.abort());
