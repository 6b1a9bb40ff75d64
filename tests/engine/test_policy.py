"""The engine and its policy: what is asked, what is obeyed, and that no answer depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.drafters.interface import DraftProposal, DraftRequest, ScoreRequest
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.errors import InvalidParameterError
from paceline.models.scripted import ScriptedModel
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.interface import PLAIN, DraftChoice, DraftPlan, StepView
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import GenerationResult, SamplingParams, SpeculationParams, Verification
from paceline.step_records import StepRecord
from tests.engine.scripted import (
    draft_model,
    drain,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    shared_engine,
    spoiled,
)

V = 24
LOGITS = hashed_logits(V)
CHEAP = CalibratedCosts(CostCurve.of({1: 0.1, 64: 0.11}), {"model": CostCurve.of({1: 0.001, 128: 0.002})})
DEAR = CalibratedCosts(CostCurve.of({1: 0.1, 64: 6.4}), {"model": CostCurve.of({1: 0.2, 128: 9.0})})
"""Drafting never pays here."""
AUTO = SpeculationParams(enabled="auto")
SAMPLED = SamplingParams(temperature=0.9, seed=3, max_tokens=60)


STOPPED = ManualClock()
"""What is calibrated stays as it is, whatever this machine takes for a scripted model."""


class Ticking(ManualClock):
    """Each stage of a step takes ten milliseconds."""

    def __call__(self) -> float:
        self.advance(0.01)
        return super().__call__()


def auto_policy(**settings: Any) -> SpeculationPolicy:
    settings = {"min_output_length": 2, **settings}
    return SpeculationPolicy(RouteTable({}, any_label=RouteSettings(**settings)), CHEAP)


class Told:
    """An observer that keeps all records."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def on_step(self, record: StepRecord) -> None:
        self.records.append(record)

    def on_finish(self, result: GenerationResult) -> None:
        pass


class Choosing:
    """A policy that does as a test says."""

    def __init__(self, *choices: DraftChoice, rule: Any = None) -> None:
        self.choices = list(choices)
        self.rule = rule
        self.views: list[StepView] = []

    def check(self, route: str | None, speculation: SpeculationParams) -> None:
        pass

    def plan(self, view: StepView) -> DraftPlan:
        self.views.append(view)
        choice = self.choices.pop(0) if len(self.choices) > 1 else self.choices[0]
        return DraftPlan([choice] * len(view.sequences), self.rule)

    def on_step(self, record: StepRecord) -> None:
        pass

    def on_finish(self, result: GenerationResult) -> None:
        pass

    def wants_scored(self, route: str | None) -> str | None:
        return None

    def on_scored(self, route: str | None, model: str, scored: Sequence[tuple[float, bool]]) -> None:
        raise AssertionError("nothing was wanted")


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=60), SAMPLED])
@pytest.mark.parametrize("num_sequences", [1, 4])
def test_a_policy_changes_speed_and_no_answer(params: SamplingParams, num_sequences: int) -> None:
    prompts = [request([1 + i, 2, 3], params, AUTO, seed=i) for i in range(num_sequences)]
    plain = run(
        make_engine(LOGITS, V), *(request([1 + i, 2, 3], params, seed=i) for i in range(num_sequences))
    )
    policy = auto_policy()
    engine, _ = shared_engine(LOGITS, V, spoiled(LOGITS), num_blocks=200, policy=policy, clock=STOPPED)
    adaptive = run(engine, *prompts)
    assert [outcome(a) for a in adaptive] == [outcome(p) for p in plain]
    assert sum(a.speculation.num_drafted for a in adaptive) > 10
    assert all(a.speculation.drafter == "model" for a in adaptive)
    assert sum(a.speculation.num_steps for a in adaptive) < sum(p.speculation.num_steps for p in plain)


