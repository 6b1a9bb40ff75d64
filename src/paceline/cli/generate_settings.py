"""What the flags of `paceline generate` mean together, and which of them do not go together."""

from __future__ import annotations

import logging
from typing import Any

from paceline.cli.draft_flags import draft_settings
from paceline.cli.input_file import InputRequest, read_requests, read_text
from paceline.config.engine import EngineSettings
from paceline.errors import ConfigError
from paceline.parameters import StructuredOutput
from paceline.records import SamplingParams

log = logging.getLogger(__name__)


def read_inputs(options: dict[str, Any]) -> list[InputRequest]:
    """Return what is to be answered: a message, a text, or the lines of a file."""
    given = [name for name in ("chat", "prompt", "input_file") if options[name] is not None]
    if len(given) != 1:
        raise ConfigError(
            given=f"{len(given)} of --chat, --prompt and --input",
            expected="exactly one of them",
            remedy='Say what to answer, as in --chat "Write quicksort in Python."',
        )
    if options["input_file"] is not None:
        return read_requests(options["input_file"], options["limit"])
    if options["limit"] is not None:
        raise ConfigError(given="--limit without --input", expected="a file", remedy="Leave --limit out")
    if options["chat"] is not None:
        return [InputRequest("chat", None, messages=({"role": "user", "content": options["chat"]},))]
    return [InputRequest("prompt", None, prompt=options["prompt"])]


def engine_settings(options: dict[str, Any]) -> EngineSettings:
    """Return the settings that the flags mean; flags that ask for drafts need a drafter."""
    optional = {
        name: options[name]
        for name in ("draft_length", "context_length", "kv_memory", "threads")
        if options[name] is not None
    }
    optional |= {name: value for name, value in draft_settings(options["draft"]).items() if value is not None}
    if options["speculation"] == "auto" and "draft_length" in optional:
        optional["max_draft_length"] = optional.pop("draft_length")
    settings = EngineSettings(
        target=options["target"],
        drafter=options["drafter"],
        speculation={"off": False, "auto": "auto"}.get(options["speculation"] or "on", True),
        verification=options["verification"],
        max_num_seqs=options["concurrency"],
        device=options["device"],
        kernels=options["kernels"],
        weights=options["weights"],
        draft_weights=options["draft_weights"],
        draft_vocab=options["draft_vocab"],
        **optional,
    )
    wants_drafter = [
        flag
        for flag, wanted in (
            ("--speculation on", options["speculation"] == "on"),
            ("--compare", options["compare"]),
            ("--draft-length", options["draft_length"] is not None),
        )
        if wanted
    ]
    if settings.effective_drafter is None and wants_drafter:
        raise ConfigError(
            given=f"{wants_drafter[0]} without a drafter",
            expected="something that proposes tokens",
            remedy="Add --draft MODEL or --drafter suffix",
        )
    return settings


def modes_of(options: dict[str, Any], settings: EngineSettings) -> tuple[str, ...]:
    """Return the ways to answer, in their order: "off", "on" or "auto", or "off" and another to compare."""
    if options["compare"]:
        if options["speculation"] == "off":
            raise ConfigError(
                given="--compare with --speculation off",
                expected="one of them: a comparison runs without speculation, then with it",
                remedy="Leave --speculation out",
            )
        return ("off", "auto" if options["speculation"] == "auto" else "on")
    if settings.speculation == "auto":
        return ("auto",)
    return ("on",) if settings.speculation_params.enabled else ("off",)


def without_idle_draft(settings: EngineSettings, modes: tuple[str, ...]) -> EngineSettings:
    """Leave a draft model out that nothing would use, and say so."""
    if modes[-1] != "off" or not settings.uses_draft_models:
        return settings
    for model in settings.draft_models.values():
        log.warning("the draft model %s is not loaded: speculation is off", model)
    return settings.model_copy(update={"draft": None, "drafts": {}, "drafter": None})


def sampling_params(options: dict[str, Any]) -> SamplingParams:
    """Return how tokens are chosen."""
    return SamplingParams(
        temperature=options["temperature"],
        top_p=options["top_p"],
        seed=options["seed"],
        max_tokens=options["max_tokens"],
        n=options["n"],
        structured_output=_form(options),
    )


def _form(options: dict[str, Any]) -> StructuredOutput | None:
    given = {name: options[name] for name in ("json_schema", "regex", "choice") if options[name]}
    if len(given) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in given)
        raise ConfigError(given=flags, expected="one form of an answer", remedy="Keep one of them")
    if "json_schema" in given:
        given["json_schema"] = read_text(given["json_schema"], "a UTF-8 file with a JSON schema")
    return StructuredOutput(**given) if given else None
