"""A made-up report, as `build` makes them, to be changed by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.measure.journal import Journal
from paceline.measure.options import MeasureOptions
from paceline.measure.report.build import build

MODEL = {
    "name": "big", "digest": "d", "weight_bytes": 10**9, "num_parameters": 10**9, "flops_per_row": 2 * 10**9,
    "kv_values_per_token": 1000,
}  # fmt: skip
DRAFT = {**MODEL, "draft": None, "name": "folder/small", "weight_bytes": 10**8, "flops_per_row": 2 * 10**8,
         "kv_values_per_token": 250}  # fmt: skip


def options(folder: Path, **more: Any) -> MeasureOptions:
    traffic = folder / "traffic.jsonl"
    traffic.write_text("{}\n")
    fixed = {"target": "big", "drafts": {None: "folder/small"}, "traffic": traffic, "output": folder}
    return MeasureOptions(**{**fixed, "concurrency": (1, 8), **more})


def journal_of(
    folder: Path,
    asked: MeasureOptions,
    speeds: dict[str, dict[int, dict[str, float]]],
    matches: str = "+++-" * 8,
) -> Journal:
    """A journal whose runs take as long as settings' speedups say: route -> load -> setting -> speedup.

    Without any runs at a load the speedups there are forecasts.
    """
    journal = Journal(folder / "journal.jsonl", asked.what())
    journal.add(
        "setup",
        {
            "paceline_version": "0.0", "machine": "a machine", "engine": {"kernels": "avx2"}, "target": MODEL,
            "drafts": [DRAFT], "num_lines": 40, "left_out": {"with tools": 2},
            "in_traffic": {route: 20 + i for i, route in enumerate(speeds)}, "context_length": 1024,
        },
    )  # fmt: skip
    for route, loads in speeds.items():
        for name in (f"{route}{i}" for i in range(4)):
            answer = {"id": name, "route": route, "token_ids": [1] * 32, "finish_reason": "length"}
            journal.add("answer", {**answer, "num_prompt_tokens": 50, "limit": 64})
            read = {"drafter": "model", "request_id": name, "matches": matches, "confidences": [0.5] * 32}
            journal.add("reading", read)
            nothing = {key: [0] * 32 for key in ("proposed", "agreed", "match_lengths")}
            journal.add("reading", {"drafter": "suffix", "request_id": name, **nothing})
        journal.add("forecast", _forecast(route, loads))
        for n, settings in loads.items():
            for record in _runs(route, n, settings):
                journal.add("run", record)
    journal.add("spent", {"spent_s": 100.0})
    return journal


def _forecast(route: str, loads: dict[int, dict[str, float]]) -> dict[str, Any]:
    parts = []
    for n, settings in loads.items():
        fixed = {label.removeprefix("forecast "): x for label, x in settings.items() if "auto" not in label}
        step = {"plain_step_s": 0.1, "draft_s": 0.02, "verify_s": 0.11, "break_even_acceptance": 0.4}
        found = [
            {"setting": label, "tokens_per_second": 10 * n * x, "speedup": x, **step}
            for label, x in sorted(fixed.items(), key=lambda one: -one[1])
        ]
        parts.append({"concurrency": n, "forecasts": found})
    chosen = {
        n: list(dict.fromkeys([*(x.removeprefix("forecast ") for x in s), "auto"])) for n, s in loads.items()
    }
    crossing = [[n, 10.0 * n, 15.0 * n - n * n / 2, "model:4"] for n in (1, 2, 4, 8, 16, 32)]
    return {"route": route, "draft": None, "loads": parts, "chosen": chosen, "crossing": crossing}


def _runs(route: str, n: int, settings: dict[str, float]) -> list[dict[str, Any]]:
    timed = {label: x for label, x in settings.items() if not label.startswith("forecast ")}
    if not timed:
        return []
    return [
        {
            "route": route, "concurrency": n, "draft": None, "turn": turn, "setting": label,
            "num_outputs": n, "num_identical": n, "num_tokens": 32 * n,
            "wall_s": (3.2 + 0.01 * turn) / x, "ttft_s": [0.2] * n, "itl_s": [0.1 / x] * 31 * n,
            **{key: off * n if label == "off" else on * n for key, (off, on) in COUNTS.items()},
            "num_steps": 31, "step_s": 3.1, "draft_s": 0.5, "verify_s": 2.4,
        }
        for turn in (1, 2)
        for label, x in {"off": 1.0, **timed}.items()
    ]  # fmt: skip


COUNTS = {
    "num_drafted": (0, 40), "num_accepted": (0, 20), "num_decode_steps": (31, 11), "target_rows": (81, 101),
    "draft_rows": (0, 90),
}  # fmt: skip
"""Of one request, without drafts and with some."""


def report(
    folder: Path, speeds: dict[str, dict[int, dict[str, float]]], matches: str = "+++-" * 8
) -> dict[str, Any]:
    asked = options(folder)
    return build(asked, journal_of(folder, asked, speeds, matches))
