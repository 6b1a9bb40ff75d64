"""The command line of vLLM that a configuration means, each flag with its reason."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.drafter_names import SUFFIX
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError
from paceline.vllm.bridge import ADDITIONAL_KEY, BridgeOptions
from paceline.vllm.extra_flags import check_extra, has_flag
from paceline.vllm.model_names import as_named, loadable
from paceline.vllm.speculative import Speculative, describe, speculative_of

SCHEDULER, WORKER = "paceline.vllm.RouteScheduler", "paceline.vllm.RouteWorker"
MIDDLEWARE = "paceline.vllm.middleware.RouteMiddleware"
ENVIRONMENT: Mapping[str, str] = {"VLLM_USE_RUST_FRONTEND": "0"}
"""Variables that are set: vLLM's other front end knows no middleware, hence no routes."""
UNUSED = (
    "answer_store_tokens", "answer_sharing", "calibration", "prefill_chunk", "mixed_prefill_ratio",
    "max_overtaking_s", "joint_start_s", "device", "threads", "kernels", "weights", "draft_weights",
    "draft_vocab",
)  # fmt: skip
"""Keys of the embedded engine that mean nothing here; those that a configuration has are named."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    name: str
    value: str | None
    why: str

    @property
    def arguments(self) -> list[str]:
        """As arguments of a process."""
        return [f"--{self.name}"] if self.value is None else [f"--{self.name}", self.value]


@dataclass(frozen=True, slots=True)
class Launch:
    """What would be run."""

    model: str
    flags: tuple[Flag, ...]
    extra: tuple[str, ...]
    """As a person gave them."""
    speculative: Speculative
    bridge: Path
    is_headless: bool
    """Whether there is no server here: engine cores or workers of one that is on another machine."""
    notes: tuple[str, ...]
    """What of the configuration has no effect."""

    @property
    def arguments(self) -> list[str]:
        """All that comes after `vllm serve`."""
        return [self.model, *(part for flag in self.flags for part in flag.arguments), *self.extra]

    @property
    def command(self) -> list[str]:
        """The process that is started: vLLM's own command, in this interpreter."""
        return [sys.executable, "-m", "paceline.vllm.entry", *self.arguments]

    def text(self) -> str:
        """Return it for a shell, a flag a line."""
        lines = [shlex.join(["vllm", "serve", self.model])]
        lines += [shlex.join(flag.arguments) for flag in self.flags]
        lines += [shlex.join(self.extra)] if self.extra else []
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in ENVIRONMENT.items())
        return variables + " \\\n  ".join(lines)


def launch_of(settings: ServeSettings, extra: Sequence[str] = ()) -> Launch:
    """Return what a configuration means.

    Args:
        settings: the configuration.
        extra: further flags, as on vLLM's command line; those of `vllm.flags` come before them.

    Raises:
        ConfigError: vLLM cannot do what it says, or a flag contradicts it.
    """
    _check(settings)
    bridge = settings.bridge_path
    if bridge is None:
        raise ConfigError(
            given="no configuration file and no vllm.bridge",
            expected="a place for the files between vLLM's processes",
            remedy="Start with --config FILE.yaml",
        )
    given = (*settings.vllm.flags, *extra)
    is_headless = has_flag(given, "headless")
    speculative = speculative_of(settings)
    # Another worker class than vLLM's own is left in its place.
    skips = speculative.can_be_left_out and not has_flag(given, "worker-cls")
    flags = tuple(_flags(settings, speculative, BridgeOptions(bridge.absolute(), skips), is_headless))
    # A second --middleware is a second middleware, and no contradiction.
    check_extra(given, [flag.name for flag in flags if flag.name != "middleware"])
    named = settings.vllm.model
    model = loadable(settings.engine.target, "target") if named is None else as_named(named, "vllm.model")
    notes = tuple(_notes(settings, speculative))
    return Launch(model, flags, given, speculative, bridge.absolute(), is_headless, notes)


def _check(settings: ServeSettings) -> None:
    server = settings.server
    for given, expected, remedy in (
        (settings.capture is not None and "capture", "a configuration without it", "Take it out"),
        (server.max_prompt_tokens is not None and "server.max_prompt_tokens",
         "context_length, which holds for prompt and answer together", "Set that instead"),
        (server.port == 0 and "server.port = 0", "a port that clients can know", "Choose one"),
    ):  # fmt: skip
        if given:
            raise ConfigError(f"{given}, which is not served on vLLM", expected, remedy)


def _flags(
    settings: ServeSettings, speculative: Speculative, options: BridgeOptions, is_headless: bool
) -> Iterator[Flag]:
    engine, server = settings.engine, settings.server
    yield Flag("served-model-name", settings.model_name, "what clients call the model")
    yield Flag("scheduler-cls", SCHEDULER, "routes and their draft lengths")
    if options.skips_drafting:
        yield Flag("worker-cls", WORKER, "leaves the drafter out where nobody drafts")
    ours = {ADDITIONAL_KEY: options.to_json()}
    yield Flag("additional-config", _json({**settings.vllm.additional_config, **ours}),
               "where serving process and engine cores meet")  # fmt: skip
    if speculative.config is not None:
        yield Flag("speculative-config", _json(speculative.config), describe(engine))
    said = engine.model_fields_set
    for key, flag in (
        ("context_length", "max-model-len"),
        ("max_num_seqs", "max-num-seqs"),
        ("max_num_batched_tokens", "max-num-batched-tokens"),
        ("block_size", "block-size"),
        ("kv_memory", "kv-cache-memory-bytes"),
    ):
        if key in said and getattr(engine, key) is not None:
            yield Flag(flag, str(getattr(engine, key)), key)
    if is_headless:
        return
    yield Flag("middleware", MIDDLEWARE, "reads routes, keys and overrides of requests; administration")
    yield Flag("api-server-count", "1", "one process has the routes and their changes")
    yield Flag("host", server.host, "server.host")
    yield Flag("port", str(server.port), "server.port")
    yield Flag("shutdown-timeout", str(math.ceil(server.shutdown_timeout_s)), "server.shutdown_timeout_s")


def _notes(settings: ServeSettings, speculative: Speculative) -> Iterator[str]:
    unused = [key for key in UNUSED if key in settings.engine.model_fields_set]
    if settings.has_own_decision_log:
        unused.append("decision_log (decisions are in the folder of vllm.bridge)")
    if unused:
        yield f"not used by vLLM: {', '.join(unused)}"
    has_draft = settings.vllm.draft or settings.engine.draft_models
    if has_draft and speculative.drafter == SUFFIX:
        yield "the draft model is not loaded: look-ups draft for all routes"
    coupled = [name for name, one in settings.engine.routes.items() if "verification" in one.model_fields_set]
    if coupled:
        yield f"vLLM verifies drafts in its own way: verification of {', '.join(coupled)} is not used"
    idle = [
        name
        for name, route in settings.engine.routes.items()
        if speculative.drafter is not None and not speculative.serves(route)
    ]
    if idle:
        yield f"no drafts on {', '.join(idle)}: {speculative.drafter!r} is not among their drafters"


def _json(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise ConfigError(
            given=f"a value for vLLM that is no JSON: {error}",
            expected="text, numbers, lists and mappings",
            remedy="Quote it where it stands below vllm",
        ) from None
