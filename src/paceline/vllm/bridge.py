"""The folder by which the serving process and vLLM's engine cores hear of each other.

vLLM's engine core is a process of its own, one for each rank of data parallelism. Its scheduler is told
of the folder by `--additional-config '{"paceline": {"bridge": "/run/..."}}'`, and both keep files in it:

| file | written by | says |
| --- | --- | --- |
| `routes.json` | the serving process | routes that are to be in force (`vllm/routes_file.py`) |
| `engine-RANK.json` | each engine core | counts, states, costs and faults (`vllm/engine_file.py`) |
| `decisions-RANK.jsonl` | each engine core | the policy's decisions (`policy/decision_log.py`) |
| `policy-RANK.json` | each engine core | what its policy learned, for the next start |

A file is replaced as a whole, so that a reader sees the old one or the new one and never half of either.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from paceline.errors import ConfigError

ADDITIONAL_KEY = "paceline"
"""Key of vLLM's `additional_config` that is ours."""
ROUTE_ARGUMENT = "paceline_route"
"""Key of a request's `vllm_xargs` (`SamplingParams.extra_args`) with the name of its route."""
ENABLED_ARGUMENT = "paceline_speculation_enabled"
"""Key with what a request asks of its route: true, false, or "auto". vLLM takes no objects there, so what
Paceline's own server has in `speculation` comes as one flat key for each value."""
MAX_DRAFT_LENGTH_ARGUMENT = "paceline_max_draft_length"
"""Key with the most drafts that a request wants in a step."""


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """What an engine core is told in `additional_config`."""

    folder: Path
    skips_drafting: bool = True
    """Whether the drafter is left out where nobody drafts, if `RouteWorker` is there to do it."""

    def to_json(self) -> dict[str, Any]:
        """Return the value of the key `paceline` of `additional_config`."""
        return {"bridge": str(self.folder), "skips_drafting": self.skips_drafting}

    @classmethod
    def of(cls, additional_config: object) -> Self:
        """Read vLLM's `additional_config`.

        Raises:
            ConfigError: it names no folder, or has a key that is not ours.
        """
        ours = additional_config.get(ADDITIONAL_KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(ours, Mapping) or not isinstance(ours.get("bridge"), str):
            raise ConfigError(
                given=f"additional_config with {ADDITIONAL_KEY} = {ours!r:.100}",
                expected='{"paceline": {"bridge": "/a/folder"}}',
                remedy="Start vLLM with `paceline vllm serve`, or give it that with --additional-config",
            )
        unknown = sorted(set(map(str, ours)) - {"bridge", "skips_drafting"})
        skips = ours.get("skips_drafting", True)
        if unknown or not isinstance(skips, bool):
            raise ConfigError(
                given=f"additional_config.{ADDITIONAL_KEY} = {dict(ours)!r:.200}",
                expected="the keys bridge, a folder, and skips_drafting, true or false",
                remedy="Leave the others out",
            )
        return cls(Path(ours["bridge"]), skips)


@dataclass(frozen=True, slots=True)
class Bridge:
    """Where each file is."""

    folder: Path

    @property
    def routes_path(self) -> Path:
        """The routes that are to be in force."""
        return self.folder / "routes.json"

    def engine_path(self, rank: int) -> Path:
        """What the engine core of a data parallel rank says of itself."""
        return self.folder / f"engine-{rank}.json"

    def decisions_path(self, rank: int) -> Path:
        """Its decisions, a line each; older ones in the same name with `.1`, `.2`, `.3`."""
        return self.folder / f"decisions-{rank}.jsonl"

    def policy_path(self, rank: int) -> Path:
        """What its policy learned."""
        return self.folder / f"policy-{rank}.json"

    def ranks(self) -> list[int]:
        """Return the ranks of which there is an engine file, ascending; none where there is no folder."""
        found = (re.fullmatch(r"engine-(\d+)\.json", path.name) for path in self.folder.glob("engine-*.json"))
        return sorted(int(match[1]) for match in found if match is not None)


def replace_json(path: Path, value: Mapping[str, Any], *, is_durable: bool = False) -> None:
    """Put a file of JSON in the place of another, whole or not at all.

    Args:
        path: where; its folder is made if it is not there.
        value: what; NaN and infinities have no place in JSON and are refused.
        is_durable: whether it has to outlive the machine going down, which takes milliseconds.

    Raises:
        OSError: it could not be written; what was there is there still.
        ValueError: the value is no JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path, what: str, file_format: int) -> dict[str, Any]:
    """Return what is in a file of the bridge.

    Args:
        path: the file.
        what: it in words, for errors.
        file_format: the version of its form that the caller understands.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: it is no JSON object, or one of another format.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise broken(path, what, f"{type(error).__name__}: {error}") from None
    if not isinstance(value, dict) or value.get("format") != file_format:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise broken(path, what, f"format {found!r}, not {file_format}")
    return value


def broken(path: Path, what: str, why: str) -> ConfigError:
    """Return the error of a file that cannot be used."""
    return ConfigError(
        given=f"{path}: {why:.300}",
        expected=what,
        remedy="Let `paceline vllm serve` write it; both sides have to be of one version",
    )
