"""What a step of a draft model costs, with its weights and its output layer held in several ways.

    python -m benchmarks.draft_step TARGET DRAFT [--context 512] [--rounds 10]

The target and all variants of the draft model are in memory together and take turns, one row behind `context`
positions each. Drawing a token from the logits is not in it.
"""

from __future__ import annotations

import argparse

from benchmarks.draft_acceptance import VARIANTS, load_variant

from paceline.kernels.native import native
from paceline.kernels.threads import num_threads
from paceline.measure.step_cost import StepTimer
from paceline.models.download import resolve
from paceline.models.load import load_model
from paceline.models.native_decoder import NativeDecoder


def main() -> None:
    """Print a line for the target and for each variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="preset or file")
    parser.add_argument("draft", help="preset or file")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="WEIGHTS/VOCABULARY")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    models = {"target": load_model(resolve(arguments.target))}
    models |= {variant: load_variant(arguments.draft, variant) for variant in arguments.variants}
    timers = {name: StepTimer(model, arguments.context, [1]) for name, model in models.items()}
    for _ in range(arguments.rounds):
        for timer in timers.values():
            timer.round(arguments.repeats)
    ms = {name: timer.costs().ms[1] for name, timer in timers.items()}
    print(
        f"# {native.isa() if native else 'reference'}, {num_threads()} threads, context {arguments.context}"
    )
    print("model", "ms", "of target", "MB of weights", sep="\t")
    for name, loaded in models.items():
        held = loaded.model.weight_bytes / 1e6 if isinstance(loaded.model, NativeDecoder) else float("nan")
        print(name, f"{ms[name]:.2f}", f"{ms[name] / ms['target']:.3f}", f"{held:.0f}", sep="\t")


if __name__ == "__main__":
    main()
