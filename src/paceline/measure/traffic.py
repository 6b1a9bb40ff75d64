"""A sample of a team's own traffic: JSON lines in one of three forms, told apart line by line.

- a body of OpenAI's API, `{"model": ..., "messages": [...], ...}`, alone or as the `body` of a batch file;
- `{"id", "route", "messages" or "prompt"}`, the form that `--input` of other commands reads;
- what the server captured: the same with `sampling`, and answers, which are not read.

What cannot be measured (a form that the answer must have, tools, pictures) is left out and counted, by
reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.server import ROUTE_NAME
from paceline.errors import InputFileError, InvalidParameterError
from paceline.measure.json_lines import label_of, numbered_lines, parse_object, refused_line
from paceline.records import SamplingParams

DEFAULT_ROUTE = "default"
"""The route of lines that name none."""
EXPECTED = (
    'a JSON object with "messages" (a list) or "prompt" (a text), and "id", "route" and "sampling" if given'
)
_SAMPLING_KEYS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
)  # fmt: skip
_LABELS = (
    "model", "messages", "prompt", "route", "id", "n", "stream", "stream_options", "user", "metadata",
    "store", "safety_identifier", "prompt_cache_key", "service_tier", "speculation", "return_speculation",
    "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens", "parallel_tool_calls", "tool_choice",
)  # fmt: skip
"""Keys of bodies that are read elsewhere, or that change no token of the first answer."""


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One line: a conversation or a raw prompt, and how its answer was asked for."""

    id: str
    route: str
    sampling: SamplingParams
    """With the traffic's own cap on tokens, if it had one, and one choice."""
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a file holds."""

    requests: tuple[TrafficRequest, ...]
    num_lines: int
    left_out: Mapping[str, int]
    """Lines that cannot be measured, by reason."""

    def by_route(self, wanted: Sequence[str] | None = None) -> dict[str, list[TrafficRequest]]:
        """Return the requests of each route, in the file's order; of the wanted ones alone, in theirs."""
        found: dict[str, list[TrafficRequest]] = {name: [] for name in wanted or ()}
        for one in self.requests:
            if wanted is None or one.route in found:
                found.setdefault(one.route, []).append(one)
        return found


class _LeftOutError(Exception):
    """A sound line that cannot be measured; its text is the reason."""


def read_traffic(path: Path, routes: Mapping[str, str] | None = None) -> Traffic:
    """Return the traffic of a file.

    Args:
        path: JSON lines; blank ones are passed over.
        routes: routes that are counted with another one, by name.

    Raises:
        InputFileError: the file cannot be read, has no line that can be measured, or a line is in none of the
            forms; it names the line.
    """
    try:
        numbered = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            given=f"traffic {str(path)!r}: {error}",
            expected="a readable UTF-8 file with one JSON object a line",
            remedy="Check the path and the file's encoding",
        ) from None
    found: dict[str, TrafficRequest] = {}
    left_out: Counter[str] = Counter()
    for number, text in numbered:
        where = f"{path}, line {number}"
        try:
            one = _parse(text, where, number, routes or {})
        except _LeftOutError as reason:
            left_out[str(reason)] += 1
            continue
        if one.id in found:
            raise InputFileError(
                given=f"{where}: id {one.id!r} twice",
                expected="a different id for each line",
                remedy="Rename one of them, or leave ids out",
            )
        found[one.id] = one
    if not found:
        given = f"{path}: {len(numbered)} lines, none of which can be measured"
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise InputFileError(
            given=given + (f" ({reasons})" if reasons else ""),
            expected="at least one plain request",
            remedy="Capture some traffic, or take examples/routes.jsonl to try it",
        )
    return Traffic(tuple(found.values()), len(numbered), dict(left_out))


