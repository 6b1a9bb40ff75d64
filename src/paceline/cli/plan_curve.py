"""Step-cost curves from files, as `paceline calibrate --json` writes them or as a person does."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import ConfigError
from paceline.policy.costs import CostCurve
from paceline.policy.step_costs import CalibratedCosts

MS = 1e-3
Read = TypeVar("Read")


def read_curve(path: Path) -> CostCurve:
    """Return the target's curve of a file.

    The file is what `paceline calibrate --json` printed; or the target's part of that; or CSV with the
    columns `rows` and `ms`.

    Raises:
        ConfigError: it cannot be read as any of these.
    """
    text = _text(path)
    if not text.lstrip().startswith("{"):
        return _from_csv(path, text)
    value = _object(path, text)
    return _costs(path, value).target if "target" in value else _checked(path, CostCurve.from_json, value)


def read_costs(path: Path) -> CalibratedCosts:
    """Return the curves of target and draft model from what `paceline calibrate --json` printed.

    Raises:
        ConfigError: it cannot be read, or no draft model was calibrated.
    """
    text = _text(path)
    costs = _costs(path, _object(path, text))
    if not costs.drafts:
        raise ConfigError(
            given=f"{path} without a draft model's step costs",
            expected="step costs of a target and a draft model",
            remedy="Calibrate again with `paceline calibrate --target T --draft D --json`",
        )
    return costs


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            given=f"{path}, which cannot be read ({error})",
            expected="a file of step costs",
            remedy="Give the output of `paceline calibrate --json`, or CSV with the columns rows and ms",
        ) from None


def _object(path: Path, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _not_costs(path, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _not_costs(path, f"a JSON {type(value).__name__}")
    return value


def _costs(path: Path, value: Mapping[str, Any]) -> CalibratedCosts:
    # `calibrate --json` puts the models' names beside the curves; "target" there is the curve.
    return _checked(path, CalibratedCosts.from_json, value)


def _checked(path: Path, read: Callable[[Mapping[str, Any]], Read], value: Mapping[str, Any]) -> Read:
    try:
        return read(value)
    except (ConfigError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _not_costs(path, str(error)) from None


def _from_csv(path: Path, text: str) -> CostCurve:
    rows = list(csv.DictReader(text.splitlines()))
    try:
        seconds = {int(row["rows"]): float(row["ms"]) * MS for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise _not_costs(path, f"CSV that lacks a number ({error})") from None
    if not seconds:
        raise _not_costs(path, "empty")
    return CostCurve.of(seconds)


def _not_costs(path: Path, why: str) -> ConfigError:
    return ConfigError(
        given=f"{path}: {why}",
        expected="the output of `paceline calibrate --json`, or CSV with the columns rows and ms",
        remedy="Write it anew",
    )
