"""`paceline serve`: OpenAI's API in front of an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from paceline.cli.draft_flags import DRAFTER_HELP, draft_option, draft_settings
from paceline.config.file import load_serve_config
from paceline.errors import ConfigError

ENGINE_FLAGS = (
    "target",
    "drafter",
    "speculation",
    "draft_length",
    "context_length",
    "max_num_seqs",
    "kv_memory",
    "threads",
)
SERVER_FLAGS = ("host", "port", "model_name")


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE.yaml",
    help="Models, routes, keys, limits.",
)
@click.option("--target", metavar="T", help="Model that answers: preset, file or folder.")
@draft_option
@click.option("--drafter", metavar="NAME", help=DRAFTER_HELP)
@click.option(
    "--speculation",
    type=click.Choice(["on", "off", "auto"]),
    help="Of the one route there is without --config.  [default: auto]",
)
@click.option(
    "--draft-length", type=int, metavar="K", help="Fixed k, with --speculation on; the most with auto."
)
@click.option("--host", metavar="A", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="P", help="Port; 0 takes a free one.  [default: 8000]")
@click.option(
    "--model-name", metavar="NAME", help="What clients call the target.  [default: its preset or file]"
)
@click.option("--max-num-seqs", type=int, metavar="N", help="Sequences that run at once.  [default: 8]")
@click.option("--context-length", type=int, metavar="N", help="Most tokens of prompt and output together.")
@click.option("--kv-memory", metavar="SIZE", help='Memory for KV caches, as "2GiB".')
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
def serve(path: Path | None, **options: Any) -> None:
    """Serve a model over OpenAI's API.

    \b
    paceline serve --config paceline.yaml
    paceline serve --target qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct

    Flags win over the file, and the file over its defaults. SIGTERM and Ctrl-C finish the answers that run,
    as far as there is time for it.
    """
    flags: dict[str, Any] = {name: options[name] for name in ENGINE_FLAGS}
    flags |= draft_settings(options["draft"])
    flags["server"] = {name: options[name] for name in SERVER_FLAGS}
    settings = load_serve_config(path, flags)
    try:  # only here: it brings PyTorch, seconds that errors above do without
        from paceline.server.serve import load, new_event_loop, serve, set_aside
    except ModuleNotFoundError as error:
        raise ConfigError(
            given=f"paceline serve without {error.name}",
            expected="the extra `server`",
            remedy="Install it: pip install 'paceline[server]'",
        ) from None

    console = Console(stderr=True)
    engine = settings.engine
    names = " and ".join((engine.target, *engine.draft_models.values()))
    with console.status(f"loading {names}") as status:
        loaded = load(
            settings,
            lambda share, text: status.update(f"measuring step costs: {text}, {share:.0%}"),
        )
    set_aside()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            report = runner.run(serve(loaded, settings, lambda address: _say(address, settings.model_name)))
    except OSError as error:
        raise ConfigError(
            given=f"{settings.server.host}:{settings.server.port}: {error.strerror}",
            expected="an address of this machine and a free port",
            remedy="Give others with --host and --port",
        ) from None
    click.echo(
        f"stopped: {report.num_finished} answers finished, {report.num_ended} ended unfinished", err=True
    )


def _say(address: str, model: str) -> None:
    click.echo(f"serving {model} at {address} (OpenAI's API: {address}/v1)", err=True)
