"""`paceline models`: fetch presets and list them."""

from __future__ import annotations

from typing import Any

import click

from paceline.cli.output import format_bytes, print_json, print_table
from paceline.models.download import fetch, not_found, preset_file
from paceline.models.presets import PRESETS, Preset


@click.group()
def models() -> None:
    """Fetch and list models."""


@models.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def pull(names: tuple[str, ...]) -> None:
    """Fetch presets that are not in the cache yet, and check them.

    Prints the path of each. A download that was interrupted goes on where it stopped.
    """
    for preset in [_preset(name) for name in names]:
        try:
            click.echo(fetch(preset))
        except KeyboardInterrupt:
            click.echo("Stopped. What has come is kept; run the same command to go on.", err=True)
            raise click.Abort from None


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise not_found(name)
    return PRESETS[name]


@models.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_models(as_json: bool) -> None:
    """Show the presets, and which of them are in the cache."""
    rows = [_preset_row(preset) for preset in PRESETS.values()]
    if as_json:
        print_json(rows)
        return
    header = ("NAME", "SIZE", "CACHED", "LICENCE", "WHAT IT IS")
    print_table(header, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    cached = "yes" if row["path"] else "no"
    return row["name"], format_bytes(row["size"]), cached, row["license"], row["summary"]


def _preset_row(preset: Preset) -> dict[str, Any]:
    path = preset_file(preset)
    return {
        "name": preset.name,
        "summary": preset.summary,
        "size": preset.size,
        "sha256": preset.sha256,
        "license": preset.license,
        "has_chat_template": preset.has_chat_template,
        "path": str(path) if path.exists() else None,
    }