def test_what_the_policy_is_shown() -> None:
    policy = Choosing(DraftChoice(3, "model"))
    engine, drafter = shared_engine(LOGITS, V, policy=policy)
    engine.submit(request([1, 2, 3], SamplingParams(max_tokens=19), AUTO, request_id="a"))
    engine.submit(request([4, 5], SamplingParams(max_tokens=19), request_id="b"))
    engine.step()
    engine.step()
    (view,) = policy.views
    adaptive, plain = view.sequences
    num_held = view.num_blocks_of_drafts
    assert num_held == 0
    assert (adaptive.num_context_tokens, adaptive.num_output_tokens, adaptive.most_drafts) == (4, 1, 17)
    assert (adaptive.num_draft_missing, adaptive.holds_drafts, adaptive.can_score) == (4, False, True)
    assert adaptive.drafters == ("model",)
    assert plain.speculation.enabled is False
    assert view.num_blocks == engine.pool.num_blocks
    engine.step()
    adaptive = policy.views[1].sequences[0]
    assert adaptive.num_draft_missing <= 2
    assert adaptive.holds_drafts
    assert policy.views[1].num_blocks_of_drafts > 0
    assert drafter.num_held_blocks >= policy.views[1].num_blocks_of_drafts


def test_nobody_is_asked_where_nobody_speculates() -> None:
    policy = Choosing(DraftChoice(3, "model"))
    engine, _ = shared_engine(LOGITS, V, policy=policy)
    run(engine, request([1, 2, 3], SamplingParams(max_tokens=9)))
    assert policy.views == []


def test_a_route_that_is_off_does_no_draft_work_at_all() -> None:
    policy = SpeculationPolicy(RouteTable({"r": RouteSettings(speculation="off")}, "r"), CHEAP)
    engine, drafter = shared_engine(LOGITS, V, policy=policy)
    run(engine, request([1, 2, 3], SamplingParams(max_tokens=40), SpeculationParams(enabled="route")))
    model = drafter._model
    assert isinstance(model, ScriptedModel)
    assert model.num_forwards == 0
    assert drafter.num_held_blocks == drafter.num_prefix_queries == 0


def test_draft_kv_goes_back_where_the_policy_says_so() -> None:
    policy = Choosing(DraftChoice(2, "model"), DraftChoice(2, "model"), DraftChoice(keeps_drafts=False))
    engine, drafter = shared_engine(LOGITS, V, policy=policy)
    engine.submit(request([1, 2, 3], SamplingParams(max_tokens=30), AUTO))
    for _ in range(3):
        engine.step()
    assert drafter.num_held_blocks > 0
    engine.step()
    assert drafter.num_held_blocks == 0


class Stopping:
    """A rule that lets drafts go on to so many tokens, and verifies so many of them."""

    def __init__(self, most: int, verified: int) -> None:
        self.most, self.verified = most, verified
        self.drawn: dict[int, int] = {}

    def going_on(self, drawn: Sequence[tuple[int, float]], source: str = "model") -> list[bool]:
        for number, confidence in drawn:
            assert 0 < confidence <= 1
            self.drawn[number] = self.drawn.get(number, 0) + 1
        going = [self.drawn[number] < self.most for number, _ in drawn]
        for (number, _), goes in zip(drawn, going, strict=True):
            if not goes:
                del self.drawn[number]
        return going

    def prefers_match(self, number: int, confidences: Sequence[float]) -> bool:
        return bool(confidences)

    def lengths(self, proposals: Sequence[tuple[int, str, Sequence[float], bool]]) -> list[int]:
        return [min(len(c), self.verified) if may_be_cut else len(c) for _, _, c, may_be_cut in proposals]


def records_of(engine: Engine, *requests: Any) -> list[StepRecord]:
    told = Told()
    engine.observers.add(told)
    run(engine, *requests)
    return told.records


def test_a_rule_ends_drafts_early_and_keeps_what_is_worth_a_row() -> None:
    policy = Choosing(DraftChoice(6, "model"), rule=Stopping(3, 2))
    engine, _ = shared_engine(LOGITS, V, policy=policy)
    records = records_of(engine, request([1, 2, 3], SamplingParams(max_tokens=30), AUTO))
    drafting = [r for r in records if r.sequences[0].draft_length]
    assert len(drafting) > 3
    for record in drafting[:-3]:
        (part,) = record.sequences
        assert len(part.confidences) == 3
        assert part.num_drafted == 2
        assert len(record.draft_rows) == 3
        assert record.num_rows == 3


def test_sampled_drafts_are_ended_early_but_never_cut() -> None:
    policy = Choosing(DraftChoice(6, "model"), rule=Stopping(3, 1))
    speculation = SpeculationParams(enabled="auto", verification=Verification.REJECTION)
    engine, _ = shared_engine(LOGITS, V, policy=policy)
    records = records_of(engine, request([1, 2, 3], SAMPLED, speculation))
    lengths = {r.sequences[0].num_drafted for r in records if r.sequences[0].draft_length == 6}
    assert lengths == {3}


