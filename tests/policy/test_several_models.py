"""Several draft models: each is tried, the better one kept, and each route of a step has its own."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from paceline.config.drafter_names import model_of
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.draft_lengths import Candidate, best_lengths
from paceline.policy.interface import DraftChoice, DraftPlan, SequenceView, StepView
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.several_models import choose_in_turn
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import SpeculationParams
from paceline.step_records import DraftPasses, SequenceStep, StepRecord
from tests.policy.scenes import TARGET

MODELS = ("model:a", "model:b")
HERE = ("suffix", "model:a", "mixed:a", "model:b", "mixed:b")
CHEAP = CostCurve.of({1: 0.003, 8: 0.0035, 16: 0.005, 64: 0.016, 128: 0.032})
DEAR = CostCurve.of({1: 0.024, 8: 0.027, 16: 0.036, 64: 0.12, 128: 0.24})
EQUAL = dict.fromkeys(MODELS, CHEAP)
SLOW_READER = dict.fromkeys(MODELS, CostCurve.of({1: 0.003, 8: 0.0035, 16: 0.005, 64: 0.1, 128: 0.3}))
AUTO = SpeculationParams(enabled="auto")


class Engine:
    """Draws acceptance at a rate for each draft model, and remembers which of them holds whom."""

    def __init__(
        self, rates: dict[str, float], curves: Mapping[str, CostCurve] = EQUAL, **routes: RouteSettings
    ) -> None:
        self.curves = curves
        self.policy = SpeculationPolicy(RouteTable(routes), CalibratedCosts(TARGET, curves))
        self.rates = rates
        self.random = random.Random(1)
        self.held: dict[int, tuple[str, int]] = {}
        self.length: dict[int, int] = {}
        self.now = 0.0

    def step(self, sequences: dict[int, str]) -> DraftPlan:
        """Make a step of these sequences, by number, each on its route."""
        views = [self._view(number, route) for number, route in sequences.items()]
        plan = self.policy.plan(StepView(self.now, views, num_blocks=1000, num_blocks_used=10))
        parts = [self._part(view, choice) for view, choice in zip(views, plan.choices, strict=True)]
        passes = []
        for model in MODELS:
            depths = [c.draft_length for c in plan.choices if c.drafter and model_of(c.drafter) == model]
            rows = tuple(sum(depth > at for depth in depths) for at in range(max(depths, default=0)))
            if rows:
                passes.append(DraftPasses(model, rows, sum(self.curves[model].seconds_of(n) for n in rows)))
        total = sum(part.num_rows for part in parts)
        record = StepRecord(
            self.policy.step, self.now, 0.0, sum(one.seconds for one in passes), TARGET.seconds_of(total),
            0.0,
            tuple(parts), len(parts), 0, 0, 1000, 10,
            draft_rows=tuple(n for one in passes for n in one.rows), draft_passes=tuple(passes),
        )  # fmt: skip
        self.now += record.duration_s
        self.policy.on_step(record)
        return plan

    def _view(self, number: int, route: str) -> SequenceView:
        tokens = self.length.setdefault(number, 60)
        model, held = self.held.get(number, (None, 0))
        return SequenceView(
            number, route, AUTO, tokens, tokens - 40, 200, HERE, num_draft_missing=tokens - held,
            holds_drafts=held > 0, held_by=model, can_score=True,
        )  # fmt: skip

    def _part(self, view: SequenceView, choice: DraftChoice) -> SequenceStep:
        model, wanted = model_of(choice.drafter or "suffix"), choice.draft_length
        accepted = 0
        if model is not None and wanted:
            rate = self.rates[model]
            while accepted < wanted and self.random.random() < rate:
                accepted += 1
        self.length[view.number] += accepted + 1
        if model is not None and wanted:
            self.held[view.number] = (model, self.length[view.number] - 1)
        drafted = wanted if model is not None else 0
        return SequenceStep(
            "r", 0, view.route, choice.drafter, view.num_context_tokens, 1, True, wanted, drafted, accepted,
            accepted + 1, accepted + 1, confidences=(0.8,) * drafted, source=model, number=view.number,
        )  # fmt: skip


def models_used(plans: list[DraftPlan]) -> list[str]:
    return [
        model
        for plan in plans
        for choice in plan.choices
        if choice.draft_length and (model := model_of(choice.drafter or "suffix")) is not None
    ]


def serve(engine: Engine, routes: tuple[str, ...], first: int, steps: int = 40) -> list[DraftPlan]:
    """Answer once on each route, all at the same time."""
    return [engine.step({first + i: route for i, route in enumerate(routes)}) for _ in range(steps)]


@pytest.mark.parametrize("better", MODELS)
def test_each_is_tried_and_the_more_accepted_one_is_kept(better: str) -> None:
    rates = {model: 0.85 if model == better else 0.35 for model in MODELS}
    engine = Engine(rates, r=RouteSettings(drafters=MODELS))
    tried = [model for first in range(0, 60, 3) for model in models_used(serve(engine, ("r",) * 3, first))]
    assert set(tried) == set(MODELS)
    late = models_used(serve(engine, ("r",) * 3, 100))
    assert set(late) == {better}
    figures = {one.source: one for one in engine.policy.report("r").acceptance}
    assert all(figures[model].num_verified >= 32 for model in MODELS)


@pytest.mark.parametrize("dear", MODELS)
def test_of_equals_the_cheaper_one_is_kept(dear: str) -> None:
    engine = Engine(dict.fromkeys(MODELS, 0.8), {**EQUAL, dear: DEAR}, r=RouteSettings(drafters=MODELS))
    for first in range(0, 60, 3):
        serve(engine, ("r",) * 3, first)
    assert set(models_used(serve(engine, ("r",) * 3, 100))) == set(MODELS) - {dear}
    a, b = (engine.policy.costs.draft(model).seconds(1) for model in MODELS)
    assert (a > 2 * b) == (dear == "model:a"), "each has its own costs"
    assert (b > 2 * a) == (dear == "model:b")


def test_routes_with_different_models_draft_in_one_step() -> None:
    engine = Engine(dict.fromkeys(MODELS, 0.85), a=RouteSettings(drafters=("model:a",)),
                    b=RouteSettings(drafters=("model:b",)))  # fmt: skip
    serve(engine, ("a", "b", "a"), 0)  # in which each gets to know its own
    plans = serve(engine, ("a", "b", "a"), 3)
    both = [plan for plan in plans if all(choice.draft_length for choice in plan.choices)]
    assert len(both) > len(plans) // 2
    assert all([c.drafter for c in plan.choices] == ["model:a", "model:b", "model:a"] for plan in both)


def test_a_sequence_stays_with_the_model_that_has_read_it() -> None:
    """Of two that are nearly alike, to read another's text costs more than it brings."""
    engine = Engine({"model:a": 0.80, "model:b": 0.82}, SLOW_READER, r=RouteSettings(drafters=MODELS))
    for first in range(0, 60, 3):
        serve(engine, ("r",) * 3, first)
    for number in (200, 201):
        engine.length[number], engine.held[number] = 1600, (MODELS[number % 2], 1598)
    plans = [engine.step({200: "r", 201: "r"}) for _ in range(10)]
    used = [[model_of(c.drafter or "suffix") for c in plan.choices if c.draft_length] for plan in plans]
    assert [MODELS[0], MODELS[1]] in used
    assert all(model == MODELS[place] for one in used if len(one) == 2 for place, model in enumerate(one))


def test_one_model_in_turn_is_what_it_is_alone() -> None:
    engine = Engine(dict.fromkeys(MODELS, 0.8), r=RouteSettings(drafters=MODELS))
    serve(engine, ("r",) * 3, 0)
    planner = engine.policy._planner
    track = engine.policy._track("r")
    arms = [planner._arm(track, MODELS[0], MODELS[0], 6, 0.0) for _ in range(3)]
    passes = planner.passes
    alone = best_lengths(
        [Candidate(arm.profile, arm.start_s, arm.slots) for arm in arms], 3.0, planner.verify_alone,
        passes[MODELS[0]].seconds,
    )  # fmt: skip
    in_turn = choose_in_turn(arms, 3.0, planner.verify_alone, passes, None)
    assert in_turn.lengths == alone.lengths
    assert in_turn.speedup == pytest.approx(alone.speedup)
