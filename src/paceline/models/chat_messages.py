"""What a message is, before any template sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameterError

Message = Mapping[str, Any]
"""A role and a content, and what else a template knows: tool calls, names."""


def check_messages(messages: object) -> None:
    """Check that these are messages: a list of objects with a role and a text.

    Raises:
        InvalidParameterError: they are not; names the first that is wrong.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise _bad("messages", messages, 'a list such as [{"role": "user", "content": "Hello"}]')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _bad(
                f"messages[{index}]", message, 'an object such as {"role": "user", "content": "Hello"}'
            )
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise _bad(f"messages[{index}]: role", role, "a string such as user, assistant or system")
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise _bad(f"messages[{index}]: content", content, "a string")


def _bad(name: str, value: object, expected: str) -> InvalidParameterError:
    shown = repr(value)
    return InvalidParameterError(
        given=f"{name} = {shown if len(shown) <= 80 else shown[:77] + '...'}",
        expected=expected,
        remedy="Change the messages",
    )
