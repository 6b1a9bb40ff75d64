"""What an engine core's policy learned, kept over a restart."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import ConfigError
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.cost_store import cost_key
from paceline.policy.costs import GRID, CostCurve, OnlineCurve
from paceline.policy.history import History
from paceline.policy.step_costs import CalibratedCosts, StepCosts
from paceline.vllm.bridge import broken, read_json, replace_json

log = logging.getLogger(__name__)

FORMAT = 1
WHAT = "a file of what a policy learned"
LEAST_TARGET, LEAST_DRAFT = 64, 16
"""Passes that have to have been seen of a model before its costs are worth keeping."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What another engine core of the same models and devices may begin with."""

    costs: CalibratedCosts | None
    history: History


def learned_costs(costs: StepCosts, parts: Mapping[str, str]) -> CalibratedCosts | None:
    """Return step costs as they are known now, as a calibration; none where they were hardly seen.

    Args:
        costs: the policy's.
        parts: models, devices and versions in words.
    """
    if costs.target.num_observed < LEAST_TARGET:
        # What an earlier process measured is better than what few steps corrected.
        return None if costs.is_guess else costs.calibrated
    drafts = {name: _as_curve(one) for name, one in costs.drafts.items() if one.num_observed >= LEAST_DRAFT}
    return CalibratedCosts(_as_curve(costs.target), drafts, cost_key(parts), dict(parts))


def _as_curve(curve: OnlineCurve) -> CostCurve:
    rows = GRID.astype(int)
    seconds = np.array(curve.table())[rows]
    speed = curve.speed
    return CostCurve(
        tuple(rows.tolist()), tuple(seconds.tolist()), curve.curve.per_sequence_s * speed,
        curve.curve.per_context_s * speed,
    )  # fmt: skip


def save_knowledge(path: Path, policy: SpeculationPolicy, parts: Mapping[str, str]) -> None:
    """Replace the file of what a policy learned.

    Raises:
        OSError: it could not be written.
    """
    costs = learned_costs(policy.costs, parts)
    value = {
        "format": FORMAT,
        "key": cost_key(parts),
        "parts": dict(parts),
        "costs": None if costs is None else costs.to_json(),
        "history": policy.history().to_json(),
    }
    replace_json(path, value)


def load_knowledge(path: Path, parts: Mapping[str, str]) -> Knowledge | None:
    """Return what an earlier engine core learned; none where there is nothing, or nothing of use here, which
    is logged."""
    try:
        value = read_json(path, WHAT, FORMAT)
        if value.get("key") != cost_key(parts):
            raise broken(path, WHAT, f"it is of {value.get('parts')}, not of {dict(parts)}")
        costs = value.get("costs")
        return Knowledge(
            None if costs is None else CalibratedCosts.from_json(costs), History.read(value["history"])
        )
    except FileNotFoundError:
        return None
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        log.warning("what a policy learned is not used, and is learned anew: %s", error)
        return None
