"""What the engine does when nobody waits: a draft model reads answers that ended, so that the policy learns
from them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.drafters.interface import Drafter, HoldsMemory, ScoreRequest, ScoresText
from paceline.engine import step as stages
from paceline.engine.sequence import Sequence
from paceline.policy.interface import DraftPolicy
from paceline.records import Verification
from paceline.sampling.state import SamplingState

log = logging.getLogger(__name__)

NUM_KEPT = 4
MOST_TOKENS = 2048
ROWS_AT_ONCE = 32
"""A request that comes waits for one pass of so many rows of the draft model, at most."""


@dataclass(slots=True)
class _Text:
    """An answer that ended, with its prompt."""

    number: int
    route: str | None
    token_ids: list[int]
    num_prompt_tokens: int
    state: SamplingState
    """With no output."""
    model: str = ""
    """The draft model that reads it."""


class IdleScoring:
    """Answers that ended, to be scored while there is nothing else to do.

    Args:
        policy: says whose answers it wants scored, and takes the scores.
        drafters: by name; those that can score.
    """

    def __init__(self, policy: DraftPolicy, drafters: Mapping[str, Drafter]) -> None:
        self._policy = policy
        self._drafters = {name: one for name, one in drafters.items() if isinstance(one, ScoresText)}
        self._texts: deque[_Text] = deque(maxlen=NUM_KEPT)

    def keep(self, sequence: Sequence) -> None:
        """Keep an answer that ended, if it could be scored; of too many, the latest."""
        request = sequence.request
        if (
            not request.speculation.is_adaptive
            or request.speculation.verification is not Verification.COUPLED
            or sequence.sampling.grammar is not None
            or not sequence.num_output_tokens > 1
            or len(sequence.token_ids) > MOST_TOKENS
            or not self._drafters
        ):
            return
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        self._texts.append(
            _Text(
                sequence.number,
                request.route,
                list(sequence.token_ids),
                sequence.num_prompt_tokens,
                sequence.sampling.fresh(prompt),
            )
        )

    def work(self) -> bool:
        """Score a little; False if there is nothing to do."""
        while self._texts and not self._is_wanted(self._texts[0]):
            self._drop()
        if not self._texts:
            return False
        drafter = self._drafters[self._texts[0].model]
        if not isinstance(drafter, HoldsMemory):
            return False
        text, before = self._texts[0], drafter.num_cached_tokens(self._texts[0].number)
        asked = ScoreRequest(
            text.number, text.token_ids, text.state.fresh(text.token_ids[: text.num_prompt_tokens]),
            text.num_prompt_tokens, ROWS_AT_ONCE,
        )  # fmt: skip
        try:
            (scored,) = drafter.score([asked])
        except Exception:
            log.warning("the draft model could not score an answer", exc_info=True)
            self._drop()
            return True
        drafter.take_pass_rows()  # no step's
        if scored:
            self._policy.on_scored(text.route, text.model, scored)
        # Without room, or at its end, there is no more to be had from this one.
        if drafter.num_cached_tokens(text.number) in (before, len(text.token_ids) - 1):
            self._drop()
        return True

    def _is_wanted(self, text: _Text) -> bool:
        """Whether a text is to be scored; the draft model that began with it goes on."""
        wanted = self._policy.wants_scored(text.route)
        if wanted is None or (not text.model and wanted not in self._drafters):
            return False
        text.model = text.model or wanted
        return True

    def _drop(self) -> None:
        text = self._texts.popleft()
        if text.model:
            stages.release(self._drafters[text.model], text.number)
