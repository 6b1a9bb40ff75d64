"""`paceline bench`: what this machine makes of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.bench_load import load
from paceline.cli.bench_regret import regret
from paceline.cli.output import print_fields, print_json, print_table
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.measure.step_cost import StepCosts

DEFAULT_ROWS = "1,2,3,4,5,6,8,12,16,32"


@click.group()
def bench() -> None:
    """Measure what this machine makes of a model."""


bench.add_command(load)
bench.add_command(regret)


@bench.command(name="step-cost")
@click.option("--target", required=True, metavar="T", help="Model to measure: preset, file or folder.")
@click.option("--context", default=512, show_default=True, metavar="N", type=click.IntRange(min=0),
              help="Tokens that are in the cache before the rows.")  # fmt: skip
@click.option("--rows", default=DEFAULT_ROWS, show_default=True, metavar="N,N,...", help="Numbers of rows.")
@click.option("--rounds", default=5, show_default=True, metavar="N", type=click.IntRange(min=1),
              help="Rounds; all sizes take turns in each.")  # fmt: skip
@click.option("--repeats", default=3, show_default=True, metavar="N", type=click.IntRange(min=1),
              help="Passes of each size in a round.")  # fmt: skip
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option(
    "--kernels", type=click.Choice(["auto", "native", "reference"]), default="auto", show_default=True
)
@click.option("--weights", type=click.Choice(["file", "int8", "int4"]), default="file", show_default=True,
              help="int4: as a draft model may be held.")  # fmt: skip
@click.option("--vocab", type=click.Choice(["full", "auto"]), default="full", show_default=True,
              help="auto: a draft model's reduced output layer, where there is a list.")  # fmt: skip
@click.option("--vs-llama-bench", type=click.Path(path_type=Path), metavar="PATH",
              help="Let llama.cpp's llama-bench take turns on the same file, and compare.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def step_cost(**options: Any) -> None:
    """Time forward passes of a whole model for a few rows.

    \b
    Verifying k drafts is a pass of k + 1 rows. Speculation pays where that costs little more than one row.
    """
    rows = _rows(options["rows"])
    # Imported late: they bring PyTorch, seconds that `--help` does without.
    from paceline.config.settings import load_settings
    from paceline.kernels.native import use_instruction_set
    from paceline.kernels.threads import num_threads, set_num_threads
    from paceline.measure.llama_bench import LlamaBench
    from paceline.measure.step_cost import StepTimer
    from paceline.models.download import resolve
    from paceline.models.load import load_model
    from paceline.models.options import Kernels, LoadOptions, Weights

    set_num_threads(options["threads"])
    use_instruction_set(load_settings().isa)
    path = resolve(options["target"])
    load = LoadOptions(Kernels(options["kernels"]), Weights(options["weights"]), options["vocab"] == "auto")
    timer = StepTimer(load_model(path, "cpu", load), options["context"], rows)
    other = None
    if options["vs_llama_bench"] is not None:
        other = LlamaBench(
            options["vs_llama_bench"], path, threads=num_threads(), context=options["context"], rows=rows
        )
    for _ in range(options["rounds"]):
        timer.round(options["repeats"])
        if other is not None:
            other.round(options["repeats"])
    _print(timer.costs(), None if other is None else other.ms(), options["as_json"])


def _rows(text: str) -> list[int]:
    try:
        rows = [int(word) for word in text.split(",")]
    except ValueError:
        rows = []
    if not rows or min(rows) < 1 or max(rows) > 512:
        raise ConfigError(
            given=f"--rows {text}",
            expected="numbers from 1 to 512 with commas between them",
            remedy="Give --rows 1,2,4,8",
        )
    return list(dict.fromkeys(rows))


def _print(costs: StepCosts, llama_ms: dict[int, float] | None, as_json: bool) -> None:
    if as_json:
        more = {} if llama_ms is None else {"llama_bench": _compared(costs, llama_ms)}
        print_json(costs.to_json() | more)
        return
    fraction = costs.bandwidth_fraction
    print_fields(
        [
            ("model", costs.model),
            ("context", f"{costs.context:,} tokens"),
            ("threads", f"{costs.threads}, {costs.isa}"),
            ("memory read", f"{costs.read_bandwidth_gb_s:.1f} GB/s"),
            ("file bytes a step", f"{costs.file_bytes_per_step:,}"),
            ("of the bandwidth", "not measured" if fraction is None else f"{fraction:.0%} at one row"),
        ]
    )
    click.echo()
    first = costs.ms[min(costs.ms)]
    header = ["ROWS", "MS", f"OF {min(costs.ms)} ROWS" if min(costs.ms) > 1 else "OF ONE ROW"]
    lines = [[str(n), f"{ms:.2f}", f"{ms / first:.2f}"] for n, ms in costs.ms.items()]
    if llama_ms is not None:
        header += ["LLAMA.CPP MS", "OURS / ITS"]
        for line, (n, ms) in zip(lines, costs.ms.items(), strict=True):
            line += [f"{llama_ms[n]:.2f}", f"{ms / llama_ms[n]:.2f}"]
    print_table(header, lines)


def _compared(costs: StepCosts, llama_ms: dict[int, float]) -> list[dict[str, float]]:
    return [
        {"rows": rows, "ms": llama_ms[rows], "ratio": ms / llama_ms[rows]} for rows, ms in costs.ms.items()
    ]
