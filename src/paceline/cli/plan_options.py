"""Flags that `paceline plan memory` and `paceline plan capacity` share: models in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from paceline.errors import ConfigError
from paceline.planner.shapes import BYTES_OF

DTYPES = click.Choice(list(BYTES_OF))
KNOWN = "[default: a known model's of about that size]"

_OPTIONS = (
    click.option(
        "--params-b", type=float, metavar="N", help="The target's parameters, in thousand millions."
    ),
    click.option("--dtype", type=DTYPES, default="bf16", show_default=True, help="Of its weights."),
    click.option("--draft-params-b", type=float, metavar="N", help="The draft model's parameters."),
    click.option("--draft-dtype", type=DTYPES, help="[default: as --dtype]"),
    click.option("--layers", type=int, metavar="N", help=KNOWN),
    click.option("--kv-heads", type=int, metavar="N", help="Heads for keys and values. " + KNOWN),
    click.option("--head-size", type=int, metavar="N", help="Values of a head. " + KNOWN),
    click.option("--draft-layers", type=int, metavar="N", help="The same three of the draft model."),
    click.option("--draft-kv-heads", type=int, metavar="N"),
    click.option("--draft-head-size", type=int, metavar="N"),
    click.option("--kv-dtype", type=DTYPES, default="bf16", show_default=True, help="Of keys and values."),
)


OF_NUMBERS = (
    "params_b", "dtype", "draft_params_b", "draft_dtype", "layers", "kv_heads", "head_size", "draft_layers",
    "draft_kv_heads", "draft_head_size", "kv_dtype",
)  # fmt: skip
"""Parameters of `number_options`."""


def refuse_beside(flag: str, names: Sequence[str]) -> None:
    """Refuse flags that were given beside one that makes them say nothing.

    Raises:
        ConfigError: one of them was given on the command line.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            other = "--" + name.replace("_", "-").removesuffix("s" if name == "routes" else "")
            raise ConfigError(
                given=f"{flag} and {other}",
                expected="one of them: the first leaves nothing for the second to say",
                remedy=f"Leave {other} out, or {flag}",
            )


def number_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
