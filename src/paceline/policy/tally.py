"""The sums of one step's record, taken in one pass over its sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.policy.tracks import RouteTrack
from paceline.step_records import SequenceStep, StepRecord


@dataclass(slots=True)
class Share:
    """One route's part in a step."""

    track: RouteTrack
    num_sequences: int = 0
    """That decoded."""
    num_tokens: int = 0
    """That joined their answers."""
    drafting: list[SequenceStep] = field(default_factory=list)
    scored: list[SequenceStep] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """All routes together."""

    shares: list[Share] = field(default_factory=list)
    """Of each route that took part, with prompts alone too."""
    num_decoding: int = 0
    num_tokens: int = 0
    """That joined answers that were being decoded."""
    context: int = 0
    """Positions of the decoding sequences before the step."""
    num_prompt_rows: int = 0
    prompt_context: int = 0
    """Positions before the prompts' rows."""
    num_rows: int = 0
    """Of the target's pass."""
    num_asked: int = 0
    """Sequences that were to draft."""
    has_prompts: bool = False
    is_asking: bool = False
    """Whether anybody was to draft, or was scored."""
    has_draft_work: bool = False
    """Whether drafts were verified, or time was spent on drafting."""


def tally_of(record: StepRecord, track_of: Callable[[str | None], RouteTrack]) -> Tally:
    """Return a step's sums, and count its draft lengths.

    Args:
        record: the step.
        track_of: finds a route by the label that requests carry.
    """
    tally = Tally(has_draft_work=record.draft_s > 0)
    of_label: dict[str | None, Share] = {}
    of_name: dict[str, Share] = {}
    for part in record.sequences:
        share = of_label.get(part.route)
        if share is None:
            track = track_of(part.route)
            share = of_name.get(track.name)
            if share is None:
                share = of_name[track.name] = Share(track)
                tally.shares.append(share)
            of_label[part.route] = share
        if not part.is_decoding:
            tally.has_prompts = True
            tally.num_rows += part.num_tokens
            tally.num_prompt_rows += part.num_tokens
            tally.prompt_context += part.num_context_tokens
            continue
        num_tokens, num_drafted = part.num_new_tokens, part.num_drafted
        share.num_sequences += 1
        share.num_tokens += num_tokens
        tally.num_decoding += 1
        tally.num_tokens += num_tokens
        tally.context += part.num_context_tokens
        share.track.count_draft(num_drafted)
        tally.num_rows += part.num_tokens + num_drafted
        if num_drafted:
            tally.has_draft_work = True
        if part.draft_length:
            share.drafting.append(part)
        elif part.scored:
            share.scored.append(part)
    tally.num_asked = sum(len(share.drafting) for share in tally.shares)
    tally.is_asking = tally.num_asked > 0 or any(share.scored for share in tally.shares)
    return tally
