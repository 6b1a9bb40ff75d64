"""Tools: shown by templates that have them, called in their form, required where a request says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from paceline.server.schemas import ChatBody
from paceline.server.tools import ToolText, ToolUse, tool_use
from tests.server.running import Running, limits, running, settings_of
from tests.tiny_models import CHATML, TinyModel

WITH_TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}}</tool_call>{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MOVE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {"to": {"enum": ["left", "right"]}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}
STAY: dict[str, Any] = {
    "type": "function",
    "function": {"name": "stay", "parameters": {"type": "object", "additionalProperties": False}},
}
CHAT: list[Any] = [{"role": "user", "content": "the def"}]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("tools") / "tiny.gguf"
    TinyModel("qwen2", is_tied=True, chat_template=WITH_TOOLS).write(path)
    with running(settings_of(target=str(path), **limits())) as found:
        yield found


@pytest.fixture(scope="module")
def client(state: Running) -> openai.OpenAI:
    return state.client()


def body(**values: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "tiny", "messages": CHAT, **values})


def use(choice: Any = "auto") -> ToolUse:
    found = tool_use(body(tools=[MOVE, STAY], tool_choice=choice))
    assert found is not None
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_is_named_is_called_within_its_schema(client: openai.OpenAI, stream: bool) -> None:
    choice: Any = {"type": "function", "function": {"name": "move"}}
    answer: Any = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        tools=[MOVE, STAY],
        tool_choice=choice,
        seed=1,
        max_tokens=200,
        stream=stream,
    )
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        assert "".join(one.delta.content or "" for one in choices) == ""
        (call,) = choices[-1].delta.tool_calls
        reason = choices[-1].finish_reason
    else:
        reason, message = answer.choices[0].finish_reason, answer.choices[0].message
        assert message.content is None
        (call,) = message.tool_calls
    assert reason == "tool_calls"
    assert call.function.name == "move"
    assert json.loads(call.function.arguments)["to"] in ("left", "right")


def test_where_some_call_is_required_it_is_one_of_the_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, tools=[MOVE, STAY], tool_choice="required", n=6, seed=3, max_tokens=200
    )
    names = [call.function.name for one in answer.choices for call in one.message.tool_calls or ()]  # type: ignore[union-attr]
    assert len(names) == 6
    assert set(names) <= {"move", "stay"}


def test_a_call_and_its_result_are_part_of_the_next_prompt(client: openai.OpenAI, state: Running) -> None:
    choice: Any = {"type": "function", "function": {"name": "move"}}
    first = client.chat.completions.create(
        model="tiny", messages=CHAT, tools=[MOVE], tool_choice=choice, seed=1, max_tokens=200
    )
    message = first.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}
    messages: list[Any] = [*CHAT, message, result]
    second = client.chat.completions.create(
        model="tiny", messages=messages, tools=[MOVE], tool_choice="none", max_tokens=4
    )
    called: Any = message.tool_calls[0]
    arguments = json.loads(called.function.arguments)
    template = state.loaded.chat_template
    assert template is not None
    as_called = [
        *CHAT,
        {"role": "assistant", "content": None,
         "tool_calls": [{"function": {"name": "move", "arguments": arguments}}]},
        {"role": "tool", "content": "done"},
    ]  # fmt: skip
    assert second.usage is not None
    assert second.usage.prompt_tokens == len(template.encode(as_called))


def test_offering_tools_shows_them_and_no_choice_hides_them(client: openai.OpenAI) -> None:
    def prompt_tokens(**values: Any) -> int:
        answer = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=1, **values)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    plain = prompt_tokens()
    assert prompt_tokens(tools=[MOVE]) > plain + 50
    assert prompt_tokens(tools=[MOVE], tool_choice="none") == plain


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tools": [MOVE], "tool_choice": {"type": "function", "function": {"name": "run"}}}, "'run'"),
        ({"tool_choice": "required"}, "without tools"),
        ({"tools": [MOVE, MOVE]}, "one name"),
        ({"tools": [MOVE], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [MOVE], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
    ],
)
def test_what_is_not_served_is_refused(client: openai.OpenAI, values: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(model="tiny", messages=CHAT, extra_body=values)


@pytest.mark.parametrize(
    "values", [{"tools": [MOVE]}, {"messages": [*CHAT, {"role": "tool", "content": "x"}]}]
)
def test_a_model_without_tools_is_not_asked_to_use_them(server: Running, values: dict[str, Any]) -> None:
    assert "tool" not in CHATML
    with pytest.raises(openai.BadRequestError, match="template has none"):
        server.client("key-of-team-a").chat.completions.create(
            **{"model": "tiny", "messages": CHAT, **values}
        )


ONE = '<tool_call>\n{"name": "move", "arguments": {"to": "left"}}\n</tool_call>'
TWO = '<tool_call>{"name": "stay"}</tool_call>'


FENCED = '```json\n{\n  "name": "move",\n  "arguments": {"to": "left"}\n}\n```'


@pytest.mark.parametrize(
    ("text", "said", "names"),
    [
        (ONE, "", ["move"]),
        (f"I will.\n{ONE}\n{TWO}\n", "I will.\n", ["move", "stay"]),
        ("a < b <tool", "a < b <tool", []),
        ("no call", "no call", []),
        (ONE[:-3], ONE[:-3], []),
        (ONE.replace("move", "run"), ONE.replace("move", "run"), []),
        (f"{ONE} and more", f"{ONE} and more", []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        (FENCED, "", ["move"]),
        (f"\n{FENCED}\n", "", ["move"]),
        (FENCED.replace("move", "run"), FENCED.replace("move", "run"), []),
        (f"{FENCED}\nSo be it.", f"{FENCED}\nSo be it.", []),
        (f"As follows:\n{FENCED}", f"As follows:\n{FENCED}", []),
        (FENCED[:-5], FENCED[:-5], []),
        ('```json\n{"name": 1}\n```', '```json\n{"name": 1}\n```', []),
        ("```python\nmove()\n```", "```python\nmove()\n```", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_told_from_text_however_it_is_cut(
    text: str, said: str, names: list[str], size: int
) -> None:
    parser = ToolText(use())
    shown = "".join(parser.push(text[start : start + size]) for start in range(0, len(text), size))
    rest, calls = parser.finish("r")
    assert shown + rest == said
    assert [call["function"]["name"] for call in calls] == names
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.models
def test_a_real_model_calls_a_tool(preset_path: Any, tmp_path: Path) -> None:
    preset_path("qwen2.5-coder-0.5b-instruct")
    settings = settings_of(target="qwen2.5-coder-0.5b-instruct", **{**limits(), "context_length": 1024})
    choice: Any = {"type": "function", "function": {"name": "move"}}
    with running(settings) as state:
        answer = state.client().chat.completions.create(
            model="qwen2.5-coder-0.5b-instruct",
            messages=[{"role": "user", "content": "Move to the right."}],
            tools=[MOVE],
            tool_choice=choice,
            temperature=0,
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert json.loads(calls[0].function.arguments) == {"to": "right"}


def test_text_that_cannot_be_a_fenced_call_is_not_held_back() -> None:
    parser = ToolText(use())
    assert parser.push('```json\n{"na') == ""
    assert parser.push('me": "mo') == ""
    assert parser.push('on"') == '```json\n{"name": "moon"'
    assert parser.push(": 1}") == ": 1}"


@pytest.mark.models
def test_a_real_model_that_may_choose_calls_a_tool(preset_path: Any) -> None:
    model = "qwen2.5-coder-1.5b-instruct"
    preset_path(model)
    weather: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    asked: Any = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris right now?"}],
        "tools": [weather],
        "temperature": 0,
        "max_tokens": 64,
    }
    with running(settings_of(target=model, **{**limits(), "context_length": 1024})) as state:
        completions = state.client().chat.completions
        answer = completions.create(**asked).choices[0]
        deltas = [chunk.choices[0].delta for chunk in completions.create(**asked, stream=True)]
    (call,) = answer.message.tool_calls or ()
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    streamed = [part.function for delta in deltas for part in delta.tool_calls or ()]
    assert [(one.name, one.arguments) for one in streamed] == [(call.function.name, call.function.arguments)]
    assert not any(delta.content for delta in deltas)
