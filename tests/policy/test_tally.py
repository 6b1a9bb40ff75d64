"""A step's sums, by route and together."""

from __future__ import annotations

from typing import Any

from paceline.policy.routes import RouteSettings
from paceline.policy.tally import tally_of
from paceline.policy.tracks import RouteTrack
from paceline.step_records import SequenceStep, StepRecord


def part(route: str, *, tokens: int = 1, drafted: int = 0, asked: int = 0, **more: Any) -> SequenceStep:
    values: dict[str, Any] = {
        "request_id": "r", "index": 0, "route": route, "drafter": None, "num_context_tokens": 100,
        "num_tokens": tokens, "is_decoding": True, "draft_length": asked, "num_drafted": drafted,
        "num_accepted": drafted, "num_new_tokens": drafted + 1, "num_sent_tokens": drafted + 1,
    }  # fmt: skip
    return SequenceStep(**{**values, **more})


def record(*parts: SequenceStep, draft_s: float = 0.0) -> StepRecord:
    return StepRecord(
        number=0, began_at=0.0, plan_s=0.0, draft_s=draft_s, verify_s=0.1, commit_s=0.0, sequences=parts,
        num_running=len(parts), num_waiting=0, num_preemptions=0, num_kv_blocks=0, num_kv_blocks_used=0,
    )  # fmt: skip


def test_sums_are_those_of_the_record() -> None:
    tracks = {name: RouteTrack(name, RouteSettings()) for name in ("a", "b")}
    of_label = {"a": tracks["a"], "alias": tracks["a"], "b": tracks["b"]}
    step = record(
        part("a", drafted=3, asked=4),
        part("alias", asked=4),
        # One that was preempted computes its answer again, and decodes all the same.
        part("b", tokens=7, scored=((0.5, True),)),
        part("b", tokens=32, is_decoding=False, num_new_tokens=0, num_context_tokens=64),
    )
    tally = tally_of(step, lambda label: of_label[label or ""])
    assert tally.num_rows == step.num_rows == 1 + 3 + 1 + 7 + 32
    assert (tally.num_decoding, tally.num_tokens, tally.context) == (3, 6, 300)
    assert (tally.num_prompt_rows, tally.prompt_context, tally.has_prompts) == (32, 64, True)
    assert (tally.num_asked, tally.is_asking, tally.has_draft_work) == (2, True, True)
    shares = {share.track.name: share for share in tally.shares}
    assert [(name, one.num_sequences, one.num_tokens) for name, one in shares.items()] == [
        ("a", 2, 5), ("b", 1, 1),
    ]  # fmt: skip
    assert len(shares["a"].drafting) == 2
    assert len(shares["b"].scored) == 1
    assert (tracks["a"].draft_lengths[0], tracks["a"].draft_lengths[3]) == (1.0, 1.0)


def test_time_spent_on_drafting_is_draft_work_though_nothing_was_verified() -> None:
    track = RouteTrack("a", RouteSettings())
    assert not tally_of(record(part("a")), lambda label: track).has_draft_work
    assert tally_of(record(part("a"), draft_s=0.1), lambda label: track).has_draft_work
