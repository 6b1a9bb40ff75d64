"""The `paceline` command: finds its subcommands, and turns errors into messages and exit codes.

Exit codes: 0 done; 1 something went wrong; 2 what was asked for is wrong, as for a misspelt option; 3 a
requirement (`measure --require`) is not met; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence

import click

from paceline import __version__
from paceline.errors import (
    AccessError,
    ConfigError,
    GenerationError,
    ModelNotFoundError,
    PacelineError,
    RequestError,
)

COMMANDS: Mapping[str, str] = {
    "bench": "Measure what this machine makes of a model.",
    "calibrate": "Measure what steps of a pair of models cost, for the policy.",
    "config": "Explain and check configuration files.",
    "generate": "Answer prompts, with or without speculation, or both side by side.",
    "measure": "Measure your own traffic: whether to speculate, with what, and up to which load.",
    "models": "Fetch, list and inspect models.",
    "plan": "Plan memory, break-even and capacity from figures.",
    "ray": "Serve from several replicas on Ray.",
    "routes": "Show, switch and explain the routes of a server that runs.",
    "serve": "Serve a model over OpenAI's API, with routes that are switched while it runs.",
    "vllm": "The same routes on vLLM: start it, or show its flags.",
}
"""Each is the object of that name in the module of that name here. The line stands in for the module in
`paceline --help`, which must not wait seconds for PyTorch."""

INTERRUPTED = 130
"""What shells report for a command that Ctrl-C ended: 128 and the signal's number."""
USER_ERRORS = (AccessError, ConfigError, RequestError, ModelNotFoundError)

EXAMPLE = """\
\b
Example: a 1.5B model writes code while a 0.5B model drafts for it.
  paceline models pull qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct
  paceline generate --target qwen2.5-coder-1.5b-instruct \\
      --draft qwen2.5-coder-0.5b-instruct --compare --chat "Sort a list in Python."
"""


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, and whose errors leave as exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; none if there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"paceline.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ours becomes one message on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except PacelineError as error:
            if ctx.params["debug"]:
                raise
            click.echo(f"Error: {error}", err=True)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
            ctx.exit(INTERRUPTED)


def exit_code(error: PacelineError) -> int:
    """Return 2 where the user can put it right by asking differently, else 1."""
    return 2 if isinstance(error, USER_ERRORS) and not isinstance(error, GenerationError) else 1


@click.group(cls=LazyGroup, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="paceline")
@click.option("--debug", is_flag=True, help="Log more, and show where in the code an error comes from.")
def cli(debug: bool) -> None:
    """Run language models with speculative decoding that never changes an answer."""
    # Logs go to stderr; stdout belongs to the answers.
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING, format="%(levelname)s: %(message)s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; `arguments` are the process's own unless given."""
    cli.main(args=arguments, prog_name="paceline")
