"""A team's own traffic: three forms of lines, what is left out and counted, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InputFileError
from paceline.measure.sample import stratified
from paceline.measure.traffic import TrafficRequest, read_traffic
from paceline.records import SamplingParams

CHAT = [{"role": "user", "content": "Hello."}]


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "traffic.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def test_lines_of_all_forms_are_read(tmp_path: Path) -> None:
    captured = {
        "id": "chatcmpl-1", "route": "code", "messages": CHAT, "time": 1.0, "answers": [{"text": "Hi."}],
        "sampling": {"temperature": 0.7, "seed": 5, "max_tokens": 99, "n": 2, "logit_bias": {"3": 1.0}},
    }  # fmt: skip
    body = {"model": "served:chat", "messages": CHAT, "max_completion_tokens": 7, "stop": "x", "stream": True}
    batch = {
        "custom_id": "b1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {**body, "model": "m"},
    }
    found = read_traffic(
        write(
            tmp_path,
            {"id": "a", "route": "rag", "prompt": "Once", "category": "x"},
            captured,
            "",
            body,
            batch,
        )
    )
    by_id = {one.id: one for one in found.requests}
    assert by_id["a"] == TrafficRequest("a", "rag", SamplingParams(), prompt="Once")
    assert by_id["chatcmpl-1"].sampling == SamplingParams(
        temperature=0.7, seed=5, max_tokens=99, logit_bias={3: 1.0}
    )
    # OpenAI's default temperature is 1, and the route is behind the model's name.
    assert by_id["line-4"].sampling == SamplingParams(temperature=1.0, max_tokens=7, stop="x")
    assert by_id["line-4"].route == "chat"
    assert by_id["b1"].route == "default"
    assert found.num_lines == 4
    assert not found.left_out


def test_parts_that_are_text_are_joined_and_developers_are_the_system(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (one,) = read_traffic(write(tmp_path, {"messages": [{"role": "developer", "content": parts}]})).requests
    assert one.messages == ({"role": "system", "content": "ab"},)


def test_what_cannot_be_measured_is_left_out_and_counted(tmp_path: Path) -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    found = read_traffic(
        write(
            tmp_path, {"messages": CHAT},
            {"model": "m", "messages": CHAT, "tools": [{"type": "function"}]},
            {"messages": [*CHAT, {"role": "tool", "content": "4"}]},
            {"model": "m", "messages": CHAT, "response_format": {"type": "json_object"}},
            {"messages": CHAT, "sampling": {"structured_output": {"json_object": True}}},
            {"messages": picture}, {"model": "m", "prompt": [1, 2]},
            {"model": "m", "messages": CHAT, "reasoning_effort": "low"},
        )
    )  # fmt: skip
    assert len(found.requests) == 1
    assert found.left_out == {
        "with tools": 2,
        "with a form that the answer must have": 2,
        "with parts that are no text": 1,
        "with several prompts, or one of token ids": 1,
        "with reasoning_effort, which is not served": 1,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: a JSON list"),
        ({"id": "x"}, "line 2: an object with keys ['id']"),
        ({"messages": CHAT, "prompt": "both"}, "line 2: an object with keys"),
        ({"messages": []}, "line 2: messages []"),
        ({"messages": [{"content": "x"}]}, "line 2: a message without a role"),
        ({"messages": [{"role": "user", "content": 4}]}, "line 2: a message with content 4"),
        ({"prompt": ""}, "line 2: prompt ''"),
        ({"prompt": "x", "route": "a b"}, "line 2: route 'a b'"),
        ({"prompt": "x", "route": 4}, "line 2: route 4"),
        ({"prompt": "x", "sampling": {"temperature": -1}}, "line 2: temperature = -1"),
        ({"prompt": "x", "sampling": {"colour": 1}}, "line 2: unknown parameter 'colour'"),
        ({"prompt": "x", "sampling": 4}, "line 2: sampling 4"),
        ({"prompt": "x", "id": "first"}, "line 2: id 'first' twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(InputFileError) as raised:
        read_traffic(write(tmp_path, {"id": "first", "prompt": "x"}, line))
    assert message in str(raised.value)


def test_a_file_without_a_request_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"1 lines, none .* \(1 with tools\)"):
        read_traffic(write(tmp_path, {"model": "m", "messages": CHAT, "tools": [{}]}))
    with pytest.raises(InputFileError, match="readable UTF-8 file"):
        read_traffic(tmp_path / "missing.jsonl")


def test_the_sample_has_as_many_of_each_route_after_every_round() -> None:
    by_route = {
        name: [TrafficRequest(f"{name}{i}", name, SamplingParams(), prompt="x") for i in range(count)]
        for name, count in (("a", 100), ("b", 5), ("c", 1))
    }
    rounds = stratified(by_route, 8, seed=3)
    assert [[one.route for one in found] for found in rounds[:2]] == [["a", "b", "c"], ["a", "b"]]
    assert Counter(one.route for found in rounds for one in found) == {"a": 8, "b": 5, "c": 1}
    drawn = [one.id for found in rounds for one in found]
    assert len(set(drawn)) == len(drawn)
    # Drawn, not the first ones; the same for a seed, and a larger sample begins with the smaller one.
    assert {one.id for found in rounds for one in found if one.route == "a"} != {f"a{i}" for i in range(8)}
    assert stratified(by_route, 8, seed=3) == rounds
    assert stratified(by_route, 20, seed=3)[:8] == rounds[:8]