def test_a_mixed_drafter_takes_the_matches_that_the_rule_prefers_and_says_whose_drafts_they_are() -> None:
    text = [1, 2, 3, 4, 5, 6] * 3
    model = ScriptedDrafter(lambda asked: DraftProposal((7,), (0.5,)), name="model")
    for prefers, source, drafts in ((True, "suffix", (1, 2, 3)), (False, "model", (7,))):
        rule = Stopping(9, 9)
        rule.prefers_match = lambda number, confidences, prefers=prefers: prefers  # type: ignore[method-assign]
        mixed = MixedDrafter(SuffixDrafter(), model)
        asked = DraftRequest(1, text, 3, state(), Verification.COUPLED, rule=rule)
        (proposal,) = mixed.propose([asked])
        assert (proposal.source, proposal.token_ids) == (source, drafts)
    # Without a rule the length of the match settles it.
    (proposal,) = MixedDrafter(SuffixDrafter(), model).propose(
        [DraftRequest(1, text, 3, state(), Verification.COUPLED)]
    )
    assert proposal.source == "suffix"


def state(params: SamplingParams | None = None, seed: int = 0, prompt: Sequence[int] = ()) -> Any:
    from paceline.sampling.state import SamplingState

    return SamplingState(params or SamplingParams(), seed, prompt, (), V, V)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.9, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.2),
    ],
)
def test_scored_text_says_what_would_have_been_drafted(params: SamplingParams) -> None:
    prompt, seed = [1, 2, 3, 4, 5], 11
    text = [*prompt, 7, 9, 2, 4, 11, 3, 3, 8]
    scorer = draft_model(ScriptedModel(spoiled(LOGITS), V))
    (scored,) = scorer.score([ScoreRequest(1, text, state(params, seed, prompt), len(prompt))])
    assert len(scored) == len(text) - len(prompt)
    for index, (confidence, is_right) in enumerate(scored):
        end = len(prompt) + index
        fresh = draft_model(ScriptedModel(spoiled(LOGITS), V))
        at = state(params, seed, prompt)
        at.append(text[len(prompt) : end])
        (proposal,) = fresh.propose([DraftRequest(1, text[:end], 1, at, Verification.COUPLED)])
        assert is_right == (proposal.token_ids[0] == text[end])
        assert confidence == pytest.approx(proposal.confidences[0])
    # What was read is not read again, and drafting goes on from there.
    longer = [*text, 1, 2]
    (more,) = scorer.score([ScoreRequest(1, longer, state(params, seed, prompt), len(prompt))])
    assert len(more) == 2
    assert scorer.num_cached_tokens(1) == len(longer) - 1


def test_a_long_prompt_is_read_chunk_by_chunk_before_anything_is_scored() -> None:
    scorer = draft_model(ScriptedModel(LOGITS, V), prefill_chunk=8)
    text = [i % V for i in range(30)]
    scores = [scorer.score([ScoreRequest(1, text, state(prompt=text[:20]), 20)])[0] for _ in range(5)]
    assert [len(one) for one in scores] == [0, 0, 5, 5, 0]


def test_a_probe_by_scoring_brings_no_row_and_changes_nothing() -> None:
    plain = run(make_engine(LOGITS, V), request([1, 2, 3], SAMPLED, seed=5))
    policy = Choosing(PLAIN, PLAIN, PLAIN, PLAIN, DraftChoice(0, "model", scores=True))
    engine, _ = shared_engine(LOGITS, V, spoiled(LOGITS), policy=policy)
    told = Told()
    engine.observers.add(told)
    scored = run(engine, request([1, 2, 3], SAMPLED, AUTO, seed=5))
    assert [outcome(a) for a in scored] == [outcome(p) for p in plain]
    parts = [r.sequences[0] for r in told.records]
    assert any(len(part.scored) > 3 for part in parts)
    assert all(part.num_rows == 1 for part in parts if part.is_decoding)


def test_a_drafter_that_cannot_score_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Choosing(DraftChoice(0, "model", scores=True))
    engine, drafter = shared_engine(LOGITS, V, policy=policy)

    def broken(requests: object) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(drafter, "score", broken)
    (answer,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=9), AUTO))
    assert answer.usage.completion_tokens == 9
    assert engine.pool.num_used == 0


