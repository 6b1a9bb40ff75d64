"""From results and chunks to OpenAI's objects."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.models.tokenizer import Tokenizer
from paceline.records import GenerationResult, PositionLogprobs, StreamChunk


def usage(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Return token counts; a prompt counts once for all of its choices."""
    prompts = {result.id: result for result in results}.values()
    num_prompt = sum(result.usage.prompt_tokens for result in prompts)
    num_output = sum(result.usage.completion_tokens for result in results)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(result.num_cached_tokens for result in prompts)},
    }


def token_text(tokenizer: Tokenizer, token_id: int) -> tuple[str, list[int]]:
    """Return a token as text and its bytes; a control token, which has none, as its file spells it."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.token_string(token_id), []
    return data.decode("utf-8", "replace"), list(data)


def chat_logprobs(tokenizer: Tokenizer, positions: Iterable[PositionLogprobs]) -> dict[str, Any]:
    """Return log-probabilities in the form of chat completions."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text, data = token_text(tokenizer, token_id)
        return {"token": text, "logprob": logprob, "bytes": data}

    content = [
        {
            **entry(position.token_id, position.logprob),
            "top_logprobs": [entry(token_id, logprob) for token_id, logprob in position.top],
        }
        for position in positions
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], offset: int
) -> dict[str, Any]:
    """Return log-probabilities in the form of plain completions.

    Args:
        tokenizer: the target's.
        positions: of the tokens.
        offset: characters of the answer before them.
    """
    tokens = [token_text(tokenizer, position.token_id)[0] for position in positions]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [position.logprob for position in positions],
        "top_logprobs": [
            # Best last: of tokens that look alike, it is the one that is kept.
            {token_text(tokenizer, token_id)[0]: logprob for token_id, logprob in reversed(position.top)}
            for position in positions
        ],
        "text_offset": offsets,
    }


class Pieces:
    """The text of one choice token by token, with whether each was drafted; for whoever wants to show it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, chunk: StreamChunk) -> dict[str, Any]:
        """Return what is to be said of a chunk's tokens.

        A character that several tokens make up belongs to the last of them.
        """
        pieces = [
            {"text": self._decoder.decode(self._tokenizer.token_bytes(token_id)), "is_draft": is_draft}
            for token_id, is_draft in zip(chunk.token_ids, chunk.is_draft, strict=True)
        ]
        return {"num_tokens": len(pieces), "num_accepted": chunk.num_accepted, "pieces": pieces}
