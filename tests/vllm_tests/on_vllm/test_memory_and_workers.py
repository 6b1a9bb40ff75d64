"""Small KV memory, and two workers, on the real vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.routes import RouteSettings
from tests.vllm_tests.on_vllm.served import COUNTING, NGRAM, Asked, Served, draft_model

ON = RouteSettings(speculation="on", draft_length=4)
OFF = RouteSettings(speculation="off")


def test_preemption_loses_nobody_and_changes_no_answer(model: Path, tmp_path: Path) -> None:
    # Four sequences of some 150 tokens, five blocks each, in 16 blocks.
    served = Served(
        model, tmp_path, {"chat": ON, "batch": OFF}, speculative_config=NGRAM, max_num_seqs=4, block_size=32,
        num_gpu_blocks_override=17, enable_prefix_caching=False,
    )  # fmt: skip
    asked = [
        Asked(f"Count {number}: {COUNTING}", route, 110) for number in range(2) for route in ("chat", "batch")
    ]
    together = served.run(*asked)
    found = served.look(lambda one: one.num_running == one.num_waiting == 0)
    assert found.num_preemptions > 0
    assert found.num_preemptions == sum(load.num_preemptions for load in found.loads.values())
    alone = [served.run(one)[0] for one in asked]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.finish_reason for one in together] == ["length"] * 4
    assert together[1].drafted == together[3].drafted == ()
    found = served.look(lambda one: one.num_running == one.num_waiting == 0)
    assert {name: dict(one.num_answers) for name, one in found.counts.routes.items()} == {
        "chat": {"length": 4}, "batch": {"length": 4},
    }  # fmt: skip
    assert [one.num_output_tokens for one in found.counts.routes.values()] == [440, 440]
    assert found.errors == ()
    served.close()


@pytest.fixture
def even_model(model: Path, tmp_path: Path) -> Path:
    """A model that two workers can share: an even number of heads, random weights."""
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path / "even"
    LlamaForCausalLM(config).save_pretrained(folder)
    for path in model.glob("token*"):
        shutil.copy(path, folder)
    return folder


def test_two_workers(even_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    served = Served(
        even_model, tmp_path / "bridge", {"chat": ON, "batch": OFF},
        speculative_config=draft_model(even_model), tensor_parallel_size=2,
        distributed_executor_backend="mp", worker_cls="paceline.vllm.RouteWorker",
    )  # fmt: skip
    prompts = [f"Count {number}: {COUNTING}" for number in range(2)]
    on, off = served.run(Asked(prompts[0], "chat"), Asked(prompts[1], "batch"))
    plain_on, plain_off = served.run(Asked(prompts[0], "batch"), Asked(prompts[1], "batch"))
    assert (on.token_ids, off.token_ids) == (plain_on.token_ids, plain_off.token_ids)
    assert max(on.drafted) == 4
    assert off.drafted == plain_on.drafted == plain_off.drafted == ()
    found = served.look(lambda one: one.num_running == one.num_waiting == 0)
    drafts = found.counts.routes["chat"].drafts["model"]
    assert drafts.num_drafted == sum(on.drafted)
    assert drafts.num_accepted > 0  # both workers draft what both verify
    assert found.skips_drafting
    served.close()
    policy = json.loads(served.bridge.policy_path(0).read_text())
    assert policy["parts"]["workers"] == "2 x 1"
