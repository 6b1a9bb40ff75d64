"""What a server is started with beside its engine: where it listens, who may ask, and how much."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, SecretStr, field_validator

from paceline.config.drafter_names import SUFFIX, with_mixed
from paceline.config.engine import EngineSettings, parse_bytes
from paceline.config.routes import RouteSettings, Speculation
from paceline.config.section import Section
from paceline.config.vllm import VllmSettings
from paceline.errors import ConfigError

ROUTE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_ROUTE = "default"
ADMIN = "admin"
"""Who changes a route with the one `admin_token`, as the decision log has it."""
RESERVED = (ADMIN, "file")
"""Names of those who change routes without a name of their own."""
ROUTE_KEYS = ("speculation", "draft_length", "max_draft_length", "verification")
"""Settings of an engine that speak for all requests, where there are no routes to do it."""


class ApiKey(Section):
    """One caller: its key, its route, its limits."""

    where: ClassVar[str] = "an API key"
    secrets: ClassVar[tuple[str, ...]] = ("key",)

    key: SecretStr = Field(min_length=8)
    """What comes as `Authorization: Bearer KEY`; at least 8 characters."""
    route: str | None = None
    """The route of its requests, where they name none; not given, the default route."""
    max_concurrent: int | None = Field(None, ge=1)
    """Requests of this key that are answered at once; not given, as many as the engine takes."""
    max_queued: int = Field(64, ge=0)
    """Further requests of it that wait for their turn; those beyond are refused with 429."""


class CaptureSettings(Section):
    """The `capture` part of the configuration: sampled requests and answers in a file."""

    where: ClassVar[str] = "capture"

    path: Path
    """File of JSON lines, in the form that `--input` reads."""
    share: float = Field(gt=0.0, le=1.0)
    """Share of the requests that are written down."""
    routes: tuple[str, ...] | None = None
    """Only requests of these routes; not given, of all."""
    max_bytes: int = Field(100_000_000, ge=10_000)
    """Most bytes on the disk, in bytes or as "100MB"; the oldest go first."""

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _size_in_words(cls, value: Any) -> Any:
        return parse_bytes(value) if isinstance(value, str) else value


class ServerSettings(Section):
    """The `server` part of the configuration."""

    where: ClassVar[str] = "server"
    secrets: ClassVar[tuple[str, ...]] = ("admin_token", "admin_tokens")

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every address of the machine."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    model_name: str | None = Field(None, min_length=1)
    """Name that clients use for the target; not given, the preset's name or the name of the file."""
    admin_token: SecretStr | None = Field(None, min_length=8)
    """What administration asks for, as `Authorization: Bearer TOKEN`; without any token there is no
    administration. Changes made with it are by "admin"."""
    admin_tokens: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Further tokens by name; changes made with one are by that name, in the decision log too."""
    admin_remote: bool = False
    """Whether administration may come from other machines; else from this one only."""
    api_keys: Mapping[str, ApiKey] = Field(default_factory=dict)
    """Callers by name; without any, everybody who reaches the port may ask."""
    state_path: Path | None = None
    """Database of routes' changes at run time; not given, beside the configuration file, and without one
    they end with the server."""
    max_body_bytes: int = Field(1_000_000, ge=1000)
    """Largest body of a request, in bytes or as "1MB"."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Longest prompt; not given, as long as the context allows."""
    max_queued: int = Field(64, ge=0)
    """Answers that may wait beyond those that run, all callers together; more are refused with 429."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest time for one request, waiting included; it ends with 504."""
    shutdown_timeout_s: float = Field(30.0, ge=0)
    """How long a shutdown waits for answers that run; later ones end with an error that says so."""

    @field_validator("max_body_bytes", mode="before")
    @classmethod
    def _size_in_words(cls, value: Any) -> Any:
        return parse_bytes(value) if isinstance(value, str) else value

    @field_validator("admin_tokens")
    @classmethod
    def _tokens_fit(cls, value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, token in value.items():
            if ROUTE_NAME.fullmatch(name) is None or name in RESERVED or len(token.get_secret_value()) < 8:
                raise ValueError(
                    f"tokens of 8 characters and more, with names other than {' and '.join(RESERVED)}"
                )
        return value

    @property
    def tokens(self) -> Mapping[str, SecretStr]:
        """All tokens of administrators, by name."""
        own = {} if self.admin_token is None else {ADMIN: self.admin_token}
        return {**own, **self.admin_tokens}

    @field_validator("model_name")
    @classmethod
    def _no_colon(cls, value: str | None) -> str | None:
        if value is not None and ":" in value:
            raise ValueError("a name without a colon, which stands before a route")
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys_of_words(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {str(name): _api_key(str(name), one) for name, one in value.items()}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """An engine with routes, and the server in front of it."""

    engine: EngineSettings
    server: ServerSettings
    capture: CaptureSettings | None = None
    """None writes nothing down."""
    vllm: VllmSettings = field(default_factory=VllmSettings)
    """What `paceline vllm` needs besides."""
    path: Path | None = None
    """The configuration file; none where flags said everything."""
    read_again: Callable[[], ServeSettings] | None = None
    """Reads the file as it is then, with the same flags; none where there is no file."""

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        path: Path | None = None,
        read_again: Callable[[], ServeSettings] | None = None,
    ) -> Self:
        """Return the settings that the keys of a configuration mean, checked together.

        Raises:
            ConfigError: a key is unknown, a value is wrong, or two do not go together.
        """
        rest = dict(values)
        server = _mapping("server", rest.pop("server", None), "{port: 8000}")
        capture = _mapping("capture", rest.pop("capture", None), "{path: traffic.jsonl, share: 0.01}")
        vllm = _mapping("vllm", rest.pop("vllm", None), "{model: ORGANISATION/NAME}")
        if rest.get("calibration") != "off":
            rest.setdefault("acceptance_history", True)
        engine = _with_routes(EngineSettings(**rest))
        for name, route in engine.routes.items():
            check_route(name, route, engine)
        settings = cls(
            engine,
            ServerSettings(**(server or {})),
            None if capture is None else CaptureSettings(**capture),
            VllmSettings(**(vllm or {})),
            path,
            read_again,
        )
        settings._check_keys()
        settings._check_capture()
        if engine.decision_log is None and (log := settings._beside(".decisions.jsonl")) is not None:
            engine = engine.model_copy(update={"decision_log": log})
        return replace(settings, engine=engine)

    def _check_keys(self) -> None:
        secrets = [key.key.get_secret_value() for key in self.server.api_keys.values()]
        secrets += [token.get_secret_value() for token in self.server.tokens.values()]
        if len(set(secrets)) < len(secrets):
            raise ConfigError(
                given="a key that two callers, or a caller and the administration, have in common",
                expected="a key of its own for each",
                remedy="Draw another one for one of them",
            )
        for name, key in self.server.api_keys.items():
            if key.route is not None and key.route not in self.engine.routes:
                raise ConfigError(
                    given=f"route {key.route!r} of API key {name!r}",
                    expected="one of " + ", ".join(map(repr, self.engine.routes)),
                    remedy="Name one of the routes, or add it",
                )

    def _check_capture(self) -> None:
        for name in (self.capture.routes if self.capture else None) or ():
            if name not in self.engine.routes:
                raise ConfigError(
                    given=f"route {name!r} of capture",
                    expected="routes among " + ", ".join(map(repr, self.engine.routes)),
                    remedy="Name one of the routes, or leave it out",
                )

    @property
    def model_name(self) -> str:
        """What clients call the target."""
        name = Path(self.engine.target).name.removesuffix(".gguf").replace(":", "-")
        return self.server.model_name or name or "model"

    @property
    def state_path(self) -> Path | None:
        """Database of routes' changes; none keeps them in memory."""
        return self.server.state_path or self._beside(".state.sqlite")

    @property
    def bridge_path(self) -> Path | None:
        """Folder between the processes of vLLM; none where there is no configuration file to be beside."""
        return self.vllm.bridge or self._beside(".vllm")

    @property
    def has_own_decision_log(self) -> bool:
        """Whether the configuration names the decision log, rather than leaving it where it is by itself."""
        return self.engine.decision_log not in (None, self._beside(".decisions.jsonl"))

    def _beside(self, suffix: str) -> Path | None:
        """Return a file beside the state, or else beside the configuration; none where there is neither."""
        path = self.server.state_path or self.path
        return None if path is None else path.absolute().with_suffix(suffix)


def check_route(name: str, route: RouteSettings, engine: EngineSettings) -> None:
    """Refuse a route that could not be served.

    Raises:
        ConfigError: its name does not fit into a header, or it names a drafter that is not loaded.
    """
    if ROUTE_NAME.fullmatch(name) is None:
        raise ConfigError(
            given=f"route {name!r:.80}",
            expected="a name of 1 to 64 letters, digits, dots, dashes and underscores",
            remedy="Rename it",
        )
    loaded = drafters_of(engine)
    missing = [one for one in route.drafters if one not in loaded]
    if missing and "drafters" in route.model_fields_set:
        raise ConfigError(
            given=f"drafter {missing[0]!r} of route {name!r}",
            expected="one of " + ", ".join(loaded),
            remedy="Name one of these, or give a draft model with draft or drafts",
        )


def drafters_of(engine: EngineSettings) -> tuple[str, ...]:
    """Return the names of the drafters that an engine has."""
    return with_mixed((SUFFIX, *(engine.draft_models if engine.uses_draft_models else ())))


def _with_routes(engine: EngineSettings) -> EngineSettings:
    """Return an engine that has routes: the file's, or one that says what the engine's own keys say."""
    said = [key for key in ROUTE_KEYS if key in engine.model_fields_set]
    if engine.routes:
        if said:
            raise ConfigError(
                given=f"{said[0]} beside routes",
                expected="each route to say it",
                remedy=f"Move {said[0]} into the routes that it is for",
            )
        return engine
    values = {key: getattr(engine, key) for key in said if key != "speculation"}
    speculation = engine.speculation if "speculation" in said else Speculation.AUTO
    values.update(engine.drafters_said)
    route = RouteSettings(speculation=speculation, **values).among(tuple(engine.draft_models))
    return engine.model_copy(update={"routes": {DEFAULT_ROUTE: route}, "default_route": DEFAULT_ROUTE})


def _mapping(name: str, values: Any, example: str) -> Mapping[str, Any] | None:
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(
            given=f"{name} = {values!r:.60}",
            expected=f"a mapping of keys, such as {example}",
            remedy="Write its keys below it",
        )
    return values


def _api_key(name: str, values: Any) -> ApiKey:
    if isinstance(values, ApiKey):
        return values
    if not isinstance(values, Mapping):
        raise ConfigError(
            given=f"API key {name!r}, which is no mapping",
            expected="a mapping such as {key: ..., route: ...}",
            remedy="Write its keys below its name",
        )
    return ApiKey(**{str(key): value for key, value in values.items()})
