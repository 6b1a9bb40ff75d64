"""What the engine adds to its models: overhead, what speculation costs when off, long prompts, shared ones.

    python -m benchmarks.under_load [--parts overhead,off,first,joining,prefix] [--rounds 5]

  overhead  step time less model and drafter time, one sequence and eight, greedy and sampled, off and on
  off       decoding at draft length 0 against an engine that has no draft model
  first     time to first token with speculation on against off
  joining   seven streams while a prompt of 2,000 tokens joins: p95 of the times between deliveries
  prefix    a second request that shares 500 tokens with the first: time to first token, and acceptance

What is compared takes turns, `--rounds` times; figures are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline.cli.input_file import read_requests
from paceline.llm import LLM
from paceline.records import GenerationResult, SamplingParams, SpeculationParams, StreamChunk

PROMPTS = Path(__file__).parent / "routes.jsonl"
OFF = SpeculationParams(enabled=False)
ON = SpeculationParams(drafter="model", draft_length=3)
GREEDY = SamplingParams(max_tokens=64)
LONG = SamplingParams(max_tokens=128, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=64, temperature=0.7, top_p=0.95, seed=1)


def prompts(llm: LLM, routes: Sequence[str]) -> list[list[int]]:
    """Return the token ids of all prompts of some routes."""
    found = (r for r in read_requests(PROMPTS) if r.route in routes)
    return [llm.encode_chat(r.messages) for r in found if r.messages is not None]


def until_done(llm: LLM) -> Iterator[tuple[float, StreamChunk]]:
    """Yield chunks with the time at which they came."""
    for chunk in llm.run():
        yield time.perf_counter(), chunk


def first_token_s(
    llm: LLM, token_ids: Sequence[int], params: SamplingParams, speculation: SpeculationParams
) -> tuple[float, GenerationResult]:
    """Return the seconds to a request's first token, and its result."""
    begin, first = time.perf_counter(), None
    llm.submit(token_ids, params, speculation=speculation)
    for now, chunk in until_done(llm):
        if first is None and chunk.token_ids:
            first = now - begin
        if chunk.result is not None:
            result = chunk.result
    assert first is not None
    return first, result


def decoding_rate(llm: LLM, token_ids: Sequence[int]) -> float:
    """Return tokens per second behind the first, plainly."""
    result = llm.generate([token_ids], GREEDY, speculation=OFF)[0]
    assert result.timing.tokens_per_second is not None
    return result.timing.tokens_per_second


def overhead(llm: LLM, rounds: int) -> None:
    """Print the share of steps that neither the target nor the drafter took."""
    all_prompts = prompts(llm, ("chat", "code"))
    engine = llm.loaded.engine
    for count in (1, 8):
        for kind, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
            for mode, speculation in (("off", OFF), ("on", ON)):
                shares = []
                for turn in range(rounds):
                    engine.clear_prefix_cache()
                    before = engine.totals.copy()
                    first = turn * count % len(all_prompts)
                    llm.generate(all_prompts[first : first + count], params, speculation=speculation)
                    spent = engine.totals - before
                    shares.append(spent.overhead_s / spent.step_s)
                print(f"overhead\t{count}\t{kind}\t{mode}\t{statistics.median(shares):.2%}", flush=True)


def off(rounds: int, target: str, draft: str) -> None:
    """Print what decoding at draft length 0 loses to an engine without a draft model.

    Two of each are loaded by turns: the same weights elsewhere in memory are read at another speed, some
    percent higher or lower.
    """
    engines = [LLM(target), LLM(target, draft), LLM(target), LLM(target, draft)]
    rates: list[list[float]] = [[] for _ in engines]
    for token_ids in prompts(engines[0], ("chat",))[:rounds]:
        for turn in (*range(4), *reversed(range(4))):
            rates[turn].append(decoding_rate(engines[turn], token_ids))
    first, second, third, fourth = (statistics.median(found) for found in rates)
    held = max(llm.loaded.engine.kv_stats().num_held_by_drafts for llm in engines)
    print(
        f"off\tspeed, beside no draft model\t{(second + fourth) / (first + third):.4f}\t"
        f"two alike\t{third / first:.4f}\tdraft blocks\t{held}",
        flush=True,
    )


