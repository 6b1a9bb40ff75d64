"""Tokens per second with speculation off and on, and of llama.cpp's server on the same file.

    python -m benchmarks.versus_llama_server --routes code,chat --limit 16 --draft-lengths 2,3,4,5,6
    python -m benchmarks.versus_llama_server --routes code --server PATH/llama-server
    python -m benchmarks.versus_llama_server --routes code --server PATH/llama-server --at-once 8

Every prompt is answered by each side in turn before the next prompt comes, so a machine that slows down
slows all sides. One stream: decoding speed, the tokens after the first by the time after the first. Several
at once: all tokens by the time from the first submission to the last answer, prompts included, on both sides.
The server gets the same token ids, and goes on past the end until it has as many tokens as our answer.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.cli.input_file import read_requests
from paceline.kernels.threads import num_threads
from paceline.llm import LLM
from paceline.models.download import resolve
from paceline.records import GenerationResult, SamplingParams, SpeculationParams

PROMPTS = Path(__file__).parent / "routes.jsonl"
WAIT_S = 120.0


class LlamaServer:
    """A running llama-server; answers are greedy."""

    def __init__(self, address: str) -> None:
        self._address = address

    def complete(self, token_ids: Sequence[int], max_tokens: int) -> dict[str, Any]:
        """Return its answer to a prompt, timings among it."""
        body = {
            "prompt": list(token_ids), "n_predict": max_tokens, "temperature": 0.0, "cache_prompt": False,
            "ignore_eos": True,
        }  # fmt: skip
        answer: dict[str, Any] = json.loads(self._request("/completion", json.dumps(body).encode()))
        return answer

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Return when it is ready."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self._request("/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
            else:
                return
        raise SystemExit("llama-server did not get ready")

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            self._address + path, data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            data: bytes = reply.read()
        return data


@contextmanager
def llama_server(program: Path, model: Path, num_slots: int, context: int) -> Iterator[LlamaServer]:
    """Start the server, and stop it in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--threads", str(num_threads()), "--ctx-size", str(context * num_slots), "-np", str(num_slots),
        "--n-gpu-layers", "0",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = LlamaServer(f"http://127.0.0.1:{port}")
        server.wait(process)
        yield server
    finally:
        process.terminate()
        process.wait()


def decoding_rate(result: GenerationResult) -> float | None:
    """Return tokens per second behind the first."""
    return result.timing.tokens_per_second


class Sides:
    """What is compared: our modes, by name, and perhaps the server."""

    def __init__(self, llm: LLM, params: SamplingParams, draft_lengths: Sequence[int], drafter: str) -> None:
        self._llm, self._params = llm, params
        self.modes = {"off": SpeculationParams(enabled=False)} | {
            f"k={k}": SpeculationParams(drafter=drafter, draft_length=k) for k in draft_lengths
        }

    def answer(self, mode: str, token_ids: Sequence[int]) -> GenerationResult:
        """Return one answer."""
        return self._llm.generate([token_ids], self._params, speculation=self.modes[mode])[0]

    def together(self, mode: str, prompts: Sequence[Sequence[int]]) -> tuple[list[GenerationResult], float]:
        """Return answers to prompts that run at once, and the seconds until the last."""
        begin = time.perf_counter()
        results = self._llm.generate(list(prompts), self._params, speculation=self.modes[mode])
        return results, time.perf_counter() - begin


def one_stream(
    sides: Sides, prompts: Sequence[list[int]], server: LlamaServer | None
) -> dict[str, dict[str, Any]]:
    """Answer prompts one by one, all sides in turn."""
    rates: dict[str, list[float]] = {}
    counts = {mode: [0, 0] for mode in sides.modes}
    same = dict.fromkeys(sides.modes, 0)
    seconds = dict.fromkeys(sides.modes, 0.0)
    tokens = dict.fromkeys(sides.modes, 0)
    for token_ids in prompts:
        base: GenerationResult | None = None
        for mode in sides.modes:
            result = sides.answer(mode, token_ids)
            base = base or result
            rate = decoding_rate(result)
            if rate is not None:
                rates.setdefault(mode, []).append(rate)
            seconds[mode] += result.timing.decode_s
            tokens[mode] += result.timing.num_decoded
            counts[mode][0] += result.speculation.num_accepted
            counts[mode][1] += result.speculation.num_drafted
            same[mode] += result.token_ids == base.token_ids
        if server is not None and base is not None:
            timings = server.complete(token_ids, base.usage.completion_tokens)["timings"]
            rates.setdefault("llama-server", []).append(timings["predicted_per_second"])
            seconds["llama-server"] = seconds.get("llama-server", 0.0) + timings["predicted_ms"] / 1e3
            tokens["llama-server"] = tokens.get("llama-server", 0) + timings["predicted_n"]
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = {}
    for mode, values in rates.items():
        accepted, drafted = counts.get(mode, (0, 0))
        rows[mode] = {
            "tokens_per_second": tokens[mode] / seconds[mode],
            "median_ratio": statistics.median(a / b for a, b in zip(values, rates["off"], strict=True)),
            "acceptance_rate": accepted / drafted if drafted else None,
            "num_identical": same.get(mode),
        }
    return rows


