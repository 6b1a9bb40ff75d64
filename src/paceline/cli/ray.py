"""`paceline ray`: the server as several replicas on Ray Serve."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.config.file import key_variables, load_serve_config
from paceline.errors import ConfigError


@click.group()
def ray() -> None:
    """Serve from several replicas on Ray."""


@ray.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE.yaml",
    required=True,
    help="Models, routes, keys, limits.",
)
@click.option("--replicas", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
              help="Engines, each with the models in its own memory.")  # fmt: skip
@click.option("--address", metavar="A", help='Ray cluster to use, or "auto".  [default: start one here]')
@click.option("--host", metavar="A", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="P", help="Port; 0 takes a free one.  [default: 8000]")
@click.option("--threads", type=int, metavar="N", help="Of each replica.  [default: CPUs / replicas]")
def serve(
    path: Path, replicas: int, address: str | None, host: str | None, port: int | None, threads: int | None
) -> None:
    """Serve OpenAI's API from N replicas, with one set of routes.

    \b
    paceline ray serve --config paceline.yaml --replicas 2
    paceline ray serve --config paceline.yaml --replicas 8 --address auto

    SIGTERM and Ctrl-C finish the answers that run, as far as there is time for it, and end the cluster if it
    was started here.
    """
    flags = {"threads": threads, "server": {"host": host, "port": port}}
    # Named one by one, since the process that follows the file is another one.
    settings = load_serve_config(path, flags, key_variables())
    try:  # only here: Ray takes seconds that errors above do without
        from paceline.ray.serve import run
    except ModuleNotFoundError as error:
        raise ConfigError(
            given=f"paceline ray serve without {error.name}",
            expected="the extras `server` and `ray`",
            remedy="Install them: pip install 'paceline[server,ray]'",
        ) from None
    click.echo(f"starting {replicas} replicas of {settings.model_name}", err=True)
    run(settings, replicas, address, lambda text: click.echo(text, err=True))
