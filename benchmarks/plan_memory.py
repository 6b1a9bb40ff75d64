"""Memory that `paceline plan memory` predicts for the embedded engine, beside what the engine then holds.

    python benchmarks/plan_memory.py [--target NAME [--draft NAME]] [--sequences N] [--prompt N] [--output N]

One fresh process plans, from the files alone. Another loads the models and answers so many prompts of so many
random tokens at once; its resident memory (VmRSS) is read when the models are there and when all answers are.
Without --target it is done for the default pair and for SmolLM2 alone. Linux only.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace

from paceline.cli.plan_models import from_files, resident_bytes
from paceline.config.memory import available_memory
from paceline.planner.memory import MemoryDemand, plan_memory

MB = 1e6
KV_MEMORY = "1GB"
CASES = (("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"), ("smollm2-135m-instruct", None))


@dataclass(frozen=True)
class Case:
    target: str
    draft: str | None
    sequences: int
    prompt: int
    output: int
    draft_length: int = 4


def predict(case: Case) -> dict[str, float]:
    """Return predicted bytes: once loaded, and with all sequences at their end."""
    options = {
        "target": case.target, "draft": case.draft, "sequences": case.sequences, "k": case.draft_length,
        "context": case.prompt + case.output, "draft_weights": "auto", "draft_vocab": "auto",
        "memory_bytes": float(available_memory()),
    }  # fmt: skip
    models = from_files(options)
    demand = MemoryDemand(
        options["memory_bytes"], models.target.memory, models.draft.memory if models.draft else None,
        models.context, models.sequences, None, models.process_bytes,
    )  # fmt: skip
    plan = plan_memory(demand)
    loaded = models.process_bytes + plan.weight_bytes + plan.draft_bytes
    return {
        "loaded": loaded,
        "kv": plan.kv_bytes,
        "workspace": plan.workspace_bytes,
        "busy": plan.total_bytes,
    }


def measure(case: Case) -> dict[str, float]:
    """Load the models in this process, answer, and return its resident bytes at both points."""
    from paceline import LLM, SamplingParams

    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 40_000) for _ in range(case.prompt)] for _ in range(case.sequences)]
    with LLM(
        case.target, case.draft, kv_memory=KV_MEMORY, kernels="native", max_num_seqs=case.sequences,
        draft_length=case.draft_length, context_length=case.prompt + case.output,
    ) as llm:  # fmt: skip
        loaded = resident_bytes()
        answers = llm.generate(
            prompts, SamplingParams(temperature=0.0, max_tokens=case.output, ignore_eos=True)
        )
        busy = resident_bytes()
    lengths = {answer.usage.completion_tokens for answer in answers}
    assert lengths == {case.output}, f"answers of {lengths} tokens; KV is predicted for {case.output}"
    return {"loaded": loaded, "busy": busy}


def in_child(what: str, case: Case) -> dict[str, float]:
    """Run one side in a fresh interpreter, so that neither holds what the other imported."""
    command = [sys.executable, __file__, "--child", what, *arguments_of(case)]
    output: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    )
    return output


def arguments_of(case: Case) -> list[str]:
    names = ["--target", case.target, *(["--draft", case.draft] if case.draft else [])]
    sizes = {"--sequences": case.sequences, "--prompt": case.prompt, "--output": case.output}
    return [*names, *(part for name, value in sizes.items() for part in (name, str(value)))]


def compare(case: Case) -> dict[str, object]:
    predicted, measured = in_child("predict", case), in_child("measure", case)
    return {
        "target": case.target,
        "draft": case.draft,
        "predicted": predicted,
        "measured": measured,
        "predicted_over_measured": {name: predicted[name] / measured[name] for name in measured},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=480)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="one object a line, bytes")
    parser.add_argument("--child", choices=["predict", "measure"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = Case("", None, arguments.sequences, arguments.prompt, arguments.output)
    pairs = [(arguments.target, arguments.draft)] if arguments.target else CASES
    cases = [replace(sizes, target=target, draft=draft) for target, draft in pairs]
    if arguments.child:
        print(json.dumps((predict if arguments.child == "predict" else measure)(cases[0])))
        return
    for case in cases:
        found = compare(case)
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        shape = f"{case.sequences} x {case.prompt} + {case.output} tokens"
        print(f"{case.target}, draft {case.draft or '-'}, {shape}")
        predicted, measured = found["predicted"], found["measured"]
        assert isinstance(predicted, dict)
        assert isinstance(measured, dict)
        for name in ("loaded", "busy"):
            print(
                f"  {name:8} predicted {predicted[name] / MB:8.1f} MB  measured {measured[name] / MB:8.1f} MB"
                f"  {predicted[name] / measured[name]:.3f}"
            )
        print(f"  of it    KV {predicted['kv'] / MB:.1f} MB, workspace {predicted['workspace'] / MB:.1f} MB")


if __name__ == "__main__":
    main()