def at_once(
    sides: Sides, prompts: Sequence[list[int]], server: LlamaServer | None, size: int, max_tokens: int
) -> dict[str, dict[str, Any]]:
    """Answer prompts `size` at a time, all sides in turn."""
    rates: dict[str, list[float]] = {}
    same = dict.fromkeys(sides.modes, 0)
    for start in range(0, len(prompts) - size + 1, size):
        group = prompts[start : start + size]
        base: list[GenerationResult] = []
        for mode in sides.modes:
            results, seconds = sides.together(mode, group)
            base = base or results
            rates.setdefault(mode, []).append(sum(r.usage.completion_tokens for r in results) / seconds)
            same[mode] += sum(a.token_ids == b.token_ids for a, b in zip(base, results, strict=True))
        if server is not None:
            lengths = [result.usage.completion_tokens for result in base]
            begin = time.perf_counter()
            with ThreadPoolExecutor(size) as pool:
                answers = list(pool.map(server.complete, group, lengths))
            seconds = time.perf_counter() - begin
            rates.setdefault("llama-server", []).append(
                sum(answer["timings"]["predicted_n"] for answer in answers) / seconds
            )
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        mode: {
            "tokens_per_second": statistics.median(values),
            "median_ratio": statistics.median(a / b for a, b in zip(values, rates["off"], strict=True)),
            "acceptance_rate": None,
            "num_identical": same.get(mode),
        }
        for mode, values in rates.items()
    }


def show(route: str, num_prompts: int, rows: dict[str, dict[str, Any]]) -> None:
    """Print one route's table."""
    print(f"\n{route}, {num_prompts} prompts")
    print(f"{'':>14} {'tokens/s':>9} {'of off':>7} {'median ratio':>13} {'acceptance':>11} {'identical':>10}")
    base = rows["off"]["tokens_per_second"]
    for mode, row in rows.items():
        rate = "" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.3f}"
        same = "" if row["num_identical"] is None else f"{row['num_identical']}"
        print(
            f"{mode:>14} {row['tokens_per_second']:>9.2f} {row['tokens_per_second'] / base:>7.2f}"
            f" {row['median_ratio']:>13.2f} {rate:>11} {same:>10}",
            flush=True,
        )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--drafter", default="model")
    parser.add_argument("--draft-weights", default=None, choices=["file", "int4"])
    parser.add_argument("--routes", default="code,chat")
    parser.add_argument("--limit", type=int, default=16, help="prompts of a route")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--draft-lengths", default="4", help="numbers with commas between them, or nothing")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--server", type=Path, help="path of llama-server")
    parser.add_argument("--at-once", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    more = {} if options.draft_weights is None else {"draft_weights": options.draft_weights}
    context = 4096
    params = SamplingParams(
        temperature=options.temperature, top_p=options.top_p, seed=0, max_tokens=options.max_tokens
    )
    requests = list(read_requests(PROMPTS))
    lengths = [int(word) for word in options.draft_lengths.split(",") if word]
    draft = options.draft if lengths and options.drafter != "suffix" else None
    with LLM(options.target, draft, context_length=context, max_num_seqs=options.at_once, **more) as llm:
        sides = Sides(llm, params, lengths, options.drafter)
        for route in options.routes.split(","):
            prompts = [llm.encode_chat(r.messages or ()) for r in requests if r.route == route]
            prompts = prompts[: options.limit]
            sides.answer("off", prompts[0][:8])  # a first pass takes memory
            if options.server is None:
                rows = measure(sides, prompts, None, options)
            else:
                path = resolve(options.target)
                with llama_server(options.server, path, options.at_once, context) as server:
                    rows = measure(sides, prompts, server, options)
            show(route, len(prompts), rows)


def measure(
    sides: Sides, prompts: Sequence[list[int]], server: LlamaServer | None, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Measure one route."""
    if options.at_once == 1:
        return one_stream(sides, prompts, server)
    return at_once(sides, prompts, server, options.at_once, options.max_tokens)


if __name__ == "__main__":
    main()
