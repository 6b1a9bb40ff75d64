"""The sums of one step's record, taken in one pass over its sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.policy.tracks import LAST_LENGTH, RouteTrack
from paceline.step_records import SequenceStep, StepRecord


@dataclass(slots=True, eq=False)
class Share:
    """One route's part in a step."""

    track: RouteTrack
    draft_lengths: list[float]
    """Of the route, to be counted on."""
    num_sequences: int = 0
    """That decoded."""
    num_tokens: int = 0
    """That joined their answers."""
    drafting: list[SequenceStep] = field(default_factory=list)
    scored: list[SequenceStep] = field(default_factory=list)


class Tally(NamedTuple):
    """All routes together."""

    shares: list[Share]
    """Of each route that took part, with prompts alone too."""
    num_decoding: int
    num_tokens: int
    """That joined answers that were being decoded."""
    context: int
    """Positions of the decoding sequences before the step."""
    num_prompt_rows: int
    prompt_context: int
    """Positions before the prompts' rows."""
    num_rows: int
    """Of the target's pass."""
    num_asked: int
    """Sequences that were to draft."""
    has_prompts: bool
    is_asking: bool
    """Whether anybody was to draft, or was scored."""
    has_draft_work: bool
    """Whether drafts were verified, or time was spent on drafting."""


def tally_of(record: StepRecord, track_of: Callable[[str | None], RouteTrack]) -> Tally:
    """Return a step's sums, and count its draft lengths.

    Args:
        record: the step.
        track_of: finds a route by the label that requests carry.
    """
    shares: dict[str | None, Share] = {}
    num_rows = context = num_drafted = num_prompt_rows = prompt_context = 0
    has_prompts = False
    for part in record.sequences:
        share = shares.get(part.route) or _share(shares, part.route, track_of)
        if not part.is_decoding:
            has_prompts = True
            num_prompt_rows += part.num_tokens
            prompt_context += part.num_context_tokens
            continue
        verified = part.num_drafted
        share.num_sequences += 1
        share.num_tokens += part.num_new_tokens
        share.draft_lengths[verified if verified < LAST_LENGTH else LAST_LENGTH] += 1.0
        context += part.num_context_tokens
        num_rows += part.num_tokens
        num_drafted += verified
        if part.draft_length:
            share.drafting.append(part)
        elif part.scored:
            share.scored.append(part)
    found = list(dict.fromkeys(shares.values()))
    num_asked = sum([len(share.drafting) for share in found])
    return Tally(
        found,
        num_decoding=sum([share.num_sequences for share in found]),
        num_tokens=sum([share.num_tokens for share in found]),
        context=context,
        num_prompt_rows=num_prompt_rows,
        prompt_context=prompt_context,
        num_rows=num_rows + num_drafted + num_prompt_rows,
        num_asked=num_asked,
        has_prompts=has_prompts,
        is_asking=num_asked > 0 or any(share.scored for share in found),
        has_draft_work=num_drafted > 0 or record.draft_s > 0,
    )


def _share(
    shares: dict[str | None, Share], label: str | None, track_of: Callable[[str | None], RouteTrack]
) -> Share:
    """Add the share of a label that is met for the first time; labels of one route have one together."""
    track = track_of(label)
    found = next((share for share in shares.values() if share.track is track), None)
    share = shares[label] = found or Share(track, track.draft_lengths)
    return share
