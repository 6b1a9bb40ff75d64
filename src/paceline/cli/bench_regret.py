"""`paceline bench regret`: how close the policy comes to the best fixed setting, and that it is not worse
than none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from paceline.cli.bench_load import (
    answers_progress,
    parse_concurrencies,
    prepare_requests,
    read_groups,
    warn_of_idle_clients,
)
from paceline.cli.output import print_fields, print_json, print_table
from paceline.cli.plots import check_can_plot, save_panels

if TYPE_CHECKING:
    from paceline.cli.input_file import InputRequest
    from paceline.measure.regret import RegretCell, Run

WARM_UP_REQUESTS = 1
MOST_WARM_UP_REQUESTS = 8


@click.command(name="regret")
@click.option("--target", required=True, metavar="T", help="Model that answers: preset, file or folder.")
@click.option("--draft", metavar="D", help="Model that drafts: preset, file or folder.")
@click.option("--input", "input_file", required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="One request a line: `messages` or `prompt`, with a `route`.")  # fmt: skip
@click.option("--settings", default="off,auto,model:2,model:4,suffix:4", show_default=True, metavar="S,S,...",
              help="off, auto, and fixed ones as DRAFTER:K.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=4, show_default=True, metavar="R",
              help="Odd ones choose the best fixed setting, even ones compare with it; of a single one, "
              "slices do.")  # fmt: skip
@click.option("--routes", metavar="R,R,...", help="Only these routes, in this order.  [default: all]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="First N requests of each route only.")
@click.option("--concurrency", default="1,4,16", show_default=True, metavar="N,N,...",
              help="Clients, each with one request at a time.")  # fmt: skip
@click.option("--slice", "slice_size", type=click.IntRange(min=0), metavar="N",
              help="Requests that are answered in one setting before the next has its turn; 0 is all, whole "
              "runs.  [default: one a client]")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, metavar="N")
@click.option("--warm-up", type=click.IntRange(min=0), default=WARM_UP_REQUESTS, show_default=True,
              metavar="N",
              help="Requests a client in each setting before the first slice, "
              f"{MOST_WARM_UP_REQUESTS} at most.")  # fmt: skip
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE",
              help="Keep runs here, and go on from those that are there.")  # fmt: skip
@click.option("--temperature", type=float, default=0.0, show_default="0, greedy", metavar="X")
@click.option("--top-p", type=float, default=1.0, show_default=True, metavar="X")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S")
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-tokens whatever the model says.")
@click.option("--context-length", type=int, metavar="N", help="Most tokens of prompt and output together.")
@click.option("--kv-memory", metavar="SIZE", help='Memory for KV caches, as "2GiB".')
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw tokens/s over concurrency; needs the extra `plot`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def regret(**options: Any) -> None:
    """Compare the policy with every fixed setting, slice by slice.

    \b
    The requests of a route are cut into slices. Of each slice all settings take turns, in an order that
    rotates, so that a machine that slows down slows all of them; and that R times. Before the first slice
    some requests are answered in each setting, which is when the policy learns; they do not count.
    """
    if options["plot"] is not None:
        check_can_plot()
    from paceline.llm import LLM
    from paceline.measure.regret import summarise
    from paceline.measure.regret_bench import RegretBench, WarmUp
    from paceline.measure.run_file import RunFile
    from paceline.measure.turns import parse_settings, slice_size

    drafters = ["model", "suffix", "mixed"] if options["draft"] is not None else ["suffix"]
    settings = parse_settings(options["settings"], drafters)
    concurrencies = parse_concurrencies(options["concurrency"])
    for concurrency in concurrencies:
        slice_size(options["slice_size"], concurrency)
    groups: dict[str | None, list[InputRequest]] = read_groups({**options, "mixed": False})
    runs = RunFile(options["resume"], _what(options))
    err = Console(stderr=True)
    warn_of_idle_clients(err, groups, concurrencies)
    engine_settings = _engine_settings(options, max(concurrencies))
    with err.status(f"loading {options['target']}") as status:
        llm = LLM.from_settings(
            engine_settings, lambda share, text: status.update(f"measuring step costs: {text}, {share:.0%}")
        )
    with llm:
        prepared = {name: prepare_requests(llm, requests, options) for name, requests in groups.items()}
        bench = RegretBench(
            llm.loaded.engine,
            runs,
            settings,
            WarmUp(options["warm_up"], MOST_WARM_UP_REQUESTS),
            options["slice_size"],
        )
        each = [bench.num_turns(requests, n) for requests in prepared.values() for n in concurrencies]
        with answers_progress(err, sum(each) * options["repeats"]) as progress:
            for repeat in range(1, options["repeats"] + 1):
                for index, (name, requests) in enumerate(prepared.items()):
                    for concurrency in concurrencies:
                        where = f"repeat {repeat}, {name or 'no route'}, {concurrency} at once"
                        progress.update(progress.task_ids[0], description=where)
                        for _ in bench.cell(name or "default", requests, concurrency, repeat, index):
                            progress.advance(progress.task_ids[0])
    cells = summarise(runs.runs)
    _show(cells, runs.runs, options)
    if any(cell.num_identical < cell.num_outputs for cell in cells):
        raise click.exceptions.Exit(1)


def _what(options: dict[str, Any]) -> dict[str, Any]:
    names = ("target", "draft", "settings", "routes", "limit", "concurrency", "max_tokens", "warm_up",
             "temperature", "top_p", "seed", "ignore_eos", "threads")  # fmt: skip
    return {
        "input": str(options["input_file"]),
        **{name: options[name] for name in names},
        "slice": options["slice_size"],
    }


def _engine_settings(options: dict[str, Any], max_num_seqs: int) -> Any:
    from paceline.config.engine import EngineSettings
    from paceline.records import AnswerSharing

    optional = ("context_length", "kv_memory", "threads")
    return EngineSettings(
        target=options["target"],
        draft=options["draft"],
        speculation="auto",
        max_num_seqs=max_num_seqs,
        answer_sharing=AnswerSharing.TENANT_AND_ROUTE,  # settings are tenants
        **{name: options[name] for name in optional if options[name] is not None},
    )


def _show(cells: Sequence[RegretCell], runs: Sequence[Run], options: dict[str, Any]) -> None:
    from paceline.measure.paired import geometric_mean

    over_off = geometric_mean(c.auto_over_off.mean for c in cells if c.auto_over_off is not None)
    over_best = geometric_mean(
        c.auto_over_best_fixed.mean for c in cells if c.auto_over_best_fixed is not None
    )
    decoding = geometric_mean(
        c.decode_auto_over_off.mean for c in cells if c.decode_auto_over_off is not None
    )
    errors = [run.step_error for run in runs if run.step_error is not None]
    step_error = sorted(errors)[len(errors) // 2] if errors else None
    if options["plot"] is not None:
        _plot(cells, options["plot"])
    if options["as_json"]:
        print_json(
            {
                **_what(options), "repeats": options["repeats"],
                "auto_over_off": over_off, "decode_auto_over_off": decoding,
                "auto_over_best_fixed": over_best, "median_step_error": step_error,
                "cells": [cell.to_json() for cell in cells],
            }
        )  # fmt: skip
        return
    print_fields(
        [
            ("target", options["target"]),
            ("draft", options["draft"] or "-"),
            (
                "warm-up",
                f"{options['warm_up']} requests a client before the first slice, "
                f"{MOST_WARM_UP_REQUESTS} at most",
            ),
            ("slices", _slices(options["slice_size"])),
            ("auto / off", _figure(over_off) + ", geometric mean over the cells"),
            ("decoding, auto / off", _figure(decoding) + ", the same from first tokens on"),
            ("auto / best fixed", _figure(over_best) + ", geometric mean over the cells"),
            ("step time, predicted", "-" if step_error is None else f"{step_error:.1%} off, median"),
        ]
    )
    click.echo()
    names = list(dict.fromkeys(name for cell in cells for name in cell.tokens_per_second))
    header = ("ROUTE", "CLIENTS", *(f"{name.upper()} T/S" for name in names), "AUTO / OFF", "DECODING",
              "BEST FIXED", "AUTO / BEST", "PREDICTED", "OFF, FORECAST", "K", "STATE", "SLICES",
              "IDENTICAL")  # fmt: skip
    print_table(header, [_row(cell, names) for cell in cells])


def _row(cell: RegretCell, names: Sequence[str]) -> list[str]:
    return [
        cell.route,
        str(cell.concurrency),
        *(_figure(cell.tokens_per_second.get(name)) for name in names),
        _interval(cell.auto_over_off),
        _interval(cell.decode_auto_over_off),
        cell.best_fixed or "-",
        _interval(cell.auto_over_best_fixed),
        _figure(cell.predicted_speedup),
        _figure(cell.forecast_of_off),
        _figure(cell.mean_draft_length),
        cell.state or "-",
        str(cell.num_slices),
        f"{cell.num_identical} of {cell.num_outputs}",
    ]


def _slices(size: int | None) -> str:
    if size is None:
        return "of a request a client"
    return f"of {size} requests" if size else "none, whole runs"


def _interval(ratio: Any) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.mean:.2f}" + ("" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _plot(cells: Sequence[RegretCell], path: Path) -> None:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in cells:
        for name, speed in cell.tokens_per_second.items():
            panels.setdefault(cell.route, {}).setdefault(name, []).append((cell.concurrency, speed))
    save_panels(path, panels, "concurrent requests", "tokens / s", is_log=True)