def first(llm: LLM, rounds: int) -> None:
    """Print the ratio of times to first token, on to off."""
    short = SamplingParams(max_tokens=8)
    ratios = []
    for turn, token_ids in enumerate(prompts(llm, ("chat", "rag", "summarization"))[: 3 * rounds]):
        seconds = {}
        for speculation in (ON, OFF) if turn % 2 else (OFF, ON):
            llm.loaded.engine.clear_prefix_cache()
            seconds[speculation.enabled], _ = first_token_s(llm, token_ids, short, speculation)
        ratios.append(seconds[True] / seconds[False])
    print(f"first\ttime to first token, on / off\t{statistics.median(ratios):.3f}", flush=True)


def joining(llm: LLM, rounds: int, speculation: SpeculationParams) -> None:
    """Print what seven streams feel of a long prompt."""
    code = prompts(llm, ("code",))
    text = [token for ids in prompts(llm, ("rag", "summarization")) for token in ids]
    ratios, before_ms, during_ms = [], [], []
    for turn in range(rounds):
        llm.loaded.engine.clear_prefix_cache()
        streams = {
            llm.submit(code[i], SamplingParams(max_tokens=160, ignore_eos=True), speculation=speculation)
            for i in range(7)
        }
        last: dict[str, float] = {}
        gaps: dict[bool, list[float]] = {False: [], True: []}
        num_first = 0
        long_id: str | None = None
        is_prefilling = False
        for now, chunk in until_done(llm):
            if chunk.request_id == long_id and chunk.token_ids:
                is_prefilling = False
                for request_id in streams:
                    llm.loaded.engine.abort(request_id)
            if chunk.request_id not in streams or not chunk.token_ids:
                continue
            if chunk.request_id in last and (is_prefilling or long_id is None):
                gaps[is_prefilling].append(now - last[chunk.request_id])
            last[chunk.request_id] = now
            num_first += 1
            if long_id is None and len(last) == 7 and len(gaps[False]) > 7 * 20:
                begin = turn * 500
                long_id = llm.submit(
                    text[begin : begin + 2000], SamplingParams(max_tokens=1), speculation=OFF
                )
                is_prefilling = True
                last.clear()
        p95 = {kind: statistics.quantiles(found, n=20)[-1] for kind, found in gaps.items()}
        ratios.append(p95[True] / p95[False])
        before_ms.append(1e3 * p95[False])
        during_ms.append(1e3 * p95[True])
    print(
        f"joining\tITL p95 during / before\t{statistics.median(ratios):.2f}\t"
        f"{statistics.median(during_ms):.0f} ms\t{statistics.median(before_ms):.0f} ms\t"
        f"{'on' if speculation.enabled else 'off'}",
        flush=True,
    )


def prefix(llm: LLM, rounds: int) -> None:
    """Print what a shared beginning saves, and whether drafts are as good behind it."""
    text = [token for ids in prompts(llm, ("summarization",)) for token in ids]
    questions = prompts(llm, ("chat",))
    ratios, rates = [], {"first": [0, 0], "found": [0, 0], "alone": [0, 0]}
    for turn in range(rounds):
        llm.loaded.engine.clear_prefix_cache()
        shared = text[turn * 500 : turn * 500 + 500]
        seconds = {}
        for name in rates:  # "alone" is the second request again, with nothing to find
            if name == "alone":
                llm.loaded.engine.clear_prefix_cache()
            token_ids = [*shared, *questions[2 * turn + (name != "first")][:40]]
            seconds[name], result = first_token_s(llm, token_ids, LONG, ON)
            rates[name][0] += result.speculation.num_accepted
            rates[name][1] += result.speculation.num_drafted
        ratios.append(seconds["found"] / seconds["first"])
    found, alone = (accepted / drafted for accepted, drafted in (rates["found"], rates["alone"]))
    print(
        f"prefix\ttime to first token, second / first\t{statistics.median(ratios):.3f}\t"
        f"its acceptance\t{found:.3f}\twith nothing to find\t{alone:.3f}",
        flush=True,
    )


def main() -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--parts", default="overhead,off,first,joining,prefix")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    llm = LLM(arguments.target, arguments.draft)
    for name in ("warm", "up"):
        llm.generate([name], SamplingParams(max_tokens=8), speculation=ON)
    parts: dict[str, Callable[[], None]] = {
        "overhead": lambda: overhead(llm, arguments.rounds),
        "off": lambda: off(arguments.rounds, arguments.target, arguments.draft),
        "first": lambda: first(llm, arguments.rounds),
        "joining": lambda: (joining(llm, arguments.rounds, OFF), joining(llm, arguments.rounds, ON))[0],
        "prefix": lambda: prefix(llm, arguments.rounds),
    }
    for name in arguments.parts.split(","):
        parts[name]()


if __name__ == "__main__":
    main()
