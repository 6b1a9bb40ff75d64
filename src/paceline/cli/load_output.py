"""What `paceline bench load` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.output import print_fields, print_json, print_table

if TYPE_CHECKING:
    from paceline.config.engine import EngineSettings
    from paceline.measure.load_cell import LoadCell


def show_cells(cells: Sequence[LoadCell], settings: EngineSettings, options: dict[str, Any]) -> None:
    """Print all cells: a table for people, or one JSON object."""
    if options["as_json"]:
        names = ("target", "draft", "max_tokens", "temperature", "top_p", "seed", "ignore_eos")
        print_json({**{name: options[name] for name in names}, "cells": [cell.to_json() for cell in cells]})
        return
    print_fields(
        [
            ("target", settings.target),
            ("draft", settings.draft or "-"),
            ("sampling", f"temperature {options['temperature']}, top-p {options['top_p']}"),
            ("tokens", f"{options['max_tokens']} an answer at most"),
        ]
    )
    click.echo()
    print_table(HEADER, [_row(cell, _off_of(cell, cells)) for cell in cells])
    click.echo(NOTE)


HEADER = (
    "ROUTE", "CLIENTS", "SPECULATION", "TOKENS/S", "X OFF", "TTFT MS 50/95/99", "ITL MS 50/95/99", "ACCEPTED",
    "REUSED", "PREEMPTED", "PEAK KV", "OVERHEAD", "IDENTICAL",
)  # fmt: skip
NOTE = """
TTFT, ITL: time to the first token and between tokens, percentiles; tokens that come together share theirs.
REUSED: share of prompt tokens found in the prefix cache. PEAK KV: share of the KV blocks in use at most.
OVERHEAD: share of the steps' time that was neither the target's nor a drafter's."""


def _off_of(cell: LoadCell, cells: Sequence[LoadCell]) -> LoadCell | None:
    alike = (
        other
        for other in cells
        if other.speculation == "off" and (other.route, other.concurrency) == (cell.route, cell.concurrency)
    )
    return next(alike, None)


def _row(cell: LoadCell, off: LoadCell | None) -> list[str]:
    counts = cell.counts
    compared = "-" if cell.num_identical is None else f"{cell.num_identical} of {cell.num_outputs}"
    has_ratio = off is not None and off.tokens_per_second > 0
    return [
        cell.route or "-",
        str(cell.concurrency),
        cell.speculation,
        f"{cell.tokens_per_second:.2f}",
        f"{cell.tokens_per_second / off.tokens_per_second:.2f}" if off and has_ratio else "-",
        _milliseconds(cell, "ttft"),
        _milliseconds(cell, "itl"),
        _percent(cell.acceptance_rate),
        _percent(counts.num_prefix_hits / counts.num_prefix_queries if counts.num_prefix_queries else None),
        str(counts.num_preemptions),
        _percent(counts.peak_kv_blocks / counts.num_kv_blocks),
        _percent(cell.overhead_share, digits=1),
        compared + (f", {cell.num_failed} failed" if cell.num_failed else ""),
    ]


def _milliseconds(cell: LoadCell, what: str) -> str:
    values = [cell.percentile_s(what, percentile) for percentile in (50, 95, 99)]
    return "/".join("-" if value is None else f"{1e3 * value:.0f}" for value in values)


def _percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share:.{digits}%}"
