"""Asking a draft model how it would have fared on text that stands already."""

from __future__ import annotations

import logging
from contextlib import suppress

from paceline.drafters.interface import Drafter, ScoreRequest, ScoresText
from paceline.engine.scheduler import PlannedSequence

log = logging.getLogger(__name__)


def score_text(part: PlannedSequence, drafter: Drafter) -> tuple[tuple[float, bool], ...]:
    """Ask about a sequence's own text; a drafter that fails says nothing, which costs nobody anything."""
    sequence = part.sequence
    assert isinstance(drafter, ScoresText)
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    try:
        (scored,) = drafter.score(
            [ScoreRequest(sequence.number, sequence.token_ids, sequence.sampling.fresh(prompt), len(prompt))]
        )
    except Exception:
        log.warning("the draft model could not score a sequence", exc_info=True)
        with suppress(Exception):  # it has failed once already, and nothing depends on it
            drafter.release(sequence.number)
        return ()
    return scored
