"""Tools: offered through the model's chat template, called in the form that the template teaches.

Served are templates that show tools and write calls as Qwen's and Hermes' do: a JSON object with name and
arguments between `<tool_call>` tags. Where a call is required, the answer is held to that object by a schema.
Qwen2.5-Coder is shown the tags and writes a fenced JSON block instead: an answer that is one such block, with
the name of a tool that was offered, is a call too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ChatTemplateError, InvalidParameterError
from paceline.models.chat_template import ChatTemplate
from paceline.parameters import StructuredOutput
from paceline.server.schemas import ChatBody, ChatMessage, NamedTool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FENCE = "```json"
_FENCED = re.compile(r"\s*```json\s*(\{.*\})\s*```\s*", re.DOTALL)
_PROBE = "paceline_probe"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about tools."""

    shown: tuple[Mapping[str, Any], ...]
    """Tools that the template shows to the model."""
    names: frozenset[str]
    form: StructuredOutput | None
    """The form of an answer that has to be a call; none where the model may choose."""


def tool_use(body: ChatBody) -> ToolUse | None:
    """Return what a request says about tools; none where it has none, or wants no call.

    Raises:
        InvalidParameterError: it chooses among tools that are not there, or asks for what is not served.
    """
    choice = body.tool_choice or "auto"
    if not body.tools:
        if body.tool_choice not in (None, "none") or body.parallel_tool_calls is not None:
            raise _refused(
                "tool_choice or parallel_tool_calls without tools", "tools beside it", "Leave it out"
            )
        return None
    if choice == "none":
        return None
    if body.response_format is not None and body.response_format.type != "text":
        raise _refused("tools beside response_format", "one of them", "Leave one of them out")
    if body.parallel_tool_calls is False and choice == "auto":
        raise _refused(
            "parallel_tool_calls = false with tool_choice = 'auto'",
            "true: how many calls come is the model's choice then",
            "Leave it out, or set tool_choice to 'required', which gives one call",
        )
    by_name = {tool.function.name: tool for tool in body.tools}
    if len(by_name) < len(body.tools):
        raise _refused("two tools of one name", "a name of its own for each", "Rename one of them")
    wanted = list(by_name)
    if isinstance(choice, NamedTool):
        wanted = [choice.function.name]
        if wanted[0] not in by_name:
            raise _refused(f"tool_choice {wanted[0]!r:.80}", f"one of {list(by_name)}", "Correct the name")
    shown = tuple(tool.model_dump(exclude_none=True, exclude_unset=True) for tool in body.tools)
    form = None
    if choice != "auto":
        calls = [_call_schema(name, by_name[name].function.parameters) for name in wanted]
        form = StructuredOutput(json_schema=calls[0] if len(calls) == 1 else {"anyOf": calls})
    return ToolUse(shown, frozenset(by_name), form)


def message_calls(message: ChatMessage) -> dict[str, Any]:
    """Return a message's calls as templates know them, with arguments as objects.

    Raises:
        InvalidParameterError: arguments are no JSON object.
    """
    calls = []
    for call in message.tool_calls or ():
        try:
            arguments = json.loads(call.function.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise _refused(
                f"arguments of a call of {call.function.name!r:.80} that are no JSON object",
                "a JSON object as text",
                "Send the call as the server answered it",
            )
        function = {"name": call.function.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    return {"tool_calls": calls} if calls else {}


def has_tools(template: ChatTemplate) -> bool:
    """Whether a template shows tools, and writes calls and their results in the form that is served."""
    tool = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {}}}
    call = {"id": "a", "type": "function", "function": {"name": _PROBE, "arguments": {}}}
    user: dict[str, Any] = {"role": "user", "content": "a"}
    answered = [
        user,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "b"},
    ]
    try:
        return _PROBE in template.render([user], tools=[tool]) and OPEN in template.render(answered)
    except ChatTemplateError:
        return False


def check_tools(template: ChatTemplate | None) -> None:
    """Refuse tools, and messages of them, for a model that does not know them.

    Raises:
        InvalidParameterError: its template has no tools, or writes their calls in another form.
    """
    if template is None or not has_tools(template):
        raise _refused(
            "tools, or messages with calls of them, for a model whose chat template has none",
            f"a model whose template shows tools and writes calls between {OPEN} tags, such as Qwen2.5",
            "Leave them out, or serve such a model",
        )


class ToolText:
    """Tells what an answer says from what it calls, while it comes.

    Args:
        use: of its request.
    """

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._held = ""
        self._may_be_fenced = True
        """As long as nothing was said that no fenced call begins with."""

    def push(self, text: str) -> str:
        """Take text in and return what of it is certainly said."""
        self._held += text
        if self._use.form is not None:
            return ""
        self._may_be_fenced = self._may_be_fenced and self._begins_fenced_call()
        if self._may_be_fenced:
            return ""
        at = self._held.find(OPEN)
        if at < 0:
            at = next(
                (at for at in range(max(0, len(self._held) - len(OPEN)), len(self._held))
                 if OPEN.startswith(self._held[at:])),
                len(self._held),
            )  # fmt: skip
        said, self._held = self._held[:at], self._held[at:]
        return said

    def finish(self, request_id: str) -> tuple[str, list[dict[str, Any]]]:
        """Return what is said besides, and the calls; what is not wholly a call counts as said."""
        fenced = _FENCED.fullmatch(self._held) if self._may_be_fenced else None
        if self._use.form is not None:
            texts: Sequence[str] | None = [self._held]
        else:
            texts = [fenced[1]] if fenced is not None else _between_tags(self._held)
        calls = [call for text in texts or () if (call := self._call(text)) is not None]
        if not texts or len(calls) < len(texts):
            return self._held, []
        return "", [
            {"index": place, "id": f"call_{request_id}_{place}", "type": "function", "function": call}
            for place, call in enumerate(calls)
        ]

    def _begins_fenced_call(self) -> bool:
        """Whether what is held may go on to be a fenced call of a tool that was offered, or is one."""
        dense = "".join(self._held.split())
        heads = (f'{FENCE}{{"name":"{name}"' for name in self._use.names)
        return any(dense.startswith(head) or head.startswith(dense) for head in heads)

    def _call(self, text: str) -> dict[str, str] | None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("name") not in self._use.names:
            return None
        arguments = found.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        return {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}


def _between_tags(text: str) -> Sequence[str] | None:
    """Return what stands between tags; none where something stands outside of them."""
    found = []
    rest = text.strip()
    while rest:
        if not rest.startswith(OPEN) or CLOSE not in rest:
            return None
        inner, _, rest = rest.removeprefix(OPEN).partition(CLOSE)
        found.append(inner)
        rest = rest.lstrip()
    return found


def _call_schema(name: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": dict(parameters or {"type": "object"})},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _refused(given: str, expected: str, remedy: str) -> InvalidParameterError:
    return InvalidParameterError(given, expected, remedy)
