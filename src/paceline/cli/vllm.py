"""`paceline vllm`: the same routes on vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.administration.address import free_port
from paceline.cli.output import print_json
from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.vllm.flags import Launch, launch_of
from paceline.vllm.launch import become_vllm, prepare
from paceline.vllm.versions import TESTED, check_version

SERVER_FLAGS = ("host", "port")


def configured(command: Any) -> Any:
    """Give a command the options that say what is to be started."""
    for option in (
        click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS...]"),
        click.option("--port", type=int, metavar="P", help="Port, over the file's."),
        click.option("--host", metavar="A", help="Address to listen on, over the file's."),
        click.option("--config", "path", required=True, type=click.Path(path_type=Path), metavar="FILE.yaml",
                     help="Models, routes, keys, limits."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def vllm() -> None:
    """Serve with vLLM, with routes that are switched while it runs.

    The configuration is that of `paceline serve`; what vLLM needs besides is below its key vllm, as
    `paceline config schema` says. `paceline routes` works against it.
    """


@vllm.command()
@configured
def serve(path: Path, extra: tuple[str, ...], **options: Any) -> None:
    """Start vLLM's OpenAI server with the routes of a configuration.

    \b
    paceline vllm serve --config paceline.yaml
    paceline vllm serve --config paceline.yaml -- --tensor-parallel-size 2

    Flags behind -- are vLLM's own, and those that would undo the configuration are refused.
    """
    flags, settings, launch = _read(path, extra, options)
    version = check_version()
    for note in launch.notes:
        click.echo(f"note: {note}", err=True)
    if not launch.is_headless:
        prepare(settings, launch, flags)
        free_port(settings.server.host, settings.server.port)
        click.echo(f"starting vLLM {version} with routes {', '.join(settings.engine.routes)}", err=True)
    become_vllm(launch)


@vllm.command()
@configured
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def flags(path: Path, extra: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print what `serve` would run, quoted for a shell; with what each flag is for on stderr.

    Nothing is started or written, and vLLM need not be there. Run by hand, the command lacks the files that
    `serve` writes before it.
    """
    _, _, launch = _read(path, extra, options)
    if as_json:
        print_json(
            {
                "arguments": ["vllm", "serve", *launch.arguments],
                "flags": [{"name": one.name, "value": one.value, "why": one.why} for one in launch.flags],
                "notes": list(launch.notes),
                "bridge": str(launch.bridge),
                "tested": TESTED,
            }
        )
        return
    click.echo(launch.text())
    width = max(len(one.name) for one in launch.flags)
    for one in launch.flags:
        click.echo(f"--{one.name:<{width}}  {one.why}", err=True)
    for note in launch.notes:
        click.echo(f"note: {note}", err=True)


def _read(
    path: Path, extra: tuple[str, ...], options: dict[str, Any]
) -> tuple[dict[str, Any], ServeSettings, Launch]:
    flags = {"server": {name: options[name] for name in SERVER_FLAGS if options[name] is not None}}
    settings = load_serve_config(path, flags)
    return flags, settings, launch_of(settings, extra)
