"""What is refused at submission, so that it cannot fail in the loop."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.drafters.interface import Drafter
from paceline.errors import EmptyPromptError, InvalidParameterError, PromptTooLongError
from paceline.records import Request
from paceline.sampling.state import check_against_vocabulary


def check_request(
    request: Request, context_length: int, vocab_size: int, drafters: Mapping[str, Drafter]
) -> None:
    """Raise a RequestError if the request could never run."""
    _check_prompt(request.prompt_token_ids, context_length, vocab_size)
    check_against_vocabulary(request.sampling, vocab_size)
    drafter = request.speculation.drafter
    if request.speculation.enabled and drafter is not None and drafter not in drafters:
        raise InvalidParameterError(
            given=f"drafter {drafter!r}",
            expected="one of " + (", ".join(map(repr, drafters)) or "none: no drafter is loaded"),
            remedy="Load a draft model, name another drafter, or switch speculation off",
        )


def _check_prompt(token_ids: tuple[int, ...], context_length: int, vocab_size: int) -> None:
    if not token_ids:
        raise EmptyPromptError(
            given="a prompt of zero tokens",
            expected="at least one token",
            remedy="Give the prompt some text",
        )
    if len(token_ids) >= context_length:
        raise PromptTooLongError(
            given=f"a prompt of {len(token_ids)} tokens",
            expected=f"at most {context_length - 1}, so that one token of output fits the context "
            f"of {context_length}",
            remedy="Shorten the prompt, or load the model with a longer context",
        )
    wrong = next((i for i in token_ids if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise InvalidParameterError(
            given=f"prompt token id {wrong}",
            expected=f"ids from 0 to {vocab_size - 1}",
            remedy="Tokenise the prompt with this model's own tokenizer",
        )
