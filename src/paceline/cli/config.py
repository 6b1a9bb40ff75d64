"""`paceline config`: what a configuration may say, and whether one says it right."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline.config.file import load_serve_config
from paceline.config.schema import config_schema


@click.group()
def config() -> None:
    """Explain and check configuration files."""


@config.command()
def schema() -> None:
    """Print the JSON schema of a configuration, every key with its meaning.

    \b
    paceline config schema > paceline.schema.json
    """
    click.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@config.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE.yaml")
def check(path: Path) -> None:
    """Say whether a server would start with a file; no model is loaded."""
    settings = load_serve_config(path)
    routes = ", ".join(f"{name} ({route.speculation})" for name, route in settings.engine.routes.items())
    click.echo(
        f"{path}: {settings.model_name}, routes {routes}, default {settings.engine.default_route or 'none'}"
    )
