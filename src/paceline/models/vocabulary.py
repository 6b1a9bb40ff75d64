"""Whether two models mean the same by a token id, without which one cannot draft for the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from paceline.errors import VocabularyMismatchError
from paceline.models.tokenizer import Tokenizer


def check_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Check that every real token is the same string in both, and that the same tokens end an answer.

    Padding rows at the end of a vocabulary, which are never proposed, may differ in number.

    Raises:
        VocabularyMismatchError: they differ; names the first id that does, and what it is in each.
    """
    real_target = target.token_strings[: target.num_real_tokens]
    real_draft = draft.token_strings[: draft.num_real_tokens]
    if real_target != real_draft:
        first = _first_difference(real_target, real_draft)
        raise _mismatch(
            f"token {first} is {_name(real_target, first)} in the target "
            f"and {_name(real_draft, first)} in the draft model",
            "the same string for every token of both",
        )
    if differing := target.eos_ids ^ draft.eos_ids:
        first = min(differing)
        one, other = ("target", "draft model") if first in target.eos_ids else ("draft model", "target")
        raise _mismatch(
            f"token {first} ({_name(real_target, first)}) ends an answer in the {one} and not in the {other}",
            "the same end tokens (tokenizer.ggml.eos_token_id and the end-of-turn tokens) in both",
        )


def _first_difference(one: Sequence[str], other: Sequence[str]) -> int:
    shorter = min(len(one), len(other))
    return next(index for index in count() if index == shorter or one[index] != other[index])


def _name(strings: Sequence[str], token_id: int) -> str:
    return repr(strings[token_id]) if token_id < len(strings) else "no token"


def _mismatch(given: str, expected: str) -> VocabularyMismatchError:
    return VocabularyMismatchError(
        given=given,
        expected=expected,
        remedy="Choose a draft model of the target's own family, or leave the draft model out",
    )
