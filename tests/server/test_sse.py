"""Events put together from parts are byte for byte those that are put into JSON whole."""

from __future__ import annotations

import pytest

from paceline.server.sse import TextEvents, event


@pytest.mark.parametrize("text", ["", " a", 'say "no"\n', '""', "\\", "\x00\x1f\x7f", "é 漢 🚲", "\u2028"])
@pytest.mark.parametrize("model", ["m", ""])
def test_an_event_with_a_text_is_the_one_that_json_makes(text: str, model: str) -> None:
    def whole(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "logprobs": None}
        return event({"id": "chatcmpl-1", "model": model, "choices": [choice], "usage": None})

    assert TextEvents(whole("")).of(text) == whole(text)
