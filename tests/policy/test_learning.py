"""What a step's record teaches."""

from __future__ import annotations

import pytest

from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.learning import MOST_LEARNED
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.step_costs import CalibratedCosts
from policy.test_tally import part, record

CURVE = CostCurve.of({1: 0.05, 16: 0.1})


@pytest.mark.parametrize(("num_sequences", "turns"), [(MOST_LEARNED, 1), (2 * MOST_LEARNED, 2), (20, 3)])
def test_of_many_drafts_a_step_teaches_a_part_and_all_come_in_turn(num_sequences: int, turns: int) -> None:
    policy = SpeculationPolicy(
        RouteTable({}, any_label=RouteSettings()), CalibratedCosts(CURVE, {"model": CURVE})
    )
    # Sequence i has i + 1 drafts, so that the sum says whose they were.
    step = record(
        *[
            part(
                "a", drafted=i + 1, asked=i + 1, number=i, drafter="model", source="model",
                confidences=(0.5,) * (i + 1),
            )
            for i in range(num_sequences)
        ]
    )  # fmt: skip
    calibration = policy.acceptance.of("a", "model").calibration
    taught = []
    for _ in range(turns):
        before = calibration.num_observed
        policy.on_step(step)
        taught.append(calibration.num_observed - before)
    assert sum(taught) == num_sequences * (num_sequences + 1) // 2
    assert len(set(taught)) == turns
