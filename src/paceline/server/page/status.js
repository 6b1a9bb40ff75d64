// Shows what /status says, once a second, and sends the switches of whoever has the admin token.
"use strict";

const byId = (id) => document.getElementById(id);
const figure = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => `${Math.round(100 * value)} %`;

// Kept in this tab alone, and gone with it.
for (const id of ["api-key", "admin-token"]) {
  byId(id).value = sessionStorage.getItem(id) || "";
  byId(id).addEventListener("change", () => sessionStorage.setItem(id, byId(id).value));
}
byId("keys").addEventListener("submit", (event) => event.preventDefault());

function bearer(...ids) {
  const key = ids.map((id) => byId(id).value).find((value) => value);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

let refusal = ""; // of the last switch; stays until the next one

function notice(text) {
  const shown = [refusal, text].filter(Boolean).join(" ");
  byId("notice").textContent = shown;
  byId("notice").hidden = !shown;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `status ${response.status}`;
  }
}

const cards = new Map();

function card(name) {
  if (!cards.has(name)) {
    const element = byId("route-card").content.firstElementChild.cloneNode(true);
    element.querySelector(".name").textContent = name;
    element.querySelector("fieldset").setAttribute("aria-label", `Speculation of route ${name}`);
    for (const radio of element.querySelectorAll("input[type=radio]")) {
      radio.name = `speculation-${name}`;
      radio.addEventListener("change", () => administrate("PATCH", name, "", { speculation: radio.value }));
    }
    element.querySelector(".reset").addEventListener("click", () => administrate("DELETE", name, "/overlay"));
    byId("routes").append(element);
    byId("route").append(new Option(name, name));
    cards.set(name, element);
  }
  return cards.get(name);
}

async function administrate(method, name, rest, body) {
  const response = await fetch(`/admin/routes/${encodeURIComponent(name)}${rest}`, {
    method,
    headers: { ...bearer("admin-token"), "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  refusal = response.ok ? "" : await reason(response);
  await refresh();
}

function showBars(element, shares) {
  const last = shares.reduce((found, share, length) => (share > 0.0005 ? length : found), 0);
  const most = Math.max(...shares, 0.001);
  const shown = shares.slice(0, Math.max(last, 4) + 1);
  element.replaceChildren(
    ...shown.map((share, length) => {
      const bar = document.createElement("span");
      bar.style.height = `${(85 * share) / most}%`;
      const label = document.createElement("i");
      label.textContent = length;
      bar.append(label);
      return bar;
    }),
  );
  const words = shown.map((share, length) => `${length}: ${percent(share)}`).join(", ");
  element.setAttribute("aria-label", `Draft lengths, ${words}`);
}

function showRoute(route, isDefault) {
  const element = card(route.name);
  const set = (name, text) => (element.querySelector(name).textContent = text);
  const report = route.report;
  set(".name", route.name + (isDefault ? " (default)" : ""));
  const state = element.querySelector(".state");
  state.textContent = report.reason ? `${report.state}: ${report.reason}` : report.state;
  state.dataset.state = report.state;
  set(".sentence", report.sentence);
  const speedup = report.speedup;
  set(".served", figure(speedup.served_tokens_per_second, 1));
  set(".plain", figure(speedup.plain_tokens_per_second, 1));
  const interval = speedup.low === null ? "" : ` (${figure(speedup.low)} to ${figure(speedup.high)})`;
  const note = report.note ? `, ${report.note}` : "";
  set(".speedup", speedup.estimate === null ? "–" : `${figure(speedup.estimate)}x${interval}${note}`);
  const known = report.acceptance.filter((one) => one.rate !== null);
  set(".acceptance", known.map((one) => `${one.source} ${percent(one.rate)}`).join(", ") || "–");
  set(".length", figure(route.acceptance_length));
  set(".answers-count", route.num_answers);
  showBars(element.querySelector(".bars"), report.draft_lengths);
  element.querySelector("fieldset").disabled = !byId("admin-token").value;
  for (const radio of element.querySelectorAll("input[type=radio]")) {
    radio.checked = radio.value === route.in_force.speculation;
  }
  const changed = Object.entries(route.overlay).map(([key, one]) => `${key}: ${one.value}, by ${one.by}`);
  set(".overlay", changed.length ? `Changed at run time: ${changed.join("; ")}` : "As the configuration has it");
  element.querySelector(".reset").disabled = !changed.length;
}

function showDecisions(decisions) {
  const latest = decisions.slice().reverse().map((one) => {
    const item = document.createElement("li");
    const at = document.createElement("time");
    at.dateTime = new Date(1000 * one.time).toISOString();
    at.textContent = new Date(1000 * one.time).toLocaleTimeString();
    const route = document.createElement("strong");
    route.textContent = ` ${one.route} `;
    item.append(at, route, `${one.before} → ${one.after}. ${one.sentence} (${one.by})`);
    return item;
  });
  byId("decisions").replaceChildren(...latest);
}

let shownDecision = null;

async function refresh() {
  const response = await fetch("/status", { headers: bearer("api-key", "admin-token") });
  if (!response.ok) return notice(await reason(response));
  const status = await response.json();
  notice("");
  const digests = Object.entries(status.models).map(([role, one]) => `${role} ${one.name} (${one.digest.slice(0, 8)})`);
  byId("model").textContent = digests.join(", ");
  const { num_running, num_waiting, kv } = status.engine;
  const used = kv.num_blocks ? percent(kv.num_used / kv.num_blocks) : "–";
  byId("engine").textContent = `${num_running} running, ${num_waiting} waiting, KV ${used} used`;
  document.body.dataset.model = status.model;
  for (const route of status.routes) showRoute(route, route.name === status.default_route);
  for (const [name, element] of cards) {
    if (status.routes.some((route) => route.name === name)) continue;
    element.remove();
    cards.delete(name);
    byId("route").querySelector(`option[value="${CSS.escape(name)}"]`).remove();
  }
  const newest = status.decisions.at(-1)?.time;
  if (newest !== shownDecision) showDecisions(status.decisions);
  shownDecision = newest;
}

async function follow() {
  try {
    if (!document.hidden) await refresh();
  } catch (error) {
    notice(`The server does not answer (${error.message}).`);
  }
  setTimeout(follow, 1000);
}

follow();
