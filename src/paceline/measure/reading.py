"""Drafters read answers that stand: a draft model in passes over the text, a look-up token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import DraftRequest, ScoreRequest
from paceline.drafters.model import ModelDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.errors import CapacityError
from paceline.measure.load import LoadRequest
from paceline.measure.replay import MOST_DRAFTS, Reading
from paceline.measure.setting import SUFFIX
from paceline.records import SamplingParams, Verification
from paceline.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target said without drafts."""

    request: LoadRequest
    token_ids: tuple[int, ...]

    @property
    def text_ids(self) -> list[int]:
        """Prompt and output."""
        return [*self.request.prompt_token_ids, *self.token_ids]


def read_with_model(
    drafter: ModelDrafter,
    name: str,
    number: int,
    answer: Answer,
    state: SamplingState,
) -> Reading:
    """Let a draft model read an answer, and return where it would have drawn the same token.

    Args:
        drafter: with room for the whole text.
        name: of the drafter, for the reading.
        number: a sequence number that is nobody's.
        answer: with at least one token.
        state: the request's sampling state, with no output; it is moved along the answer.

    Raises:
        CapacityError: there is no room for the text.
    """
    text, num_prompt = answer.text_ids, len(answer.request.prompt_token_ids)
    scored: list[tuple[float, bool]] = []
    try:
        while len(scored) < len(answer.token_ids):
            before = drafter.num_cached_tokens(number)
            (found,) = drafter.score([ScoreRequest(number, text, state.fresh(text[:num_prompt]), num_prompt)])
            scored += found
            if drafter.num_cached_tokens(number) == before:
                raise CapacityError(
                    given=f"a text of {len(text)} tokens for the draft model to read",
                    expected="room for it in the KV memory",
                    remedy="Raise --kv-memory, or leave long prompts out",
                )
    finally:
        drafter.take_pass_rows()
        drafter.release(number)
    return Reading(
        name,
        answer.request.id,
        matches=tuple(is_right for _, is_right in scored),
        confidences=tuple(confidence for confidence, _ in scored),
    )


def read_with_suffix(answer: Answer, store: AnswerStore | None) -> Reading:
    """Look an answer's own beginnings up, place by place, and return what would have been drafted.

    Args:
        answer: with at least one token.
        store: of other answers of its route; none looks into the text itself alone.
    """
    drafter = SuffixDrafter(answers=store)
    state = SamplingState(SamplingParams(), 0, (), (), 1)
    text, num_prompt = answer.text_ids, len(answer.request.prompt_token_ids)
    proposed, agreed, lengths = [], [], []
    for place in range(len(answer.token_ids)):
        known = text[: num_prompt + place]
        request = DraftRequest(0, known, MOST_DRAFTS, state, Verification.COUPLED, answer.request.route)
        match = drafter.match(request)
        drafts = drafter.propose_from(match, MOST_DRAFTS).token_ids
        proposed.append(len(drafts))
        agreed.append(_num_equal(drafts, answer.token_ids[place:]))
        lengths.append(match.length)
    return Reading(
        SUFFIX,
        answer.request.id,
        proposed=tuple(proposed),
        agreed=tuple(agreed),
        match_lengths=tuple(lengths),
    )


def _num_equal(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    count = 0
    for drafted, stands in zip(drafts, tokens, strict=False):
        if drafted != stands:
            break
        count += 1
    return count
