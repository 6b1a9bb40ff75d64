"""`paceline calibrate`: what steps of a pair of models cost here, measured, shown and kept for the policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli.output import print_fields, print_json, print_table
from paceline.cli.plots import check_can_plot, save_lines, text_bars

if TYPE_CHECKING:
    from paceline.policy.costs import CostCurve
    from paceline.policy.step_costs import CalibratedCosts


@click.command()
@click.option("--target", required=True, metavar="T", help="Model that answers: preset, file or folder.")
@click.option("--draft", metavar="D", help="Model that drafts: preset, file or folder.")
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--kernels", type=click.Choice(["auto", "native", "reference"]), default="auto", show_default=True
)
@click.option("--weights", type=click.Choice(["file", "int8"]), default="file", show_default=True)
@click.option(
    "--draft-weights", type=click.Choice(["auto", "file", "int4"]), default="auto", show_default=True
)
@click.option("--draft-vocab", type=click.Choice(["auto", "full"]), default="auto", show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw the curves too; needs the extra `plot`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def calibrate(**options: Any) -> None:
    """Measure step costs, show them, and keep them for engines that speculate where it pays.

    \b
    An engine with --speculation auto measures by itself at its first start; this measures anew, for instance
    after the machine was changed.
    """
    if options["plot"] is not None:
        check_can_plot()
    # Imported late: they bring PyTorch, seconds that `--help` does without.
    from paceline.config.engine import EngineSettings
    from paceline.engine.calibration import step_costs
    from paceline.engine.loading import load_models

    names = ("target", "draft", "threads", "device", "kernels", "weights", "draft_weights", "draft_vocab")
    settings = EngineSettings(
        speculation="auto", calibration="always", **{name: options[name] for name in names}
    )
    err = Console(stderr=True)
    with err.status(f"loading {settings.target}" + (f" and {settings.draft}" if settings.draft else "")):
        target, drafts = load_models(settings)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("measuring step costs", total=1.0)
        costs = step_costs(
            target, drafts, settings,
            lambda share, text: progress.update(task, completed=share, description=f"measuring: {text}"),
        )  # fmt: skip
    _show(costs, options, settings.target, settings.draft)


def _show(costs: CalibratedCosts, options: dict[str, Any], target: str, draft: str | None) -> None:
    curves = {"target": costs.target, **costs.drafts}
    if options["plot"] is not None:
        save_lines(
            options["plot"],
            f"One step of {target}",
            "rows",
            "ms",
            {
                name: [(n, 1e3 * s) for n, s in zip(curve.rows, curve.seconds, strict=True)]
                for name, curve in curves.items()
            },
            is_log=True,
        )
    if options["as_json"]:
        print_json({"target": target, "draft": draft, **costs.to_json()})
        return
    found = costs.description
    print_fields(
        [
            ("target", target),
            ("draft", draft or "-"),
            ("machine", found["machine"]),
            ("threads", f"{found['threads']}, {found['kernels']}"),
            ("kept as", costs.key),
        ]
    )
    for name, curve in curves.items():
        click.echo(f"\n{name}: milliseconds of a forward pass")
        _table(curve)


def _table(curve: CostCurve) -> None:
    first = curve.seconds[0]
    bars = text_bars({str(n): 1e3 * s for n, s in zip(curve.rows, curve.seconds, strict=True)}, "ms")
    print_table(
        ("ROWS", "MS", "OF ONE ROW", ""),
        [
            (str(n), f"{1e3 * s:.2f}", f"{s / first:.2f}", bar.split("  ", 1)[1].rsplit(" ", 2)[0])
            for (n, s), bar in zip(zip(curve.rows, curve.seconds, strict=True), bars, strict=True)
        ],
    )
    click.echo(
        f"each sequence more: {1e3 * curve.per_sequence_s:.3f} ms; "
        f"1,000 tokens of context: {1e6 * curve.per_context_s:.3f} ms"
    )
