"""Messages to a prompt, by the template that came with the model.

Templates are Jinja programs of strangers, so they run in Jinja's sandbox. The names that they may use are
those of `transformers` (https://huggingface.co/docs/transformers/chat_templating), for which they are made.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.errors import ChatTemplateError
from paceline.models.chat_guard import guard
from paceline.models.chat_messages import Message, check_messages
from paceline.models.json_file import read_json, read_text
from paceline.models.tokenizer import Tokenizer
from paceline.models.tokenizer_split import TokenSplitter

_DEFAULT, _TOOL_USE = "default", "tool_use"
_PROBE = "paceline-probe"
_COMMON_ROLES = frozenset({"system", "user", "assistant"})
"""Roles that every template knows, and may move, merge or trim."""


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's part for training, and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is: Jinja's own filter escapes for HTML, which would reach the model."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A model's chat template, and its tokenizer, which the rendered prompt is for."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        tokenizer: Tokenizer,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Compile it.

        Args:
            source: the template, or several by name: `default`, and `tool_use` for requests with tools.
            tokenizer: the model's tokenizer.
            now: the time that a template sees.

        Raises:
            ChatTemplateError: a template has no valid syntax, or there is none named `default`.
        """
        sources = dict(source) if isinstance(source, Mapping) else {_DEFAULT: source}
        if _DEFAULT not in sources:
            raise ChatTemplateError(
                given=f"chat templates named {', '.join(map(repr, sources)) or 'nothing'}",
                expected=f"one named {_DEFAULT!r}",
                remedy="Use a plain prompt, or a model file with a default template",
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._templates = {name: _compile(environment, text) for name, text in sources.items()}
        self._tokenizer = tokenizer
        self._special = TokenSplitter(tokenizer.special_tokens)
        self._characters = frozenset("".join(sources.values()))
        self._renders_role = functools.lru_cache(maxsize=64)(self._probe)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
        """Return the template of a GGUF file's metadata, or none where it has none."""
        key = "tokenizer.chat_template"
        sources = {
            name.removeprefix(f"{key}."): metadata[name] for name in metadata if name.startswith(f"{key}.")
        }
        if metadata.get(key):
            sources[_DEFAULT] = metadata[key]
        return cls(sources, tokenizer) if sources else None

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Return the template of a Hugging Face model folder, or none where it has none.

        `chat_template.jinja` goes before the `chat_template` of `tokenizer_config.json`.
        """
        sources = _named(read_json(folder / "tokenizer_config.json").get("chat_template"))
        if (file := folder / "chat_template.jinja").exists():
            sources[_DEFAULT] = read_text(file)
        return cls(sources, tokenizer) if sources else None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """Return the prompt as text, special tokens written out.

        Encode it with `encode` of this class rather than by hand: in this text, a special token that the
        template wrote and one that a user typed look the same.

        Args:
            messages: the conversation, each with `role` and `content`.
            add_generation_prompt: end with what begins the assistant's answer.
            tools: tools that the model may call.
            extra: further variables that the template knows.

        Raises:
            InvalidParameterError: the messages are no messages.
            ChatTemplateError: the template refused them, or leaves out a role.
        """
        self._check(messages)
        return self._render(messages, add_generation_prompt, tools, extra)

    def encode(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> list[int]:
        """Return the prompt's token ids.

        Special tokens come from the template alone: what looks like one in a message, a tool or an extra
        variable is encoded as text. BOS comes first where the tokenizer adds it, and once.

        Arguments and errors are those of `render`.
        """
        self._check(messages)
        given = {"messages": messages, "tools": tools, "extra": extra}
        guarded, stand_ins = guard(given, self._special, self._characters)
        text = self._render(guarded["messages"], add_generation_prompt, guarded["tools"], guarded["extra"])
        if stand_ins:
            ids = self._tokenizer.encode_guarded(text, stand_ins)
        else:
            ids = self._tokenizer.encode(text, parse_special=True)
        bos = self._tokenizer.bos_id
        if bos is not None and self._tokenizer.add_bos and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any],
    ) -> str:
        name = _TOOL_USE if tools and _TOOL_USE in self._templates else _DEFAULT
        variables = {
            "documents": None,
            "bos_token": self._string(self._tokenizer.bos_id),
            "eos_token": self._string(self._tokenizer.eos_id),
            **extra,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._templates[name].render(variables)
        except Exception as error:  # a stranger's program may raise anything
            raise ChatTemplateError(
                given=f"messages that the model's chat template refused: {error}",
                expected="messages that the template takes",
                remedy="Change the messages as the template asks, or use a plain prompt",
            ) from error

    def _string(self, token_id: int | None) -> str:
        return "" if token_id is None else self._tokenizer.token_string(token_id)

    def _check(self, messages: Sequence[Message]) -> None:
        check_messages(messages)
        for role in dict.fromkeys(message["role"] for message in messages):
            if not self._renders_role(role):
                raise ChatTemplateError(
                    given=f"a message of role {role!r}, which the model's chat template leaves out",
                    expected="roles that the template renders",
                    remedy="Use another role, such as user or system",
                )

    def _probe(self, role: str) -> bool:
        """Return whether a message of this role reaches the prompt; none is dropped without a word."""
        if role in _COMMON_ROLES:
            return True
        messages = [{"role": "user", "content": "a"}, {"role": role, "content": _PROBE}]
        try:
            return _PROBE in self._render(messages, True, None, {})
        except ChatTemplateError:
            return True  # the template wants more than that; the real messages get its own answer


def require_chat_template(template: ChatTemplate | None, model: str) -> ChatTemplate:
    """Return the template of a model that must have one.

    Raises:
        ChatTemplateError: there is none.
    """
    if template is None:
        raise ChatTemplateError(
            given=f"{model} has no chat template (tokenizer.chat_template)",
            expected="a model with a chat template, for messages",
            remedy="Use a plain prompt (--prompt TEXT, or LLM.generate), or a model tuned for chat",
        )
    return template


def _named(value: object) -> dict[str, str]:
    """Return the templates of a `chat_template` value: absent, one, or a list of objects with names."""
    if not value:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    if isinstance(value, list) and all(
        isinstance(e, dict) and {"name", "template"} <= e.keys() for e in value
    ):
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    raise ChatTemplateError(
        given=f"a chat_template in tokenizer_config.json that is a {type(value).__name__}",
        expected="a string, or a list of objects with name and template",
        remedy="Use a plain prompt, or correct the file",
    )


def _compile(environment: jinja2.Environment, source: object) -> jinja2.Template:
    try:
        if not isinstance(source, str):
            raise TypeError(f"a {type(source).__name__}")
        return environment.from_string(source)
    except Exception as error:  # besides bad syntax, nesting that Python's own compiler refuses
        place = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ChatTemplateError(
            given=f"a chat template that is no Jinja template ({place}{error})",
            expected="a Jinja template",
            remedy="Use a plain prompt, or another file of the model",
        ) from None
