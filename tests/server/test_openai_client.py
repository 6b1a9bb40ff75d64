"""The real `openai` client against a real server: what it asks for is what it gets."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from paceline.llm import LLM
from paceline.parameters import StructuredOutput
from paceline.records import SamplingParams
from tests.server.running import Running

CHAT: list[Any] = [{"role": "user", "content": "the def"}]
LONG = {"ignore_eos": True, "min_tokens": 1}


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client("key-of-team-b")


@pytest.fixture(scope="module")
def alone(server: Running) -> LLM:
    """Return the same models without a server."""
    engine = server.settings.engine.model_copy(
        update={"routes": {}, "default_route": None, "speculation": False}
    )
    return LLM.from_settings(engine)


def test_a_chat_is_answered_as_the_python_api_answers_it(client: openai.OpenAI, alone: LLM) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_completion_tokens=24,
        seed=3,
        temperature=0.9,
        top_p=0.8,
        extra_body=LONG,
    )
    params = SamplingParams(max_tokens=24, seed=3, temperature=0.9, top_p=0.8, ignore_eos=True, min_tokens=1)
    (expected,) = alone.chat(CHAT, params)
    (choice,) = answer.choices
    assert choice.message.content == expected.text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_a_stream_has_the_text_of_the_whole_answer_and_counts_it(client: openai.OpenAI) -> None:
    call: dict[str, Any] = {"model": "tiny", "messages": CHAT, "max_tokens": 30, "seed": 5, "n": 2}
    whole = client.chat.completions.create(**call, extra_body=LONG)
    texts, reasons, usage = ["", ""], {}, None
    with client.chat.completions.create(
        **call, stream=True, stream_options={"include_usage": True}, extra_body=LONG
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert reasons == {0: "length", 1: "length"}
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 60


def test_each_choice_is_the_only_answer_of_its_own_seed(client: openai.OpenAI) -> None:
    several = client.completions.create(model="tiny", prompt="the", max_tokens=12, n=3, extra_body=LONG)
    seeds = [choice.model_extra["seed"] for choice in several.choices if choice.model_extra]
    assert len(set(seeds)) == 3
    for choice, seed in zip(several.choices, seeds, strict=True):
        one = client.completions.create(
            model="tiny", prompt="the", max_tokens=12, extra_body={**LONG, "seed": seed}
        )
        assert one.choices[0].text == choice.text


def test_several_prompts_are_answered_in_their_order(client: openai.OpenAI, alone: LLM) -> None:
    prompts = ["the def", "return in", "to he th"]
    answer = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=9, n=2, seed=8, temperature=0.0, extra_body=LONG
    )
    expected = alone.generate(prompts, SamplingParams(max_tokens=9, n=2, seed=8, ignore_eos=True))
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [result.text for result in expected]
    pieces = [""] * 6
    for chunk in client.completions.create(
        model="tiny", prompt=prompts, max_tokens=9, n=2, seed=8, temperature=0.0, stream=True, extra_body=LONG
    ):
        for part in chunk.choices:
            pieces[part.index] += part.text
    assert pieces == [choice.text for choice in answer.choices]


def test_token_ids_are_a_prompt(client: openai.OpenAI, alone: LLM) -> None:
    answer = client.completions.create(
        model="tiny", prompt=[5, 6, 7], max_tokens=5, temperature=0.0, extra_body=LONG
    )
    (expected,) = alone.generate([[5, 6, 7]], SamplingParams(max_tokens=5, ignore_eos=True))
    assert answer.choices[0].text == expected.text


def test_log_probabilities_are_the_engine_s_whole_and_streamed(client: openai.OpenAI, alone: LLM) -> None:
    call: dict[str, Any] = {
        "model": "tiny:code", "messages": CHAT, "max_tokens": 12, "temperature": 0.0, "logprobs": True,
        "top_logprobs": 3, "extra_body": LONG,
    }  # fmt: skip
    whole = client.chat.completions.create(**call)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    (expected,) = alone.chat(CHAT, SamplingParams(max_tokens=12, logprobs=3, ignore_eos=True, min_tokens=1))
    assert expected.logprobs is not None
    assert [one.logprob for one in logprobs.content] == [one.logprob for one in expected.logprobs]
    assert [len(one.top_logprobs) for one in logprobs.content] == [3] * 12
    streamed = [
        one
        for chunk in client.chat.completions.create(**call, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for one in choice.logprobs.content or ()
    ]
    assert streamed == logprobs.content


def test_log_probabilities_of_plain_completions_have_their_old_form(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="the", max_tokens=6, logprobs=2, temperature=0.0, extra_body=LONG
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset or ()) == 6
    assert all(1 <= len(one) <= 2 for one in logprobs.top_logprobs)
    assert all(
        value == pytest.approx(max(top.values()))
        for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    )


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    call: dict[str, Any] = {"model": "tiny", "prompt": "def", "max_tokens": 40, "seed": 1, "extra_body": LONG}
    text = client.completions.create(**call).choices[0].text
    stop = text[8:10]
    (choice,) = client.completions.create(**call, stop=[stop, "never there"]).choices
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_holds_to_a_json_schema(client: openai.OpenAI, stream: bool, alone: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    answer: Any = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_tokens=100,
        seed=2,
        stream=stream,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "thing", "schema": schema, "strict": True},
        },
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert set(json.loads(text)) == {"a", "b"}
    params = SamplingParams(
        temperature=1.0, seed=2, max_tokens=100, structured_output=StructuredOutput(json_schema=schema)
    )
    assert text == alone.chat(CHAT, params)[0].text


def test_speculation_is_shown_on_request_and_switched_for_one_request(client: openai.OpenAI) -> None:
    call: dict[str, Any] = {
        "model": "tiny:code", "prompt": "the def return", "max_tokens": 40, "temperature": 0.0,
    }  # fmt: skip

    def ask(**speculation: Any) -> Any:
        extra = {**LONG, "return_speculation": True, "speculation": speculation}
        return client.completions.create(**call, extra_body=extra).choices[0]

    on, off = ask(), ask(enabled=False)
    assert on.text == off.text
    record = on.speculation
    assert record["drafter"] == "model"
    assert record["route"] == "code"
    assert record["state"] == "speculating"
    assert record["num_drafted"] == sum(record["drafted_by_position"]) > 0
    assert record["num_accepted"] == sum(record["accepted_by_position"])
    assert len(record["drafted_by_position"]) <= 3
    assert off.speculation["num_drafted"] == 0
    shorter = ask(max_draft_length=1).speculation
    assert len(shorter["drafted_by_position"]) == 1


def test_a_stream_says_which_tokens_were_drafted(client: openai.OpenAI) -> None:
    text, pieces, record = "", [], {}
    for chunk in client.completions.create(
        model="tiny:code", prompt="the the the", max_tokens=40, temperature=0.0, stream=True,
        extra_body={**LONG, "return_speculation": True},
    ):  # fmt: skip
        (choice,) = chunk.choices
        text += choice.text
        assert choice.model_extra
        if choice.finish_reason is None:
            pieces += choice.model_extra["speculation"]["pieces"]
        else:
            record = choice.model_extra["speculation"]
    assert "".join(piece["text"] for piece in pieces) == text
    assert len(pieces) == 40
    assert sum(piece["is_draft"] for piece in pieces) == record["num_accepted"]


def test_a_request_may_not_ask_for_more_than_its_route_allows(client: openai.OpenAI) -> None:
    for route, wish, word in (
        ("batch", {"enabled": True}, "off"),
        ("code", {"max_draft_length": 9}, "at most 3"),
    ):
        with pytest.raises(openai.BadRequestError, match=word):
            client.completions.create(model=f"tiny:{route}", prompt="a", extra_body={"speculation": wish})


def test_parts_of_text_and_developers_are_messages(client: openai.OpenAI) -> None:
    parts: list[Any] = [{"type": "text", "text": "the "}, {"type": "text", "text": "def"}]
    calls: list[list[Any]] = [
        [{"role": "system", "content": "in"}, {"role": "user", "content": "the def"}],
        [{"role": "developer", "content": "in"}, {"role": "user", "content": parts}],
    ]
    texts = [
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=9, temperature=0.0, extra_body=LONG
        ).choices[0].message.content
        for messages in calls
    ]  # fmt: skip
    assert texts[0] == texts[1]


def test_a_conversation_goes_on_with_the_answer_as_the_client_has_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=4, extra_body=LONG)
    messages = [*CHAT, answer.choices[0].message, *CHAT]
    again = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, extra_body=LONG)
    assert again.usage is not None
    assert answer.usage is not None
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens + 4


def test_models_are_listed_with_their_routes(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["tiny", "tiny:chat", "tiny:code", "tiny:batch"]
    assert client.models.retrieve("tiny:code").id == "tiny:code"
    with pytest.raises(openai.NotFoundError, match="tiny:batch"):
        client.models.retrieve("other")
