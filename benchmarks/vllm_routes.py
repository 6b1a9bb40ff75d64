"""Routes inside vLLM: what they cost where they are off, and what they bring to mixed traffic.

    PYTHONPATH=src .venv-vllm/bin/python -m benchmarks.vllm_routes --model FOLDER [--draft FOLDER]

  off    8 streams: vLLM as it comes, without speculation, against ours with every route off; two engines that
         take turns, a pause between them. With a draft model also ours without `RouteWorker`, which leaves
         vLLM's one draft pass in
  mixed  one interactive stream beside 8 of a batch route, in one engine whose routes change between rounds:
         speculation off for both, on for both, on for the interactive route alone. Inter-token latency of the
         interactive stream (seconds from one delivery to the next, by their tokens), tokens per second of the
         batch route, and drafts by route

Without `--draft` drafts come from look-ups in the text (n-grams). On the CPU build set
`VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=0-1`, and use `--dtype float32 --eager`; on GPUs leave all
of it out. What stands behind `--` are vLLM's engine arguments, as `key=value`. Folders for the presets:
`python -m benchmarks.as_safetensors`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.config.routes import RouteSettings
from paceline.vllm.bridge import Bridge
from paceline.vllm.engine_file import EngineFile, read_engine
from paceline.vllm.routes_file import RouteEntry, RoutesFile, write_routes

PROMPTS = Path(__file__).parent / "routes.jsonl"
OFF = RouteSettings(speculation="off")
INTERACTIVE, BATCH = "interactive", "batch"
SPINS_S = 1.5
"""vLLM's workers look for work without a rest for a second after their last, and take others' CPU by it."""


class Delivery(NamedTuple):
    """New tokens of one stream."""

    at: float
    stream: str
    num_tokens: int


class Vllm:
    """One engine of vLLM, its core in a process of its own.

    Args:
        args: model and flags.
        has_routes: whether with our scheduler; without, vLLM as it comes, and no speculation.
        has_worker: whether with `RouteWorker`.
    """

    def __init__(self, args: argparse.Namespace, *, has_routes: bool, has_worker: bool = True) -> None:
        from vllm import LLM

        self._folder = tempfile.TemporaryDirectory(prefix="paceline-bench-")
        self.bridge = Bridge(Path(self._folder.name))
        self._version = self._num_asked = 0
        flags: dict[str, Any] = dict(args.flags)
        if has_routes:
            self.put(OFF, OFF)
            flags["scheduler_cls"] = "paceline.vllm.RouteScheduler"
            flags["additional_config"] = {"paceline": {"bridge": self._folder.name}}
            flags["speculative_config"] = speculation(args)
            if has_worker:
                flags["worker_cls"] = "paceline.vllm.RouteWorker"
        self._llm = LLM(
            args.model, dtype=args.dtype, enforce_eager=args.eager, max_model_len=args.context, seed=0,
            max_num_seqs=2 * args.streams, enable_prefix_caching=False, **flags,
        )  # fmt: skip
        self._engine = self._llm.llm_engine

    def put(self, interactive: RouteSettings, batch: RouteSettings) -> None:
        """Put routes in force, and wait until the engine core says so."""
        self._version += 1
        entries = {INTERACTIVE: RouteEntry(interactive), BATCH: RouteEntry(batch)}
        write_routes(self.bridge.routes_path, RoutesFile(self._version, BATCH, entries))
        if self._version > 1:
            self.look(self._version)

    def look(self, version: int = 0) -> EngineFile:
        """Return what the engine core says of itself, once it goes by a version of routes and has no work."""
        while True:
            time.sleep(0.3)
            found = read_engine(self.bridge.engine_path(0))
            if found.routes_version >= version and not found.num_running + found.num_waiting:
                return found

    def stream(
        self, asked: Sequence[tuple[str, str]], num_tokens: int, until: str | None = None
    ) -> list[Delivery]:
        """Send requests all at once, and return all deliveries.

        Args:
            asked: (route, prompt) of each; streams are called by route and number.
            num_tokens: of each answer.
            until: the stream with whose end the others are given up; none waits for all.
        """
        from vllm import SamplingParams

        self._num_asked += 1
        names = []
        for number, (route, prompt) in enumerate(asked):
            names.append(f"{self._num_asked}:{route}:{number}")
            params = SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True, extra_args={"paceline_route": route}
            )
            self._engine.add_request(names[-1], prompt, params)
        return list(self._deliveries(names, until))

    def _deliveries(self, names: list[str], until: str | None) -> Iterator[Delivery]:
        lengths = dict.fromkeys(names, 0)
        while self._engine.has_unfinished_requests():
            outputs, now = self._engine.step(), time.perf_counter()
            for output in outputs:
                length = len(output.outputs[0].token_ids)
                name = output.request_id
                if length > lengths[name]:
                    yield Delivery(now, name.partition(":")[2], length - lengths[name])
                    lengths[name] = length
                if output.finished and name.partition(":")[2] == until:
                    self._engine.abort_request(names)

    def close(self) -> None:
        """Stop the engine core."""
        self._engine.engine_core.shutdown()
        self._folder.cleanup()


def speculation(args: argparse.Namespace) -> dict[str, Any]:
    """Return vLLM's `speculative_config`."""
    if args.draft:
        return {"method": "draft_model", "model": args.draft, "num_speculative_tokens": args.draft_length}
    return {
        "method": "ngram", "num_speculative_tokens": args.draft_length, "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }  # fmt: skip


def prompts(num: int, num_chars: int) -> list[str]:
    """Return so many prompts of text that answers take from, so that there is something to look up."""
    found = []
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["route"] in ("rag", "summarization"):
            found.append("\n".join(message["content"] for message in one["messages"])[:num_chars])
    return [found[number % len(found)] for number in range(num)]


def decode_speed(deliveries: Sequence[Delivery]) -> float:
    """Return tokens per second of all streams, after each one's first delivery."""
    first = {one.stream: one.at for one in reversed(deliveries)}
    begin, end = max(first.values()), max(one.at for one in deliveries)
    return sum(one.num_tokens for one in deliveries if one.at > begin) / (end - begin)


def latencies(deliveries: Sequence[Delivery], route: str) -> list[float]:
    """Return a route's times between tokens: from one delivery to the next, spread over its tokens."""
    found: list[float] = []
    last: dict[str, float] = {}
    for one in deliveries:
        if one.stream.startswith(route):
            if one.stream in last:
                found += [(one.at - last[one.stream]) / one.num_tokens] * one.num_tokens
            last[one.stream] = one.at
    return found


def measure_off(args: argparse.Namespace) -> dict[str, Any]:
    """Compare all routes off with vLLM as it comes."""
    engines = {"vllm": Vllm(args, has_routes=False), "routes off": Vllm(args, has_routes=True)}
    if args.draft:
        engines["routes off, no RouteWorker"] = Vllm(args, has_routes=True, has_worker=False)
    asked = [(BATCH, prompt) for prompt in prompts(args.streams, args.prompt_chars)]
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(args.rounds + 1):
        order = list(engines) if turn % 2 else list(engines)[::-1]
        for name in order:
            time.sleep(SPINS_S)  # until the engine before is at rest
            speed = decode_speed(engines[name].stream(asked, args.tokens))
            if turn:  # the first round warms up
                speeds[name].append(speed)
    for engine in engines.values():
        engine.close()
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, speeds["vllm"], strict=True))
        for name, found in speeds.items()
    }
    return {
        "tokens_per_second": {k: statistics.median(v) for k, v in speeds.items()},
        "ratios": ratios,
        "rounds": speeds,
    }


