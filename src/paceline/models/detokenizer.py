"""Token ids to text as they come, and stop strings in that text.

Text is only ever emitted when nothing that follows can change it: not half a character, and not what may yet
turn out to be the beginning of a stop string.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Callable, Sequence

from paceline.errors import InvalidParameterError
from paceline.models.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one answer, token by token.

    However the tokens are cut into pushes, the pieces returned add up to the same `text`, which is also what
    decoding all of them at once and cutting at the stop string gives.

    - Bytes that are no UTF-8 become U+FFFD. The bytes of a character that the answer cuts off at its end are
      dropped: they never appear, streamed or not.
    - The stop string that is complete first ends the text, which then stops just before it. Of several that
      are complete at the same character, the one that began first (the longest) counts. One that is complete
      before `min_tokens` tokens were pushed has no effect, and stays in the text.
    - Work for each token is proportional to its own text and the longest stop string.
    """

    def __init__(
        self,
        tokens: Tokenizer | Callable[[int], bytes],
        stop: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        """Start an empty text.

        Args:
            tokens: a tokenizer, or a function from a token id to the bytes that it adds to a text.
            stop: strings that end the text, each of at least one character.
            min_tokens: stop strings have no effect before this many tokens.

        Raises:
            InvalidParameterError: a stop string is empty.
        """
        if not all(stop):
            raise InvalidParameterError(
                given="an empty stop string",
                expected="stop strings of at least one character",
                remedy="Leave it out",
            )
        self._token_bytes = tokens.token_bytes if isinstance(tokens, Tokenizer) else tokens
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # decoded, and perhaps the beginning of a stop string
        self._pieces: list[str] = []
        self._num_kept = 0  # characters in self._pieces
        self._num_decoded: list[int] = []  # characters decoded after each token
        self._is_flushed = False
        self.matched_stop: str | None = None
        """The stop string that ended the text, if one did."""

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that has become certain, which may be none.

        After a stop string was found, further tokens change nothing.

        Raises:
            ValueError: the text was flushed, so that nothing can follow.
        """
        if self._is_flushed:
            raise ValueError(f"token {token_id} pushed after flush")
        if self.matched_stop is not None:
            return ""
        new = self._decoder.decode(self._token_bytes(token_id))
        self._num_decoded.append(len(new) + (self._num_decoded[-1] if self._num_decoded else 0))
        window = self._held + new
        found = self._first_match(window) if len(self._num_decoded) >= self._min_tokens else None
        if found is not None:
            start, self.matched_stop = found
            self._held = ""
            return self._keep(window[:start])
        certain = len(window) - self._num_uncertain(window)
        self._held = window[certain:]
        return self._keep(window[:certain])

    def flush(self) -> str:
        """End the text and return what was held back; a character cut off is dropped."""
        self._is_flushed = True
        held, self._held = self._held, ""
        return self._keep(held)

    @property
    def text(self) -> str:
        """All text returned so far; after `flush`, or once a stop string was found, the answer's text."""
        return "".join(self._pieces)

    @property
    def num_kept_tokens(self) -> int:
        """The fewest tokens, from the first, whose text covers `text`; 0 where there is none."""
        return bisect.bisect_left(self._num_decoded, self._num_kept) + 1 if self._num_kept else 0

    def _keep(self, text: str) -> str:
        if text:
            self._pieces.append(text)
            self._num_kept += len(text)
        return text

    def _first_match(self, window: str) -> tuple[int, str] | None:
        """Return start and string of the stop that is complete first in the text that is new in `window`."""
        matches = []
        for stop in self._stop:
            # What ends in held text was complete with an earlier token, and was judged then.
            start = window.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _num_uncertain(self, window: str) -> int:
        """Return the length of the longest end of `window` with which a stop string begins."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(window)), 0, -1):
            end = window[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0
