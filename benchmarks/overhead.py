"""What the engine itself costs: the share of a decoding step that neither the target nor a drafter takes.

    python -m benchmarks.overhead --target qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct

Sequences that never end decode side by side. Steps in which a prompt is computed are left out: they are long
and would hide the rest. Cells take turns round by round, so that a machine that slows down slows all of them;
the share is that of all counted steps together. `--profile` shows where the time of Python code goes.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
from collections.abc import Sequence

from paceline.cli.output import print_table
from paceline.engine.totals import StepTotals
from paceline.llm import LLM
from paceline.records import SamplingParams, SpeculationParams

PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):",
    "The capital of France is",
    "import numpy as np\n\ndef softmax(x):",
    "Once upon a time there was",
    "def quicksort(items):",
    "To bake bread you need",
    "SELECT name FROM users WHERE",
)
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "0.7, top-p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "1.0": {"temperature": 1.0},
}


class Cell:
    """So many sequences in one mode, which go on from round to round."""

    def __init__(self, llm: LLM, num_sequences: int, sampling: str, draft_length: int) -> None:
        self.llm, self.num_sequences, self.sampling, self.draft_length = (
            llm, num_sequences, sampling, draft_length,
        )  # fmt: skip
        self.totals = StepTotals()

    def round(self, num_steps: int, profile: cProfile.Profile | None) -> None:
        """Count `num_steps` steps of decoding."""
        engine = self.llm.loaded.engine
        speculation = SpeculationParams(
            enabled=self.draft_length > 0, drafter="model", draft_length=self.draft_length
        )
        request_ids = [
            self.llm.submit(
                self.llm.encode(PROMPTS[index % len(PROMPTS)]),
                SamplingParams(ignore_eos=True, seed=index, **SAMPLING[self.sampling]),
                speculation=speculation,
            )
            for index in range(self.num_sequences)
        ]
        for _ in range(4):  # prompts, and the first drafts behind them
            engine.step()
        before = engine.totals.copy()
        if profile is not None:
            profile.enable()
        for _ in range(num_steps):
            engine.step()
        if profile is not None:
            profile.disable()
        counted = engine.totals - before
        self.totals.num_steps += counted.num_steps
        self.totals.step_s += counted.step_s
        self.totals.draft_s += counted.draft_s
        self.totals.verify_s += counted.verify_s
        for request_id in request_ids:
            engine.abort(request_id, is_reported=False)

    def row(self) -> list[str]:
        """Return the cell's row of the table."""
        totals, steps = self.totals, self.totals.num_steps
        mode = f"on:{self.draft_length}" if self.draft_length else "off"
        times = (totals.step_s, totals.verify_s, totals.draft_s, totals.overhead_s)
        return [
            str(self.num_sequences), self.sampling, mode,
            *(f"{1e3 * seconds / steps:.2f}" for seconds in times),
            f"{totals.overhead_s / totals.step_s:.2%}",
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--sequences", default="1,8")
    parser.add_argument("--draft-lengths", default="0,3")
    parser.add_argument("--sampling", default="greedy;0.7, top-p 0.95", help="; between them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    sequences, draft_lengths = (
        [int(n) for n in text.split(",")] for text in (arguments.sequences, arguments.draft_lengths)
    )
    profile = cProfile.Profile() if arguments.profile else None
    with LLM(
        arguments.target,
        arguments.draft,
        draft_weights="int4",
        kv_memory="512MiB",
        max_num_seqs=max(sequences),
    ) as llm:
        kinds = itertools.product(sequences, arguments.sampling.split(";"), draft_lengths)
        cells = [Cell(llm, *kind) for kind in kinds]
        for _ in range(arguments.rounds):
            for cell in cells:
                cell.round(arguments.steps, profile)
    show(cells, profile)


def show(cells: Sequence[Cell], profile: cProfile.Profile | None) -> None:
    header = ["SEQUENCES", "SAMPLING", "MODE", "STEP MS", "TARGET", "DRAFTER", "REST", "OVERHEAD"]
    print_table(header, [cell.row() for cell in cells])
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
