"""`--draft`: one model that drafts, or several by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from paceline.errors import ConfigError

draft_option = click.option(
    "--draft",
    "draft",
    multiple=True,
    metavar="[NAME=]D",
    help="Model that drafts: preset, file or folder. With names, several: --draft small=A --draft code=B.",
)
DRAFTER_HELP = (
    "What proposes tokens: model, suffix, mixed or none; of several draft models, model:NAME or mixed:NAME."
)


def draft_settings(given: Sequence[str]) -> dict[str, Any]:
    """Return the settings `draft` and `drafts` that the flags mean; both are none where there are no flags.

    Raises:
        ConfigError: some have names and some do not, or two have the same.
    """
    named = [value.partition("=") for value in given]
    if len(given) < 2 and not any(sign for _, sign, _ in named):
        return {"draft": given[0] if given else None, "drafts": None}
    drafts = {name: model for name, sign, model in named if sign}
    if len(drafts) < len(given):
        raise ConfigError(
            given=" ".join(f"--draft {value}" for value in given),
            expected="one draft model, or several with a name each",
            remedy="Write --draft NAME=MODEL for each of them, with different names",
        )
    return {"draft": None, "drafts": drafts}