def test_requests_that_leave_it_to_a_policy_need_one() -> None:
    engine, _ = shared_engine(LOGITS, V)
    for enabled in ("auto", "route"):
        with pytest.raises(InvalidParameterError, match="was started without a policy"):
            engine.submit(request([1], speculation=SpeculationParams(enabled=enabled)))
    assert not engine.has_work


def test_an_unknown_route_is_refused_when_the_request_comes() -> None:
    policy = SpeculationPolicy(RouteTable({"chat": RouteSettings()}), CHEAP)
    engine, _ = shared_engine(LOGITS, V, policy=policy)
    with pytest.raises(InvalidParameterError, match="no route; expected one of 'chat'"):
        engine.submit(request([1], speculation=SpeculationParams(enabled="route")))
    assert not engine.has_work


def test_a_policy_learns_as_an_observer() -> None:
    policy = auto_policy()
    engine, _ = shared_engine(LOGITS, V, policy=policy, clock=Ticking())
    for number in range(4):
        engine.submit(request([1, 2, number], SamplingParams(max_tokens=30), AUTO, request_id=str(number)))
        drain(engine)
    report = policy.report("default")
    assert report.output_length == 30
    assert report.acceptance[0].rate == pytest.approx(1.0)
    assert report.speedup.estimate is not None
    assert policy.totals.num_steps > 10


def test_an_unloaded_draft_model_is_not_chosen() -> None:
    engine, drafter = shared_engine(
        LOGITS,
        V,
        policy=auto_policy(),
        clock=STOPPED,
        draft_options={"reload": lambda: ScriptedModel(LOGITS, V, kv_bytes_per_token=8)},
    )
    engine.unload_drafter("model")
    (answer,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=20), AUTO))
    assert answer.speculation.num_drafted == 0
    assert answer.speculation.drafter is None
    engine.load_drafter("model")
    (answer,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=20), AUTO))
    assert answer.speculation.num_drafted > 0
    assert drafter.num_held_blocks == 0


def test_answers_that_ended_are_scored_in_idle_time_where_the_policy_wants_it() -> None:
    policy = SpeculationPolicy(RouteTable({}, any_label=RouteSettings()), DEAR)
    engine, drafter = shared_engine(LOGITS, V, spoiled(LOGITS), num_blocks=200, policy=policy, clock=STOPPED)
    assert engine.work_idle() is False
    run(engine, request([1, 2, 3], SamplingParams(max_tokens=80), AUTO, request_id="a"))
    assert policy.wants_scored(None)
    known = policy.acceptance.of("default", "model").calibration.counts
    assert known.total == 0
    engine.submit(request([1, 2], SamplingParams(max_tokens=5), request_id="b"))
    assert engine.work_idle() is False, "whoever waits comes first"
    drain(engine)
    passes = 0
    while engine.work_idle():
        passes += 1
    assert passes == 3
    assert known.total > 30
    assert drafter.num_held_blocks == engine.pool.num_used == 0


def test_idle_scoring_stops_at_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SpeculationPolicy(RouteTable({}, any_label=RouteSettings()), DEAR)
    engine, drafter = shared_engine(LOGITS, V, policy=policy)
    run(engine, request([1, 2, 3], SamplingParams(max_tokens=40), AUTO))

    def broken(requests: object) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(drafter, "score", broken)
    assert [engine.work_idle() for _ in range(3)] == [True, False, False]


def test_a_policy_that_fails_costs_its_drafts_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Choosing):
        def plan(self, view: StepView) -> DraftPlan:
            raise RuntimeError("no idea")

    engine, _ = shared_engine(LOGITS, V, policy=Broken(PLAIN))
    (answer,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=9), AUTO))
    assert answer.usage.completion_tokens == 9
    assert answer.speculation.num_drafted == 0
    assert "the policy failed" in caplog.text


def test_a_rule_that_fails_lets_all_drafts_be_verified(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Stopping):
        def lengths(self, proposals: Sequence[tuple[int, str, Sequence[float], bool]]) -> list[int]:
            raise RuntimeError("no idea")

    engine, _ = shared_engine(LOGITS, V, policy=Choosing(DraftChoice(3, "model"), rule=Broken(3, 1)))
    (answer,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=20), AUTO))
    assert answer.speculation.num_accepted > 10
    assert "the policy's rule failed" in caplog.text
