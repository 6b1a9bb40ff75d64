"""`paceline measure`: what speculation would buy on a team's own traffic, and the configuration for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli.bench_load import parse_concurrencies
from paceline.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.measure.options import MeasureOptions
    from paceline.measure.report.require import Requirement
    from paceline.measure.session import Status

NOT_MET = 3
"""Exit code where a requirement is not met, so that it is told apart from an error."""
JOURNAL = "journal.jsonl"


@click.command(name="measure")
@click.option("--target", required=True, metavar="T", help="Model that answers: preset, file or folder.")
@click.option("--draft", "drafts", multiple=True, metavar="[NAME=]D",
              help="Model that may draft; several have names. None measures look-ups alone.")  # fmt: skip
@click.option("--traffic", required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="OpenAI bodies, lines with `messages` and `route`, or captured traffic.")  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Folder of the report; a measurement that was stopped goes on there.")  # fmt: skip
@click.option("--routes", metavar="R,R,...",
              help="Only these; OTHER=ROUTE counts OTHER with ROUTE.  [default: all]")  # fmt: skip
@click.option("--concurrency", default="1,2,4,8", show_default=True, metavar="N,N,...",
              help="Loads: clients, each with one request at a time.")  # fmt: skip
@click.option(
    "--budget", default="15m", show_default=True, metavar="TIME", help="Most time, as 90s, 15m or 1h."
)
@click.option("--prompts", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
              help="Most prompts of each route, drawn from the file.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=2), default=64, show_default=True, metavar="N",
              help="Most tokens of an answer.")  # fmt: skip
@click.option("--max-draft-length", type=click.IntRange(1, 16), default=8, show_default=True, metavar="K")
@click.option("--temperature", type=float, show_default="what the traffic says", metavar="X")
@click.option("--top-p", type=float, show_default="what the traffic says", metavar="X")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S",
              help="Of the draw, and of requests without a seed.")  # fmt: skip
@click.option("--context-length", type=int, metavar="N", help="Most tokens of prompt and output together.")
@click.option("--kv-memory", metavar="SIZE", help='Memory for KV caches, as "2GiB".')
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option("--require", "requirements", multiple=True, metavar="GATE",
              help='As "chat.speedup>=1.2"; exit code 3 where it is not met. May be repeated.')  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
def measure(**options: Any) -> None:
    """Measure a sample of your own traffic, and say per route whether to speculate.

    \b
    Writes report.html, report.json and paceline.yaml into --output. The target answers a sample of each route
    once; each drafter reads the answers once; the best few settings are timed, as long as --budget lasts.

    \b
    --require takes ROUTE.FIGURE[@CLIENTS] OPERATOR NUMBER, with * for every route. Figures of the
    recommended setting: speedup, tokens_per_second, ttft_p50_ms, ttft_p95_ms, itl_p50_ms, itl_p95_ms,
    acceptance_rate, acceptance_length, drafted_per_token, wasted_per_token, extra_flops_per_token; of the
    route: identical, break_even_concurrency, agreement.
    """
    from paceline.measure.journal import Journal
    from paceline.measure.report import require
    from paceline.measure.report.build import build
    from paceline.measure.report.write import write
    from paceline.measure.session import Session
    from paceline.measure.traffic import read_traffic

    gates = [require.parse(text) for text in options["requirements"]]
    asked = _options(options)
    traffic = read_traffic(asked.traffic, asked.merged)
    require.check_names(gates, list(traffic.by_route(asked.routes)), asked.concurrency)
    journal = Journal(asked.output / JOURNAL, asked.what())
    with _progress(asked.budget_s) as on_status:
        Session(asked, traffic, journal, on_status).run()
    report = build(asked, journal)
    write(report, asked.output)
    if options["as_json"]:
        print_json(report)
    else:
        _show(report, asked.output)
    is_met = _show_gates(report, gates)
    if report["num_identical"] < report["num_outputs"]:
        raise click.exceptions.Exit(1)
    if not is_met:
        raise click.exceptions.Exit(NOT_MET)


def _options(options: Mapping[str, Any]) -> MeasureOptions:
    from paceline.measure.options import MeasureOptions, parse_budget, parse_drafts, parse_routes

    routes, merged = parse_routes(options["routes"])
    same = ("target", "traffic", "output", "prompts", "max_tokens", "max_draft_length", "temperature",
            "top_p", "seed")  # fmt: skip
    engine = {name: options[name] for name in ("context_length", "kv_memory", "threads")}
    return MeasureOptions(
        drafts=parse_drafts(options["drafts"]),
        routes=routes,
        merged=merged,
        concurrency=tuple(sorted(parse_concurrencies(options["concurrency"]))),
        budget_s=parse_budget(options["budget"]),
        engine={name: value for name, value in engine.items() if value is not None},
        **{name: options[name] for name in same},
    )


@contextmanager
def _progress(budget_s: float) -> Iterator[Callable[[Status], None]]:
    """Show phase, share of the budget that is used, and the time that is likely left."""
    columns = (
        TextColumn("{task.fields[phase]}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=budget_s, phase="", left="")

        def on_status(status: Status) -> None:
            left = f"{int(status.left_s // 60)}:{int(status.left_s % 60):02} left at most"
            total = status.spent_s + status.left_s
            progress.update(
                task, completed=status.spent_s, total=total, phase=status.phase, left=left,
                description=status.detail,
            )  # fmt: skip

        yield on_status


def _show(report: Mapping[str, Any], folder: Path) -> None:
    """Print the summary: what to serve, why, and where the rest is."""
    from paceline.cli.output import print_table
    from paceline.measure.report.tables import routes_table
    from paceline.measure.report.words import one_page

    first = routes_table(report)
    print_table([column.upper() for column in first.columns], [list(row) for row in first.rows])
    click.echo()
    for route in report["routes"]:
        click.echo(f"{route['name']}: {route['recommendation']['reason']}.")
    for part in one_page(report):
        click.echo(f"\n{part.title}")
        for sentence in [*part.sentences, *part.commands]:
            click.echo(f"  {sentence}")
    click.echo(f"\n{folder / 'report.html'}, {folder / 'report.json'}; to serve it:")
    click.echo(f"  paceline serve --config {folder / 'paceline.yaml'}")


def _show_gates(report: Mapping[str, Any], gates: list[Requirement]) -> bool:
    """Print what became of each requirement on stderr; whether all are met."""
    from paceline.measure.report.require import verdicts

    found = verdicts(report, gates)
    for one in found:
        value = "not measured" if one.value is None else f"{one.value:.4g}"
        word = "met" if one.is_met else "NOT MET"
        click.echo(f"{word}: {one.requirement.text} ({one.route}: {value})", err=True)
    return all(one.is_met for one in found)