def _parse(text: str, where: str, number: int, routes: Mapping[str, str]) -> TrafficRequest:
    value = parse_object(text, where, EXPECTED)
    label = (
        label_of(value, "custom_id", where, EXPECTED)
        or label_of(value, "id", where, EXPECTED)
        or f"line-{number}"
    )
    if isinstance(value.get("body"), dict):
        value = value["body"]
    messages, prompt = value.get("messages"), value.get("prompt")
    if (messages is None) == (prompt is None):
        raise _refuse(f"{where}: an object with keys {sorted(value)}"[:200])
    route = _route(value, where)
    sampling = _sampling(value, where)
    return TrafficRequest(
        label,
        routes.get(route, route),
        sampling,
        None if messages is None else _messages(messages, where),
        None if prompt is None else _prompt(prompt, where),
    )


def _route(value: Mapping[str, Any], where: str) -> str:
    route = label_of(value, "route", where, EXPECTED)
    if route is None and isinstance(value.get("model"), str):
        route = value["model"].partition(":")[2] or None
    route = route or DEFAULT_ROUTE
    if ROUTE_NAME.fullmatch(route) is None:
        raise InputFileError(
            given=f"{where}: route {route!r:.80}",
            expected="a name of 1 to 64 letters, digits, dots, dashes and underscores",
            remedy="Rename it in the file",
        )
    return route


def _sampling(value: Mapping[str, Any], where: str) -> SamplingParams:
    """Return how the first choice was asked for."""
    tools = value.get("tools")
    if tools:
        raise _LeftOutError("with tools")
    if "sampling" in value:
        given = value["sampling"]
        if not isinstance(given, dict):
            raise _refuse(f"{where}: sampling {given!r:.60}")
        values = {
            k: v for k, v in given.items() if k not in ("n", "logprobs", "prompt_logprobs") and v is not None
        }
    elif isinstance(value.get("model"), str):
        values = _of_body(value)
    else:
        values = {}
    if values.get("structured_output") is not None:
        raise _LeftOutError("with a form that the answer must have")
    if isinstance(bias := values.get("logit_bias"), dict):
        values["logit_bias"] = {int(k) if re.fullmatch(r"\d+", str(k)) else k: v for k, v in bias.items()}
    try:
        return SamplingParams(**values)
    except InvalidParameterError as error:
        raise InputFileError(f"{where}: {error.given}", error.expected, "Correct that line") from None


def _of_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a body of OpenAI's API, whose temperature is 1 unless it says otherwise."""
    given = {key: value for key, value in body.items() if value is not None}
    form = given.pop("response_format", None)
    if isinstance(form, dict) and form.get("type") != "text":
        raise _LeftOutError("with a form that the answer must have")
    unknown = sorted(set(given) - set(_SAMPLING_KEYS) - set(_LABELS) - {"tools"})
    if unknown:
        raise _LeftOutError(f"with {', '.join(unknown)}, which is not served"[:120])
    values = {key: given[key] for key in _SAMPLING_KEYS if key in given}
    values.setdefault("temperature", 1.0)
    cap = given.get("max_completion_tokens", given.get("max_tokens"))
    return values if cap is None else {**values, "max_tokens": cap}


def _messages(given: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise _refuse(f"{where}: messages {given!r:.60}")
    found = []
    for message in given:
        content = message.get("content")
        if not isinstance(message.get("role"), str):
            raise _refuse(f"{where}: a message without a role")
        if message.get("tool_calls") or message["role"] in ("tool", "function"):
            raise _LeftOutError("with tools")
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise _LeftOutError("with parts that are no text")
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise _refuse(f"{where}: a message with content {content!r:.60}")
        role = "system" if message["role"] == "developer" else message["role"]
        found.append({"role": role, "content": content})
    return tuple(found)


def _prompt(given: Any, where: str) -> str:
    if isinstance(given, list):
        raise _LeftOutError("with several prompts, or one of token ids")
    if not isinstance(given, str) or not given:
        raise _refuse(f"{where}: prompt {given!r:.60}")
    return given


def _refuse(given: str) -> InputFileError:
    return refused_line(given, EXPECTED)
