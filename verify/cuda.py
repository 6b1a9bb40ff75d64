"""The proof on a GPU, and what speculation brings there: one script of at most eight minutes.

    python -m verify.cuda                              # SmolLM2, then the default pair
    python -m verify.cuda --pair TARGET,DRAFT --json   # other models: presets, files or folders

For each pair: rows of the target are computed alone, in chunks and beside others, and must be equal to the
bit; then a small matrix of `verify.lossless`; then tokens per second with speculation off and on, in turns.
Exit code 0 means that all of it ran and nothing differed, 1 that something differed or time ran out, 2 that
there is no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

from paceline.cli.comparison import ModeSummary
from paceline.cli.input_file import read_requests
from paceline.errors import PacelineError
from paceline.llm import LLM
from paceline.models.download import resolve
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.models.load import load_model, pick_device
from paceline.models.options import Kernels, LoadOptions
from paceline.records import SpeculationParams
from verify.lossless import OFF, PROMPTS, Cell, Prompt, answer, check, one_of_each_route, tokenise

DEFAULT_PAIRS = ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct,qwen2.5-coder-0.5b-instruct")
SECONDS = 450.0
TEMPERATURES, DRAFT_LENGTHS, BATCHES = (0.0, 0.8), (3, 5), (1, 8)
NUM_TURNS = 3
BLOCK_SIZE = 16
CUTS = ((), (1,), (16, 17, 33), (7, 40, 41, 42, 64))
"""Where the row check cuts its sequence; a tile of the reference has 16 rows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, and the draft model that goes with it, if any."""

    target: str
    draft: str | None

    @classmethod
    def parse(cls, text: str) -> Pair:
        """Return what TARGET or TARGET,DRAFT means."""
        target, _, draft = text.partition(",")
        return cls(target, draft or None)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What can propose for it."""
        return ("model", "suffix") if self.draft else ("suffix",)

    @property
    def num_cells(self) -> int:
        """Cells of its matrix."""
        return len(TEMPERATURES) * len(self.drafters) * len(DRAFT_LENGTHS) * len(BATCHES)


@dataclass(slots=True)
class Report:
    """What was found for one pair; seconds are wall-clock."""

    pair: Pair
    num_rows: int = 0
    num_rows_equal: int = 0
    cells: list[Cell] = field(default_factory=list)
    speeds: dict[str, float] = field(default_factory=dict)
    """Tokens per second, the median of the turns, by drafter and batch."""
    is_complete: bool = False

    @property
    def is_lossless(self) -> bool:
        """Whether nothing differed in what was run."""
        return self.num_rows == self.num_rows_equal and all(cell.is_lossless for cell in self.cells)


def rows_equal(model: CausalModel, num_tokens: int = 80) -> tuple[int, int]:
    """Compute a sequence in every cut of `CUTS`, alone and behind another one.

    Returns:
        How many rows of logits were compared, and how many of them were equal to the bit.
    """
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, min(model.vocab_size, 256), (num_tokens,), generator=generator).tolist()
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    expected: torch.Tensor | None = None
    num_rows = num_equal = 0
    for cuts, has_neighbour in itertools.product(CUTS, (False, True)):
        kv = model.allocate_kv(num_blocks + 1, BLOCK_SIZE)
        parts = []
        for start, end in itertools.pairwise((0, *cuts, num_tokens)):
            own = SequenceSlice(token_ids[start:end], start, range(num_blocks), end - start)
            other = SequenceSlice(token_ids[:5], 0, [num_blocks], 0)
            parts.append(model.forward([other, own] if has_neighbour else [own], kv))
        logits = torch.cat(parts)
        if expected is None:
            expected = logits
            continue
        num_rows += num_tokens
        num_equal += int((logits == expected).all(-1).sum())
    return num_rows, num_equal


def measure(
    llm: LLM, prompts: Sequence[Prompt], drafters: Sequence[str], num_tokens: int
) -> dict[str, float]:
    """Return tokens per second with speculation off and with each drafter, in turns, greedy, k = 4."""
    modes = {"off": OFF} | {name: SpeculationParams(drafter=name, draft_length=4) for name in drafters}
    speeds: dict[str, list[float]] = {}
    for _, batch, (name, speculation) in itertools.product(range(NUM_TURNS), BATCHES, modes.items()):
        results = answer(llm, prompts[:8], speculation, 0.0, num_tokens, batch)
        speed = ModeSummary.of(results).tokens_per_second
        if speed is not None:
            speeds.setdefault(f"{name}, {'alone' if batch == 1 else f'{batch} at once'}", []).append(speed)
    return {name: statistics.median(values) for name, values in speeds.items()}


def verify_pair(
    pair: Pair,
    device: str,
    is_time_left: Callable[[], bool],
    say: Callable[[str], None],
    *,
    num_tokens: int = 24,
    num_prompts: int = 8,
    max_prompt_tokens: int | None = None,
) -> Report:
    """Run everything for one pair, as far as time goes; say what is found as it is found."""
    report = Report(pair)
    model = load_model(resolve(pair.target), device, LoadOptions(Kernels.REFERENCE)).model
    report.num_rows, report.num_rows_equal = rows_equal(model)
    del model
    say(f"{pair.target}: {report.num_rows_equal} of {report.num_rows} rows equal, however cut and batched")
    with LLM(
        pair.target, pair.draft, device=device, kernels="reference", context_length=1024, max_num_seqs=8
    ) as llm:
        requests = one_of_each_route(read_requests(PROMPTS))[:num_prompts]
        prompts = tokenise(llm, requests, max_prompt_tokens)
        matrix = {"temperatures": TEMPERATURES, "draft_lengths": DRAFT_LENGTHS, "batches": BATCHES}
        for cell in check(llm, prompts, num_tokens=num_tokens, drafters=pair.drafters, **matrix):
            report.cells.append(cell)
            say(str(cell))
            if not is_time_left():
                return report
        report.speeds = measure(llm, prompts, pair.drafters, num_tokens)
    report.is_complete = True
    for name, speed in report.speeds.items():
        say(f"{speed:8.1f} tokens/s  {name}")
    return report


def run(pairs: Sequence[Pair], device: str, seconds: float, say: Callable[[str], None]) -> list[Report]:
    """Verify all pairs; each has an equal share of the time, and what those before it left."""
    begin = time.monotonic()
    reports = []
    for number, pair in enumerate(pairs, 1):
        deadline = begin + seconds * number / len(pairs)
        reports.append(verify_pair(pair, device, lambda end=deadline: time.monotonic() < end, say))
    return reports


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", action="append", metavar="TARGET[,DRAFT]", help="models; may be repeated")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all pairs together")
    parser.add_argument("--json", action="store_true", help="print one object at the end instead of lines")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; return the exit code."""
    arguments = _arguments(argv)
    try:
        device = pick_device("cuda")
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device)
    machine = f"{name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    say = (lambda line: print(line, file=sys.stderr)) if arguments.json else print
    say(machine)
    pairs = [Pair.parse(text) for text in arguments.pair or DEFAULT_PAIRS]
    reports = run(pairs, "cuda", arguments.seconds, say)
    if arguments.json:
        print(json.dumps({"machine": machine, "pairs": [asdict(report) for report in reports]}))
    for report in reports:
        missing = report.pair.num_cells - len(report.cells)
        late = f", out of time: {missing} cells and the speeds were not run" if not report.is_complete else ""
        say(f"{report.pair.target}: {'lossless' if report.is_lossless else 'DIFFERENT'}{late}")
    return 0 if all(report.is_lossless and report.is_complete for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
