"""`paceline models`: fetch presets, list them, look into a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from paceline.cli.output import format_bytes, print_fields, print_json, print_table
from paceline.models.download import fetch, not_found, preset_file, resolve
from paceline.models.presets import PRESETS, Preset

if TYPE_CHECKING:
    from paceline.models.inspection import Inspection


@click.group()
def models() -> None:
    """Fetch, list and inspect models."""


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
            click.echo("What has come is kept; run the same command to go on.", err=True)
            raise


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


@models.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def inspect(model: str, as_json: bool) -> None:
    """Show what a preset, a file or a folder holds, without loading it."""
    # Imported late: it brings PyTorch, seconds that `pull` and `list` do without.
    from paceline.models.inspection import inspect_model

    found = inspect_model(resolve(model))
    if as_json:
        print_json(found.to_json())
        return
    print_fields(_fields(found))
    click.echo()
    print_table(
        ("TENSOR TYPE", "TENSORS", "PARAMETERS", "SIZE"),
        [
            (use.type, str(use.num_tensors), f"{use.num_parameters:,}", format_bytes(use.num_bytes))
            for use in found.tensor_types
        ],
    )


def _fields(found: Inspection) -> list[tuple[str, str]]:
    window = f" (sliding window of {found.sliding_window:,} in some)" if found.sliding_window else ""
    return [
        ("file", found.path),
        ("size", format_bytes(found.file_bytes)),
        ("name", found.name or "not given"),
        ("architecture", found.architecture),
        ("parameters", f"{found.num_parameters:,}"),
        ("layers", f"{found.num_layers}{window}"),
        ("hidden size", f"{found.hidden_size:,}"),
        ("heads", f"{found.num_heads}, sharing {found.num_kv_heads} for keys and values"),
        ("context", f"{found.context_length:,} tokens"),
        ("KV cache", f"{format_bytes(found.kv_bytes_per_token)} a token"),
        ("vocabulary", f"{found.vocab_size:,} rows"),
        ("tokenizer", found.tokenizer),
        ("chat template", "yes" if found.has_chat_template else "no"),
    ]
