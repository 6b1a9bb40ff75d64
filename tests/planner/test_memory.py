"""Where memory goes, what fits, and what the draft model costs in sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.planner.memory import GB, MemoryDemand, ModelMemory, kv_bytes_per_token, plan_memory
from paceline.planner.shapes import BYTES_OF, KNOWN, nearest_shape
from paceline.planner.suggestions import suggestions

TARGET = ModelMemory(14 * GB, 131_072)
DRAFT = ModelMemory(2 * GB, 32_768)
DEMAND = MemoryDemand(80 * GB, TARGET, DRAFT, 4096, kv_bytes=40 * GB)


def test_kv_of_a_token_is_keys_and_values_of_all_layers() -> None:
    assert kv_bytes_per_token(32, 8, 128, 2) == 2 * 32 * 8 * 128 * 2 == 131_072


def test_what_is_set_aside_is_counted_in_sequences() -> None:
    plan = plan_memory(DEMAND)
    assert plan.free_bytes == (80 - 14 - 2 - 40) * GB
    assert plan.sequences_with_draft == int(40 * GB // (4096 * (131_072 + 32_768))) == 59
    assert plan.sequences_without_draft == int(42 * GB // (4096 * 131_072)) == 78
    assert plan.sequences_lost == 19
    assert plan.total_bytes == 56 * GB


def test_with_nothing_set_aside_kv_takes_what_is_left_in_whole_sequences() -> None:
    plan = plan_memory(replace(DEMAND, kv_bytes=None))
    each = 4096 * (131_072 + 32_768)
    assert plan.sequences_with_draft == int(64 * GB // each)
    assert plan.kv_bytes == plan.sequences_with_draft * each
    assert 0 <= plan.free_bytes < each
    assert plan.sequences_without_draft == int(66 * GB // (4096 * 131_072))


def test_so_many_sequences_are_what_kv_is_for_and_what_lacks_is_negative() -> None:
    plan = plan_memory(replace(DEMAND, kv_bytes=None, sequences=100))
    assert plan.kv_bytes == 100 * 4096 * (131_072 + 32_768)
    assert not plan.fits
    assert plan.free_bytes == pytest.approx(64 * GB - plan.kv_bytes)
    assert plan.to_json()["free_gb"] < 0
    assert plan.sequences_with_draft < 100


def test_without_a_draft_model_nothing_is_lost() -> None:
    plan = plan_memory(replace(DEMAND, draft=None))
    assert (plan.draft_bytes, plan.sequences_lost) == (0, 0)
    assert plan.to_json() == {
        "weights_gb": 14.0, "draft_gb": 0.0, "kv_gb": 40.0, "free_gb": 26.0, "fits": True,
        "sequences_lost": 0,
    }  # fmt: skip


def test_blocks_are_taken_whole_and_may_be_larger_than_their_positions() -> None:
    paged = ModelMemory(1.0, 100, block_size=16, block_bytes=2000)
    assert paged.kv_bytes(16) == 2000
    assert paged.kv_bytes(17) == 4000
    assert replace(paged, block_bytes=None).kv_bytes(17) == 3200


def test_work_and_the_program_take_their_part() -> None:
    target, draft = replace(TARGET, workspace_bytes=3 * GB), replace(DRAFT, workspace_bytes=1 * GB)
    plan = plan_memory(replace(DEMAND, target=target, draft=draft, process_bytes=0.5 * GB))
    assert plan.workspace_bytes == 4 * GB
    assert plan.free_bytes == pytest.approx(19.5 * GB)
    assert plan.sequences_without_draft == int(43 * GB // (4096 * 131_072)), "its work would be KV, too"


@given(
    st.floats(1, 200), st.floats(0.1, 20), st.floats(1e3, 1e6), st.floats(1e3, 1e6), st.integers(1, 100_000),
    st.one_of(st.none(), st.floats(0, 300)),
)  # fmt: skip
def test_a_draft_model_never_adds_sequences_and_the_parts_sum_up(
    weights: float, draft: float, kv: float, draft_kv: float, context: int, set_aside: float | None
) -> None:
    demand = MemoryDemand(
        300 * GB, ModelMemory(weights * GB, kv), ModelMemory(draft * GB, draft_kv), context,
        kv_bytes=None if set_aside is None else set_aside * GB,
    )  # fmt: skip
    plan = plan_memory(demand)
    assert plan.sequences_lost >= 0
    parts = plan.weight_bytes + plan.draft_bytes + plan.workspace_bytes + plan.kv_bytes + plan.free_bytes
    assert parts == pytest.approx(300 * GB)
    if set_aside is None:
        each = (kv + draft_kv) * context
        assert plan.sequences_with_draft * each <= (300 - weights - draft) * GB + 1e3
        assert (plan.sequences_with_draft + 1) * each > (300 - weights - draft) * GB - 1e3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory_bytes": 0.0}, "memory of 0"),
        ({"context": 0}, "context of 0"),
        ({"sequences": 0}, "sequences of 0"),
        ({"kv_bytes": -1.0}, "-1 bytes for KV"),
        ({"target": ModelMemory(-1.0, 1)}, "weights of -1"),
        ({"target": ModelMemory(1.0, float("nan"))}, "KV of a token of nan"),
    ],
)
def test_figures_out_of_range_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(DEMAND, **change)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_shapes_are_those_of_the_nearest_size_in_proportion() -> None:
    assert nearest_shape(7).name == "Llama 3.1 8B"
    assert nearest_shape(1).name == "Llama 3.2 1B"
    assert nearest_shape(70).name == "Llama 3.1 70B"
    assert nearest_shape(1000).name == "Llama 3.1 405B"
    assert [one.params_b for one in KNOWN] == sorted(one.params_b for one in KNOWN)
    with pytest.raises(ConfigError):
        nearest_shape(0)
    with pytest.raises(ConfigError):
        kv_bytes_per_token(0, 8, 128, 2)


def test_what_is_suggested_has_the_plan_s_numbers() -> None:
    room, cost, four_bits, lookups = suggestions(plan_memory(DEMAND), BYTES_OF["bf16"])
    assert "holds 59; all that is left would hold 95 sequences" in room
    assert "19 of 78 sequences (24%)" in cost
    saved = plan_memory(
        replace(DEMAND, draft=replace(DRAFT, weight_bytes=0.5625 * GB), kv_bytes=41.4375 * GB)
    )
    assert f"0.56 GB, which gives {saved.sequences_with_draft - 59} sequences back" in four_bits
    assert "suffix" in lookups


def test_what_does_not_fit_is_told_by_how_much_and_what_would() -> None:
    first, *_ = suggestions(plan_memory(replace(DEMAND, kv_bytes=None, sequences=200)))
    assert first.startswith("It lacks 70.22 GB. What is there has room for 95 sequences")
    tight = suggestions(plan_memory(replace(DEMAND, memory_bytes=16 * GB, kv_bytes=None)))
    assert "3 of 3 sequences (100%)" in tight[0]
    assert "never notices" not in tight[0], "there is no load below none"
    small = suggestions(plan_memory(replace(DEMAND, memory_bytes=10 * GB, kv_bytes=None)))
    assert "Not even one sequence fits" in small[1]


def test_a_small_loss_needs_no_other_drafter() -> None:
    cheap = suggestions(plan_memory(replace(DEMAND, draft=ModelMemory(0.1 * GB, 1000))))
    assert not any("suffix" in sentence for sentence in cheap)
