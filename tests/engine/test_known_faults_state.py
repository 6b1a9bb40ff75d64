"""Faults that other engines had in what they keep between steps: seeds, caches, drafters, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paceline.drafters.interface import Drafter, DraftProposal, DraftRequest
from paceline.drafters.model import ModelDrafter
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixAutomaton, SuffixDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import EmptyPromptError, PromptTooLongError, RequestError
from paceline.models.scripted import ScriptedModel, table_logits
from paceline.records import FinishReason, SamplingParams, draw_seed
from tests.engine.scripted import (
    OFF,
    always,
    draft_model,
    drain,
    hashed_logits,
    make_engine,
    oracle,
    outcome,
    request,
    run,
    speculate,
)

V = 24


class Spy:
    """Records what another drafter was given and what it proposed."""

    name = "spy"

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        proposals = self.inner.propose(requests)
        self.seen += [(tuple(r.token_ids), p.token_ids) for r, p in zip(requests, proposals, strict=True)]
        return proposals

    def release(self, sequence_id: int) -> None:
        self.inner.release(sequence_id)


def test_a_seed_is_enough_whatever_the_neighbours_do() -> None:
    """B16: alone twice, among unseeded neighbours, among drafting neighbours, after other requests."""
    logits = hashed_logits(V, sharpness=1.0)
    params = SamplingParams(temperature=2.0, max_tokens=20)
    mine = request([1, 2, 3], params, speculate(3, "never"), seed=42)
    drafters = {"never": ScriptedDrafter(lambda asked: []), "wrong": always(1, 2, 3)}
    alone = [outcome(run(make_engine(logits, V, drafters), mine)[0]) for _ in range(2)]
    assert alone[0] == alone[1]
    for speculation in (OFF, speculate(3, "wrong")):
        neighbours = [request([5, i], params, speculation, seed=draw_seed()) for i in range(7)]
        assert (
            outcome(run(make_engine(logits, V, drafters), *neighbours[:3], mine, *neighbours[3:])[3])
            == alone[0]
        )
    engine = make_engine(logits, V, drafters)
    for i in range(20):
        run(engine, request([i], params, OFF, seed=i))
    assert outcome(run(engine, mine)[0]) == alone[0]
    assert outcome(run(engine, replace(mine, seed=43))[0]) != alone[0]


def test_unseeded_requests_do_not_share_a_stream() -> None:
    """B18: eight one after another, then two identical ones in one batch."""
    engine = make_engine(lambda _: [0.0] * 16, 16)
    params = SamplingParams(temperature=1.0, max_tokens=32)
    seen = {run(engine, request([1], params, seed=draw_seed()))[0].token_ids for _ in range(8)}
    seen |= {r.token_ids for r in run(engine, *(request([1], params, seed=draw_seed()) for _ in range(2)))}
    assert len(seen) == 10


def _draft_model(logits, spoil: Sequence[int] = ()) -> tuple[ModelDrafter, ScriptedModel]:  # type: ignore[no-untyped-def]
    model = ScriptedModel(logits, V)
    return draft_model(model), model


def test_draft_cache_keeps_up_after_full_acceptance() -> None:
    """B31: the same model on both sides is accepted always, and the draft cache has no gap."""
    logits = hashed_logits(V)
    drafter, model = _draft_model(logits)
    engine = make_engine(logits, V, {"model": drafter})
    (result,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=64), speculate(4, "model")))
    assert result.speculation.acceptance_rate == 1.0
    # One step emits five tokens: 63 after the first take 13 steps, the last with fewer drafts.
    assert result.speculation.num_steps == 13
    # The prompt once, then two tokens of catch-up (one at first) and one for each further draft.
    assert model.rows[:9] == [4, 1, 1, 1, 2, 1, 1, 1, 2]


def test_draft_cache_keeps_up_after_forced_rejection() -> None:
    """B31: with a rejection forced in every third round, what is not forced is accepted."""
    logits = hashed_logits(V)
    drafter, _ = _draft_model(logits)
    rounds = 0
    cached_before: list[tuple[int, int]] = []

    def spoil(asked: DraftRequest) -> list[int]:
        nonlocal rounds
        rounds += 1
        cached_before.append((drafter.num_cached_tokens(asked.sequence_id), len(asked.token_ids)))
        (proposal,) = drafter.propose([asked])
        ids = list(proposal.token_ids)
        if rounds % 3 == 0 and ids:
            ids[1 % len(ids)] = (ids[1 % len(ids)] + 1) % V
        return ids

    engine = make_engine(logits, V, {"scripted": ScriptedDrafter(spoil)})
    params = SamplingParams(max_tokens=64)
    (on,) = run(engine, request([1, 2, 3], params, speculate(4)))
    (off,) = run(make_engine(logits, V), request([1, 2, 3], params))
    assert outcome(on) == outcome(off)
    num_forced = rounds // 3
    rejected = on.speculation.num_drafted - on.speculation.num_accepted
    assert 0 < rejected <= 3 * num_forced
    # Two tokens at most are missing when a round begins (the last accepted draft and the bonus).
    assert all(length - cached <= 2 for cached, length in cached_before[1:])


def test_no_block_leaks() -> None:
    """B32: 200 requests, a third aborted, some preempted; both pools come back whole."""
    rng = np.random.default_rng(32)
    logits = hashed_logits(V)
    drafter, _ = _draft_model(logits)
    engine = make_engine(
        logits, V, {"model": drafter}, num_blocks=12, limits=SchedulerLimits(max_num_seqs=8, prefill_chunk=16)
    )
    for i in range(200):
        prompt = rng.integers(0, V, rng.integers(1, 60)).tolist()
        params = SamplingParams(max_tokens=int(rng.integers(1, 60)))
        engine.submit(request(prompt, params, speculate(8, "model"), request_id=f"r{i}"))
        for _ in range(int(rng.integers(0, 4))):
            engine.step()
            assert engine.pool.num_free + engine.pool.num_used == engine.pool.num_blocks
        if i % 3 == 0:
            engine.abort(f"r{i - int(rng.integers(0, 3))}")
    drain(engine)
    assert engine.num_preemptions > 0
    assert engine.pool.num_free == engine.pool.num_blocks
    assert drafter.pool.num_free == drafter.pool.num_blocks


def test_nothing_is_carried_from_one_request_to_the_next() -> None:
    """B36: after a long request and an aborted one, a short one is drafted for from its own text only."""
    logits = table_logits({i: (i + 1) % 8 for i in range(8)} | {20: 21, 21: 20}, V)
    spy = Spy(SuffixDrafter())
    engine = make_engine(logits, V, {"scripted": spy}, limits=SchedulerLimits(max_num_seqs=1))
    params = SamplingParams(max_tokens=100)
    run(engine, request([i % 8 for i in range(600)], params, speculate(4)))
    engine.submit(request([i % 8 for i in range(300)], params, speculate(4), request_id="cancelled"))
    for _ in range(5):
        engine.step()
    assert engine.abort("cancelled")
    drain(engine)
    spy.seen.clear()
    short = request([20, 21] * 30, params, speculate(4))
    (result,) = run(engine, short)
    assert spy.seen
    assert all(set(drafts) <= set(history) for history, drafts in spy.seen)
    fresh = run(make_engine(logits, V, {"scripted": Spy(SuffixDrafter())}), short)[0]
    assert result.speculation.acceptance_rate == fresh.speculation.acceptance_rate
    assert not spy.inner._histories


def test_suffix_search_is_linear_in_the_history() -> None:
    """B41: work counted, not timed, since the machine is shared: 50,000 tokens without repeats."""
    history = SuffixAutomaton()
    history.extend(range(50_000))
    assert history.repeat == (0, 0)
    assert history.num_states <= 2 * 50_000
    history.extend(range(500))
    assert history.repeat[0] == 500


def test_figures_of_nothing_are_none_and_not_a_division_by_zero() -> None:
    """B45: one token, no drafts; then temperature 0 with drafts; then an abort before the first token."""
    logits = hashed_logits(V)
    engine = make_engine(logits, V, {"scripted": oracle(logits)})
    (one,) = run(engine, request([1], SamplingParams(max_tokens=1), speculate(4)))
    assert one.speculation.acceptance_rate is None
    assert one.speculation.acceptance_length is None
    assert one.timing.tokens_per_second is None
    (some,) = run(engine, request([1], SamplingParams(max_tokens=9), speculate(3)))
    assert some.speculation.acceptance_rate == 1.0
    assert some.speculation.acceptance_length == 4.0
    engine.submit(request([1], SamplingParams(max_tokens=9), speculate(3), request_id="gone"))
    assert engine.abort("gone")
    (chunk,) = drain(engine)
    assert chunk.result is not None
    assert chunk.result.finish_reason is FinishReason.ABORT
    assert chunk.result.speculation.acceptance_rate is None
    assert chunk.result.timing.ttft_s is None
    assert chunk.result.usage.completion_tokens == 0


def test_counts_add_up_to_usage() -> None:
    """B43: emitted over steps, and one for each prefill sample, is what usage says; mixed stops and caps."""
    logits = hashed_logits(V)
    engine = make_engine(logits, V, {"scripted": oracle(logits, [2], V)}, eos_ids=frozenset({5, 6}))
    asked = [
        request([i], SamplingParams(max_tokens=1 + 3 * i, stop=() if i % 2 else ("k",)), speculate(4))
        for i in range(16)
    ]
    for result in run(engine, *asked):
        stats = result.speculation
        assert stats.num_accepted <= stats.num_drafted
        assert stats.num_accepted <= stats.num_emitted
        if result.token_ids:
            assert stats.num_emitted + 1 == result.usage.completion_tokens


def test_empty_prompt_is_refused_and_the_engine_lives() -> None:
    """B50: no tokens at all is refused; one token is fine under every drafter."""
    logits = hashed_logits(V)
    drafter, _ = _draft_model(logits)
    engine = make_engine(logits, V, {"suffix": SuffixDrafter(2), "model": drafter})
    with pytest.raises(EmptyPromptError, match="zero tokens"):
        engine.submit(request([]))
    assert not engine.has_work
    params = SamplingParams(max_tokens=12)
    expected = outcome(run(engine, request([3], params))[0])
    for name in ("suffix", "model"):
        assert outcome(run(engine, request([3], params, speculate(4, name)))[0]) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request([1] * 64), "at most 63"),
        (request([V]), f"prompt token id {V}"),
        (request([-1]), "prompt token id -1"),
        (request([1], None, speculate(2, "other")), "'scripted'"),
        (request([1], SamplingParams(logit_bias={V: 1.0})), "logit_bias"),
        (request([1], SamplingParams(stop_token_ids=(V + 1,))), "stop_token_ids"),
    ],
)
def test_what_could_never_run_is_refused_at_submission(asked, message: str) -> None:  # type: ignore[no-untyped-def]
    engine = make_engine(hashed_logits(V), V, {"scripted": always(1)}, context_length=64)
    with pytest.raises(RequestError, match=message):
        engine.submit(asked)
    assert not engine.has_work


def test_prompt_too_long_says_what_to_do() -> None:
    engine = make_engine(hashed_logits(V), V, context_length=64)
    with pytest.raises(PromptTooLongError, match="Shorten the prompt"):
        engine.submit(request([1] * 65))


def test_broken_logits_end_one_request_and_not_the_others() -> None:
    def logits(token_ids):  # type: ignore[no-untyped-def]
        row = hashed_logits(V)(token_ids)
        return row * np.nan if token_ids[0] == 9 and len(token_ids) > 5 else row

    engine = make_engine(logits, V, {"scripted": always(1, 2)})
    params = SamplingParams(max_tokens=10)
    good, bad = run(engine, request([1], params, speculate(2)), request([9], params, speculate(2)))
    assert good.finish_reason is FinishReason.LENGTH
    assert bad.finish_reason is FinishReason.ERROR
    assert len(bad.token_ids) == 5
    assert "a logit of nan at output position 5" in str(bad.error)
    assert engine.pool.num_free == engine.pool.num_blocks
