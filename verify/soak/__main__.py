"""Traffic of every kind, thousands of requests, a fifth of whom leave at a random moment.

    python -m verify.soak                               # 2,000 requests to SmolLM2, which drafts for itself
    python -m verify.soak --first 500 --requests 500    # a piece of it
    python -m verify.soak --pair                        # 100 requests to the default pair

Every answer is compared with that of an engine which runs one request at a time and never speculates: tokens,
text, reason to end, usage, log-probabilities, errors. KV memory is too small for the traffic, so that some
give way to others; for a while the draft model's weights are gone. In the end no block may be in use, and
resident memory (garbage collected, nothing running, pages of model files left out) may be at most 2 % above
what it was after the first quarter. Any fault ends it with exit code 1. The same seed makes the same
requests, whose parameters follow from their numbers alone, so a soak can be run in pieces.
"""

from __future__ import annotations

import argparse
import sys

from verify.soak.run import ITSELF, PAIR, shortcomings, soak, with_requests

MOST_SHOWN = 20


def main() -> int:
    """Run a soak; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m verify.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pair", action="store_true", help="the default pair instead of SmolLM2")
    parser.add_argument("--requests", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    profile = with_requests(PAIR if arguments.pair else ITSELF, arguments.requests)
    report = soak(
        profile,
        first=arguments.first,
        seed=arguments.seed,
        say=lambda what: print(what, file=sys.stderr, flush=True),
    )
    print(*report.lines(), sep="\n")
    faults = [*report.faults, *shortcomings(report)]
    for fault in faults[:MOST_SHOWN]:
        print(f"FAULT {fault}")
    print("every answer is right" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
