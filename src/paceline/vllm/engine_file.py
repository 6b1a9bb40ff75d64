"""What an engine core says of itself, in a file that it replaces once a second, and four times as often while
it has no requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from paceline.errors import ConfigError
from paceline.metrics.counts import Counts
from paceline.policy.reports import RouteReport
from paceline.vllm.bridge import broken, read_json, replace_json
from paceline.vllm.engine_json import counts_from_json, counts_to_json, report_from_json

FORMAT = 1
WHAT = "a file of an engine core"
EVERY_S, IDLE_EVERY_S = 1.0, 0.25


@dataclass(frozen=True, slots=True)
class RouteLoad:
    """The requests of one route, now and since the engine core began."""

    num_running: int = 0
    num_waiting: int = 0
    num_preemptions: int = 0
    """Times that a request of it gave its blocks away."""
    num_requests: int = 0
    """That came, since the beginning."""


@dataclass(frozen=True, slots=True)
class EngineFile:
    """One engine core, when it last wrote."""

    rank: int
    """Of data parallelism."""
    pid: int
    started_at: float
    written_at: float
    """Seconds since 1970."""
    vllm_version: str
    method: str | None
    """vLLM's speculative method; none where it was started without."""
    drafter: str | None
    """What the method counts as here: `model`, or `suffix` for look-ups."""
    max_draft_length: int
    """vLLM's `num_speculative_tokens`: no draft is longer."""
    is_async: bool
    """Whether vLLM schedules the next step before the last one is done."""
    skips_drafting: bool
    """Whether steps in which nobody drafts do without the draft model's pass."""
    routes_version: int
    """Of `routes.json`, in force."""
    routes_error: str | None
    """Why a newer `routes.json` is not in force."""
    num_running: int
    num_waiting: int
    num_preemptions: int
    num_kv_blocks: int
    num_kv_blocks_used: int
    counts: Counts
    """Since the engine core began: the same numbers that the embedded engine publishes."""
    loads: Mapping[str, RouteLoad]
    """By route."""
    reports: Mapping[str, RouteReport]
    """By route: state, sentence, acceptance, speedup."""
    unknown_routes: Mapping[str, int] = field(default_factory=dict)
    """Requests that named a route that is not there, by that name; they were served on the default route.
    Names beyond the first 32 are counted as one, `...`."""
    costs: Mapping[str, Any] = field(default_factory=dict)
    """How well step costs are known; see `SpeculationPolicy.knowledge`."""
    errors: tuple[str, ...] = ()
    """The latest faults of ours that were overcome: the requests went on without drafts."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, with the version of this form."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            "format": FORMAT,
            **plain,
            "counts": counts_to_json(self.counts),
            "loads": {
                name: {key: getattr(load, key) for key in RouteLoad.__slots__}
                for name, load in self.loads.items()
            },
            "reports": {name: report.to_json() for name, report in self.reports.items()},
            "unknown_routes": dict(self.unknown_routes),
            "costs": dict(self.costs),
            "errors": list(self.errors),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the record of plain values.

        Raises:
            ConfigError: they are none.
        """
        try:
            return cls(
                **{name: value[name] for name in _PLAIN},
                counts=counts_from_json(value["counts"]),
                loads={name: RouteLoad(**load) for name, load in value["loads"].items()},
                reports={name: report_from_json(one) for name, one in value["reports"].items()},
                unknown_routes=value["unknown_routes"],
                costs=value["costs"],
                errors=tuple(value["errors"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                given=f"{type(error).__name__}: {error}",
                expected="what EngineFile.to_json writes",
                remedy="Let one version of Paceline write and read it",
            ) from None


_PLAIN = (
    "rank", "pid", "started_at", "written_at", "vllm_version", "method", "drafter", "max_draft_length",
    "is_async", "skips_drafting", "routes_version", "routes_error", "num_running", "num_waiting",
    "num_preemptions", "num_kv_blocks", "num_kv_blocks_used",
)  # fmt: skip


def read_engine(path: Path) -> EngineFile:
    """Return what an engine core wrote.

    Raises:
        FileNotFoundError: it wrote nothing yet.
        ConfigError: the file cannot be used.
    """
    value = read_json(path, WHAT, FORMAT)
    try:
        return EngineFile.from_json(value)
    except ConfigError as error:
        raise broken(path, WHAT, error.given) from None


class EngineWriter:
    """Writes an engine core's file, not more often than is of use to anybody.

    Args:
        path: the file.
        values: makes the record as plain values; called only where it is to be written.
        every_s: least seconds between two writings, but where something changed that must not wait. Making
            the record keeps steps waiting for some milliseconds.
        idle_every_s: the same while there are no steps.
    """

    def __init__(
        self,
        path: Path,
        values: Callable[[], Mapping[str, Any]],
        every_s: float = EVERY_S,
        idle_every_s: float = IDLE_EVERY_S,
    ) -> None:
        self._path = path
        self._values = values
        self._every_s, self._idle_every_s = every_s, idle_every_s
        self._written_at: float | None = None
        self.fault: str | None = None
        """Why the last writing failed; serving goes on, and it is tried again."""

    def write(self, now: float, *, is_urgent: bool = False, is_idle: bool = False) -> bool:
        """Write if it is time, or urgent; say whether it was.

        Args:
            now: reading of any monotonic clock, the same each time, seconds.
            is_urgent: whether a state changed.
            is_idle: whether there are no requests.
        """
        every_s = self._idle_every_s if is_idle else self._every_s
        if not is_urgent and self._written_at is not None and now - self._written_at < every_s:
            return False
        self._written_at = now
        try:
            replace_json(self._path, self._values())
        except (OSError, ValueError) as error:
            self.fault = f"{self._path} cannot be written: {error}"
            return False
        self.fault = None
        return True