def measure_mixed(args: argparse.Namespace) -> dict[str, Any]:
    """Compare mixed traffic with speculation off, on, and on for the interactive route alone."""
    engine = Vllm(args, has_routes=True)
    is_auto = args.speculation == "auto"
    length = {"max_draft_length" if is_auto else "draft_length": args.draft_length}
    on = RouteSettings(speculation=args.speculation, **length)
    modes: Mapping[str, tuple[RouteSettings, RouteSettings]] = {
        "off": (OFF, OFF), "on": (on, on), "per route": (on, OFF),
    }  # fmt: skip
    texts = prompts(args.streams + 1, args.prompt_chars)
    asked = [(INTERACTIVE, texts[0]), *((BATCH, text) for text in texts[1:])]
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in modes}
    for turn in range(args.rounds + 1):
        for name in list(modes) if turn % 2 else list(modes)[::-1]:
            engine.put(*modes[name])
            found = engine.stream(asked, args.tokens, until=f"{INTERACTIVE}:0")
            if turn:
                rows[name].append(_mixed_row(found))
    after = engine.look()
    engine.close()
    drafts = {
        route: {drafter: [one.num_drafted, one.num_accepted] for drafter, one in counts.drafts.items()}
        for route, counts in after.counts.routes.items()
    }
    means = {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]}
        for name, found in rows.items()
    }
    return {"modes": means, "drafted_and_accepted": drafts, "costs": dict(after.costs), "rounds": rows}


def _mixed_row(found: Sequence[Delivery]) -> dict[str, float]:
    itl = sorted(latencies(found, INTERACTIVE))
    first = min(one.at for one in found)
    seconds = max(one.at for one in found) - first
    batch = sum(one.num_tokens for one in found if one.stream.startswith(BATCH) and one.at > first)
    return {
        "itl_mean_ms": 1000 * statistics.fmean(itl), "itl_p95_ms": 1000 * itl[int(0.95 * (len(itl) - 1))],
        "batch_tokens_per_second": batch / seconds,
    }  # fmt: skip


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--speculation", choices=("on", "auto"), default="on")
    parser.add_argument("--parts", default="off,mixed")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-chars", type=int, default=1200)
    parser.add_argument("--output", type=Path, help="file for the JSON; vLLM logs to stdout itself")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("flags", nargs="*", type=_flag)
    args = parser.parse_args()
    import vllm

    result: dict[str, Any] = {
        "vllm": vllm.__version__, "machine": f"{platform.machine()} {platform.processor()}",
        "command": " ".join(f"{k}={v}" for k, v in vars(args).items()),
    }  # fmt: skip
    for part in args.parts.split(","):
        result[part] = {"off": measure_off, "mixed": measure_mixed}[part](args)
    text = json.dumps(result, indent=1)
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")


def _flag(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


if __name__ == "__main__":
    main()
