"""What the engine's thread does while nobody waits: answers that ended are scored, and serving goes on."""

from __future__ import annotations

from typing import Any

from paceline.engine.engine import Engine
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import SamplingParams, SpeculationParams
from paceline.runtime import Runtime
from tests.engine.scripted import request, shared_engine, spoiled
from tests.runtime.gated import LOGITS, V, go

DEAR = CalibratedCosts(CostCurve.of({1: 0.1, 64: 6.4}), {"model": CostCurve.of({1: 0.2, 128: 9.0})})
AUTO = SpeculationParams(enabled="auto")
PARAMS = SamplingParams(max_tokens=60)


def pausing_engine() -> tuple[Engine, SpeculationPolicy]:
    policy = SpeculationPolicy(RouteTable({}, any_label=RouteSettings()), DEAR)
    engine, _ = shared_engine(LOGITS, V, spoiled(LOGITS), num_blocks=200, policy=policy)
    return engine, policy


def num_verified(engine: Engine) -> float:
    policy = engine.policy
    assert isinstance(policy, SpeculationPolicy)
    return policy.acceptance.of("default", "model").calibration.counts.total


def test_an_idle_thread_lets_answers_be_scored_and_takes_requests_meanwhile() -> None:
    engine, _ = pausing_engine()

    async def main() -> None:
        async with Runtime(engine) as runtime:
            stream = await runtime.submit(request([1, 2, 3], PARAMS, AUTO, request_id="a"))
            await stream.results()
            while await runtime.call(num_verified) < 30:
                pass
            stream = await runtime.submit(request([4, 5], PARAMS, AUTO, request_id="b"))
            (answer,) = await stream.results()
            assert answer.usage.completion_tokens == 60

    go(main)
    assert engine.pool.num_used <= engine.pool.num_blocks


def test_idle_work_that_fails_does_not_end_the_thread(monkeypatch: Any) -> None:
    engine, policy = pausing_engine()

    def broken(route: str | None) -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(policy, "wants_scored", broken)

    async def main() -> None:
        async with Runtime(engine) as runtime:
            for name in ("a", "b"):
                stream = await runtime.submit(request([1, 2, 3], PARAMS, AUTO, request_id=name))
                (answer,) = await stream.results()
                assert answer.usage.completion_tokens == 60
                await runtime.call(num_verified)

    go(main)
