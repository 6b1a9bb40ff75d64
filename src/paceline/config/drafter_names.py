"""What drafters are called: `suffix`, a draft model, or a mix of both.

One draft model is called `model`. Several have names of their own, and are called `model:NAME` each. What
mixes a draft model with suffix matches has the same name with `mixed` for `model`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

SUFFIX, MODEL, MIXED = "suffix", "model", "mixed"
DRAFT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


def model_named(name: str) -> str:
    """Return what the draft model of a name is called, where there are several."""
    return f"{MODEL}:{name}"


@functools.lru_cache(256)
def is_mixed(drafter: str) -> bool:
    """Whether a drafter mixes matches with a draft model."""
    return drafter == MIXED or drafter.startswith(f"{MIXED}:")


def mixed_with(model: str) -> str | None:
    """Return the drafter that mixes matches with a draft model; none for what is not called as one."""
    is_model = model == MODEL or model.startswith(f"{MODEL}:")
    return MIXED + model.removeprefix(MODEL) if is_model else None


@functools.lru_cache(256)
def model_of(drafter: str) -> str | None:
    """Return the draft model that a drafter may ask; none for look-ups."""
    if drafter == SUFFIX:
        return None
    return MODEL + drafter.removeprefix(MIXED) if is_mixed(drafter) else drafter


def role_of(model: str) -> str:
    """Return the role of a draft model: `draft`, or `draft:NAME` where there are several."""
    return "draft" + model.removeprefix(MODEL)


def models_of(drafters: Iterable[str]) -> list[str]:
    """Return the draft models that these drafters may ask, each once, in their order."""
    return list(dict.fromkeys(model for one in drafters if (model := model_of(one)) is not None))


def with_mixed(drafters: Iterable[str]) -> tuple[str, ...]:
    """Return these drafters, and what mixes two of them where matches and a draft model are among them."""
    found = tuple(drafters)
    if SUFFIX not in found:
        return found
    mixes = [mix for one in found if (mix := mixed_with(one)) is not None]
    return (*found, *(mix for mix in mixes if mix not in found))


def resolved(drafter: str, known: Sequence[str]) -> str:
    """Return the full name of a drafter: `model` and `mixed` alone mean the first draft model there is."""
    if drafter in (MODEL, MIXED) and drafter not in known:
        return next((one for one in known if one.startswith(f"{drafter}:")), drafter)
    return drafter


def together_first(drafters: Iterable[str]) -> list[str]:
    """Return drafters, those first that bring most together: mixes, then draft models, then matches."""
    return sorted(drafters, key=lambda one: (not is_mixed(one), one == SUFFIX))
