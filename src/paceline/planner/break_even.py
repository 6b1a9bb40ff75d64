"""What speculation buys at k drafts in a step: emitted tokens, speedup, and where it stops paying.

Everywhere here one step drafts k tokens, checks them in one pass of the target, and emits those that stand up
to the first that falls, **plus the one token that the target adds itself** (the bonus): 1 .. k + 1 of them.
That token is counted everywhere, or speculation would be compared with a target that emits nothing.

Acceptance is said in one of two ways, and every result depends on which:

- *independent*: one chance `a` for each drafted token whose predecessors were accepted, the same at every
  position. Then a step emits 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens (Leviathan, Kalman and
  Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1).
- *by position*: chances a_1 .. a_k, each given that all before it were accepted, as they are measured. Then a
  step emits 1 + a_1 + a_1 a_2 + ... + a_1 a_2 ... a_k.

Times are seconds of one step of the same batch; any unit does, so long as it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError

MOST_DRAFTS = 64
"""Longest draft that is looked at; also the longest that a request may ask for."""
Acceptance = float | Sequence[float]
"""One chance for every position, or one for each position, given that those before it were accepted."""


@dataclass(frozen=True, slots=True)
class BestLength:
    """The draft length that gives the most tokens per second."""

    draft_length: int
    """0 where no length beats plain decoding."""
    speedup: float
    """At that length, over plain decoding; 1 at length 0."""


def survival(acceptance: Acceptance, draft_length: int) -> tuple[float, ...]:
    """Return the chance [draft_length] that each drafted token stands, those before it included.

    Args:
        acceptance: one chance, or one for each position, in 0 .. 1.
        draft_length: k, drafted tokens.

    Raises:
        ConfigError: a chance is outside 0 .. 1, k is negative, or there are fewer chances than k.
    """
    _check_length(draft_length)
    chances = [acceptance] * draft_length if isinstance(acceptance, int | float) else list(acceptance)
    _check_chances([acceptance] if isinstance(acceptance, int | float) else chances)
    if len(chances) < draft_length:
        raise ConfigError(
            given=f"acceptance at {len(chances)} positions, and a draft length of {draft_length}",
            expected="acceptance at every position that is drafted",
            remedy=f"Give {draft_length} chances, or one for all positions, or draft {len(chances)} tokens",
        )
    found, standing = [], 1.0
    for chance in chances[:draft_length]:
        standing *= chance
        found.append(standing)
    return tuple(found)


def tokens_per_step(acceptance: Acceptance, draft_length: int) -> float:
    """Return the expected tokens that a step emits, 1 .. k + 1, the target's own among them.

    Raises:
        ConfigError: as `survival`.
    """
    return 1.0 + sum(survival(acceptance, draft_length))


def implied_acceptance(tokens: float, draft_length: int) -> float:
    """Return the independent acceptance at which k drafts emit so many tokens; undoes `tokens_per_step`.

    Raises:
        ConfigError: k drafts cannot emit so many.
    """
    _check_length(draft_length)
    if not 1.0 <= tokens <= draft_length + 1:
        raise ConfigError(
            given=f"{tokens:g} tokens per step with {draft_length} drafts",
            expected=f"1 to {draft_length + 1}: the target's own token, and at most every draft",
            remedy="Count the target's own token, and give the draft length that the figure belongs to",
        )
    if draft_length == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if tokens_per_step(middle, draft_length) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def speedup(tokens: float, step_s: float, plain_s: float) -> float:
    """Return tokens per second of steps that emit so many, over those of plain steps, which emit one.

    Args:
        tokens: emitted by a step with drafts, by each sequence.
        step_s: all of that step: drafting and verifying.
        plain_s: of a step of the same batch without drafts.

    Raises:
        ConfigError: a time is not positive.
    """
    _check_times(step_s=step_s, plain_s=plain_s)
    return tokens * plain_s / step_s


def break_even_tokens(step_s: float, plain_s: float) -> float:
    """Return the tokens that a step with drafts has to emit to be worth its time.

    Raises:
        ConfigError: a time is not positive.
    """
    _check_times(step_s=step_s, plain_s=plain_s)
    return step_s / plain_s


def break_even_acceptance(draft_length: int, step_s: float, plain_s: float) -> float | None:
    """Return the independent acceptance at which k drafts neither gain nor lose.

    Returns:
        None where not even accepting every draft is enough; 0 where the step costs no more than a plain one.

    Raises:
        ConfigError: a time is not positive, or k is negative.
    """
    _check_length(draft_length)
    needed = break_even_tokens(step_s, plain_s)
    if needed <= 1.0:
        return 0.0
    return implied_acceptance(needed, draft_length) if needed <= draft_length + 1 else None


def best_draft_length(
    acceptance: Acceptance, step_s: Callable[[int], float], plain_s: float, most: int = MOST_DRAFTS
) -> BestLength:
    """Return the draft length of the most tokens per second, looking at every one: step times have bumps.

    Args:
        acceptance: as for `survival`; one for each position ends the search where they end.
        step_s: seconds of a step with that many drafts for each sequence, drafting included; for 1 .. most.
        plain_s: seconds of a step without.
        most: longest draft to look at.

    Raises:
        ConfigError: a time is not positive, or a chance is outside 0 .. 1.
    """
    if not isinstance(acceptance, int | float):
        most = min(most, len(acceptance))
    tokens, best = 1.0, BestLength(0, 1.0)
    for length, standing in enumerate(survival(acceptance, most), 1):
        tokens += standing
        found = speedup(tokens, step_s(length), plain_s)
        if found > best.speedup:
            best = BestLength(length, found)
    return best


def _check_length(draft_length: int) -> None:
    if not 0 <= draft_length <= MOST_DRAFTS:
        raise ConfigError(
            given=f"a draft length of {draft_length}",
            expected=f"0 to {MOST_DRAFTS} tokens",
            remedy="Correct it",
        )


def _check_chances(chances: Sequence[float]) -> None:
    for chance in chances:
        if not 0.0 <= chance <= 1.0:
            raise ConfigError(
                given=f"an acceptance of {chance:g}",
                expected="a chance, 0 to 1: accepted drafts / drafts that were checked",
                remedy="Write 80 % as 0.8",
            )


def _check_times(**times: float) -> None:
    for name, value in times.items():
        if not 0.0 < value < float("inf"):
            raise ConfigError(
                given=f"{name} = {value:g}",
                expected="a positive time",
                remedy="Give the time of one step of the batch in question",
            )
