"""`paceline plan`: the worked examples, what is refused, and the document, whose examples are run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.policy.costs import CostCurve
from paceline.policy.simulation.accelerators import ACCELERATORS
from paceline.policy.step_costs import CalibratedCosts
from tests.tiny_models import TinyModel

DOCUMENT = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
TIMES = ("--draft-ms", "20", "--verify-ms", "80", "--plain-ms", "80", "--k", "4")
LARGE = ("--accelerator", "h100", "--num-accelerators", "8", "--params-b", "70", "--draft-params-b", "1",
         "--acceptance", "0.8")  # fmt: skip
BREAK_EVEN_KEYS = ["tokens_per_step", "speedup", "break_even_acceptance", "best_k"]
MEMORY_KEYS = ["weights_gb", "draft_gb", "kv_gb", "free_gb", "fits", "sequences_lost"]


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def as_json(*arguments: str) -> Any:
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def break_even(*arguments: str) -> dict[str, Any]:
    found = as_json("break-even", *TIMES, *arguments)
    assert isinstance(found, dict)
    assert list(found) == BREAK_EVEN_KEYS
    return found


def refused(*arguments: str) -> str:
    result = plan(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_counted_tokens_and_independent_acceptance_are_two_countings() -> None:
    counted = break_even("--tokens-per-step", "2.4")
    assert (counted["tokens_per_step"], counted["best_k"]) == (2.4, None)
    assert counted["speedup"] == pytest.approx(1.92)
    independent = break_even("--acceptance", "0.60")
    assert independent["tokens_per_step"] == pytest.approx((1 - 0.6**5) / (1 - 0.6))
    assert independent["tokens_per_step"] == pytest.approx(2.31, abs=0.005)
    assert independent["speedup"] == pytest.approx(1.84, abs=0.005)
    for found in (counted, independent):
        assert found["break_even_acceptance"] == pytest.approx(0.20, abs=0.005)
    shown = plan("break-even", *TIMES, "--tokens-per-step", "2.4").stdout
    assert "24.0 against 12.5" in shown
    assert "independence would need 0.62" in shown


def test_one_token_a_step_is_a_loss_and_the_target_s_own_token_makes_a_quarter_a_gain() -> None:
    lost = plan("break-even", *TIMES, "--tokens-per-step", "1").stdout
    assert "100.0 ms against 80.0" in lost
    assert "0.80x, a loss" in lost
    quarter = break_even("--acceptance", "0.25")
    assert quarter["tokens_per_step"] == pytest.approx(1.33, abs=0.005)
    assert quarter["speedup"] == pytest.approx(1.07, abs=0.005)


@pytest.mark.parametrize(("acceptance", "tokens"), [("0.8", 3.36), ("0.3", 1.43)])
def test_high_and_low_acceptance(acceptance: str, tokens: float) -> None:
    assert break_even("--acceptance", acceptance)["tokens_per_step"] == pytest.approx(tokens, abs=0.005)


def test_acceptance_by_position_and_the_best_length_among_those_given() -> None:
    found = break_even("--acceptance", "0.9,0.8,0.7,0.6")
    assert found["tokens_per_step"] == pytest.approx(1 + 0.9 + 0.72 + 0.504 + 0.3024)
    assert found["best_k"] == 4
    assert "by position: 0.9, 0.8" in plan("break-even", *TIMES, "--acceptance", "0.9,0.8,0.7,0.6").stdout
    hopeless = break_even("--acceptance", "0")
    assert (hopeless["best_k"], hopeless["speedup"]) == (0, pytest.approx(0.8))


@pytest.fixture
def curve(tmp_path: Path) -> dict[str, str]:
    """The same curve in every form that is read."""
    target = CostCurve.of({1: 0.080, 2: 0.085, 5: 0.100, 9: 0.2})
    costs = CalibratedCosts(
        target, {"model": CostCurve.of({1: 0.005, 8: 0.006})}, description={"machine": "M"}
    )
    texts = {
        "calibrate.json": json.dumps({"target": "t", "draft": "d", **costs.to_json()}),
        "curve.json": json.dumps(target.to_json()),
        "curve.csv": "rows,ms\n1,80\n2,85\n5,100\n9,200\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


@pytest.mark.parametrize("name", ["calibrate.json", "curve.json", "curve.csv"])
def test_a_curve_says_how_verification_grows(curve: dict[str, str], name: str) -> None:
    found = as_json(
        "break-even", "--draft-ms", "20", "--k", "4", "--acceptance", "0.8", "--curve", curve[name]
    )
    assert found["speedup"] == pytest.approx(3.3616 * 80 / 120)
    assert found["best_k"] == 4, "behind four drafts rows cost 25 ms each"
    # Times that are given win; the curve then says only how they grow.
    scaled = break_even("--acceptance", "0.8", "--curve", curve[name])
    assert scaled["speedup"] == pytest.approx(3.3616 * 80 / 100)
    assert scaled["best_k"] == 4
    assert break_even("--acceptance", "0.8")["best_k"] == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no acceptance"),
        (("--acceptance", "0.6", "--tokens-per-step", "2"), "both --acceptance and --tokens-per-step"),
        (("--acceptance", "60"), "Write 80 % as 0.8"),
        (("--acceptance", "a"), "--acceptance 'a'"),
        (("--acceptance", "0.8,0.7"), "acceptance at 2 positions"),
        (("--tokens-per-step", "6"), "6 tokens per step"),
        (("--tokens-per-step", "0.4"), "Count the target's own token"),
        (("--acceptance", "0.6", "--draft-ms", "-1"), "draft time of -1 ms"),
        (("--acceptance", "0.6", "--plain-ms", "nan"), "plain time of nan ms"),
        (("--acceptance", "0.6", "--k", "0"), "--k 0"),
        (("--acceptance", "0.6", "--curve", "/nowhere"), "/nowhere, which cannot be read"),
    ],
)
def test_break_even_refuses(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("break-even", *TIMES, *arguments)


def test_break_even_needs_times_or_a_curve_that_can_be_read(tmp_path: Path) -> None:
    given = ("break-even", "--draft-ms", "1", "--k", "2", "--acceptance", "0.5")
    assert "no --plain-ms" in refused(*given)
    assert "no --verify-ms" in refused(*given, "--plain-ms", "2")
    for text in (
        "{",
        "[1]",
        '{"schema": 7, "target": {}}',
        '{"target": 3, "schema": 1}',
        "rows,ms\n",
        "a,b\n1,2\n",
    ):
        path = tmp_path / "bad"
        path.write_text(text)
        assert "Write it anew" in refused(*given, "--curve", str(path)), text


MEMORY = ("--params-b", "7", "--dtype", "bf16", "--draft-params-b", "1", "--kv-gb", "40", "--memory-gb", "80")


def test_7b_and_1b_with_40_gb_of_kv_fit_80_gb_with_24_free() -> None:
    found = as_json("memory", *MEMORY)
    assert list(found) == MEMORY_KEYS
    assert found == {
        "weights_gb": 14, "draft_gb": 2, "kv_gb": 40, "free_gb": 24, "fits": True, "sequences_lost": 19,
    }  # fmt: skip
    shown = plan("memory", *MEMORY).stdout
    assert "78 without the draft model, 59 with it: 19 lost" in " ".join(shown.split())
    assert "all assumed: Llama 3.1 8B's" in shown


def test_sequences_lost_are_those_of_the_shape_and_context_that_are_stated() -> None:
    shape = ("--layers", "28", "--kv-heads", "4", "--head-size", "128", "--draft-layers", "16",
             "--draft-kv-heads", "8", "--draft-head-size", "64", "--context", "2000")  # fmt: skip
    found = as_json("memory", *MEMORY, *shape)
    target, draft = 2 * 28 * 4 * 128 * 2 * 2000, 2 * 16 * 8 * 64 * 2 * 2000
    assert found["sequences_lost"] == int(42e9 // target) - int(40e9 // (target + draft))
    assert "assumed" not in plan("memory", *MEMORY, *shape).stdout
    halved = as_json("memory", *MEMORY, *shape, "--kv-dtype", "fp8")
    assert halved["sequences_lost"] == int(42e9 // (target / 2)) - int(40e9 // ((target + draft) / 2))


def test_memory_of_accelerators_and_what_does_not_fit() -> None:
    given = ("memory", "--params-b", "70", "--draft-params-b", "1", "--sequences", "64")
    one = as_json(*given, "--accelerator", "h100")
    assert not one["fits"]
    assert one["free_gb"] < 0
    eight = as_json(*given, "--accelerator", "h100", "--num-accelerators", "8")
    assert eight["fits"]
    assert eight["free_gb"] == pytest.approx(one["free_gb"] + 7 * 80)
    assert "none, 156.49 GB lacking" in plan(*given, "--accelerator", "h100").stdout
    assert as_json("memory", "--params-b", "7", "--memory-gb", "80")["sequences_lost"] == 0


def test_a_link_is_priced() -> None:
    shown = plan("memory", *MEMORY, "--link-gb-s", "1", "--link-latency-us", "100").stdout
    (line,) = [line for line in shown.splitlines() if "across as given" in line]
    assert line.split()[-9:] == ["2.4", "kB", "202", "us", "121.1", "MB", "in", "121.28", "ms"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("plan")
    target = TinyModel("qwen2", tensor_type="Q8_0").write(folder / "target.gguf")
    draft = TinyModel("qwen2", num_layers=1, tensor_type="Q8_0").write(folder / "draft.gguf")
    return str(target), str(draft)


def test_files_are_planned_as_the_engine_holds_them(pair: tuple[str, str]) -> None:
    from paceline.models.load import load_model
    from paceline.models.options import LoadOptions, Weights

    target = load_model(Path(pair[0])).model
    draft = load_model(Path(pair[1]), options=LoadOptions(weights=Weights.INT4)).model
    given = (
        "--target",
        pair[0],
        "--draft",
        pair[1],
        "--memory-gb",
        "4",
        "--context",
        "256",
        "--sequences",
        "3",
    )
    found = as_json("memory", *given)
    assert found["weights_gb"] == pytest.approx(target.weight_bytes / 1e9, abs=1e-6)  # type: ignore[attr-defined]
    assert found["draft_gb"] == pytest.approx(draft.weight_bytes / 1e9, abs=1e-6)  # type: ignore[attr-defined]
    blocks = 16 * target.kv_bytes_per_token()
    assert found["kv_gb"] == pytest.approx(3 * (16 + 8) * blocks / 1e9, abs=1e-6), (
        "the draft's hold twice as much"
    )
    assert found["fits"]
    shown = plan("memory", *given).stdout
    assert "interpreter, libraries and tokenizers, measured" in shown
    assert "blocks of 32 positions" in shown
    alone = plan("memory", "--target", pair[0], "--memory-gb", "4", "--context", "256")
    assert "a quarter of what weights and work leave" in " ".join(alone.stdout.split())


def test_kv_is_set_aside_as_the_engine_does_it(pair: tuple[str, str]) -> None:
    from paceline.cli.plan_models import from_files
    from paceline.config.engine import EngineSettings
    from paceline.engine.loading import _draft_role, _target_role, load_models
    from paceline.engine.memory import allocate_kv

    for context, memory in ((None, 900e6), (256, 4e9)):
        options = {
            "target": pair[0], "draft": pair[1], "sequences": None, "context": context, "k": 4,
            "draft_weights": "auto", "draft_vocab": "auto", "memory_bytes": memory,
        }  # fmt: skip
        planned = from_files(options)
        settings = EngineSettings(target=pair[0], draft=pair[1], context_length=context)
        target, drafts = load_models(settings)
        (draft,) = drafts.items()
        assert planned.draft is not None
        weights = planned.target.memory.weight_bytes + planned.draft.memory.weight_bytes
        free = int(memory - planned.process_bytes - weights)
        kv, _ = allocate_kv(
            [_target_role(settings, target), _draft_role(settings, *draft)], settings,
            context or target.context_length, torch.device("cpu"), lambda free=free: free,
        )  # fmt: skip
        page = planned.target.memory.block_bytes
        assert page is not None
        assert planned.own_kv_bytes is not None
        assert kv.store.num_blocks == int(planned.own_kv_bytes // page)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no memory"),
        (("--memory-gb", "80"), "neither --target nor --params-b"),
        (("--params-b", "7", "--memory-gb", "80", "--accelerator", "h100"), "--memory-gb and --accelerator"),
        (("--params-b", "7"), "no memory"),
        (("--params-b", "-7", "--memory-gb", "80"), "-7 thousand million parameters"),
        (("--params-b", "7", "--memory-gb", "nan"), "memory of nan"),
        (("--params-b", "7", "--memory-gb", "80", "--layers", "-1"), "-1 layers"),
        (("--params-b", "7", "--memory-gb", "80", "--draft-layers", "2"), "without its size"),
        (("--params-b", "7", "--memory-gb", "80", "--kv-gb", "-1"), "bytes for KV"),
        (("--draft", "d", "--memory-gb", "80"), "--draft without --target"),
        (("--target", "t", "--params-b", "7"), "--target and --params-b"),
        (("--target", "t", "--kv-dtype", "fp8"), "--target and --kv-dtype"),
        (
            ("--params-b", "7", "--memory-gb", "80", "--draft-weights", "int4"),
            "--params-b and --draft-weights",
        ),
        (("--params-b", "7", "--memory-gb", "80", "--link-latency-us", "5"), "without --link-gb-s"),
        (("--target", "nowhere.gguf"), "neither a preset nor an existing path"),
    ],
)
def test_memory_refuses(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("memory", *arguments)


def test_a_context_that_the_model_was_not_made_for_is_refused(pair: tuple[str, str]) -> None:
    assert "at most 4096" in refused("memory", "--target", pair[0], "--context", "8000")


def test_large_batches_end_speculation_of_70b_and_1b_on_eight_h100s() -> None:
    (route,) = as_json("capacity", *LARGE)["routes"]
    assert route["crossing_concurrency"] == 71
    assert route["crossing_concurrency_decoding"] == 216
    ladder = {one["concurrency"]: one for one in route["by_concurrency"]}
    assert ladder[1]["best_k"] == 5
    assert ladder[64]["best_k"] == 1
    assert ladder[128]["best_k"] == 0
    assert ladder[128]["speedup"] == 1.0
    assert route["crossing_arrivals_per_s"] == pytest.approx(33.5, abs=0.1)
    shown = plan("capacity", *LARGE).stdout
    assert re.search(r"best k becomes 0 +at 71 sequences; 33.52 requests a second", shown)
    assert "all assumed: Llama 3.1 70B's" in shown


def test_arrivals_are_simulated_and_accelerators_counted() -> None:
    given = ("--arrivals-per-s", "4", "--answers", "40", "--token-ms", "6")
    found = as_json("capacity", *LARGE, *given)
    assert found["accelerators_needed"] == {"without": None, "with": 8}, "7.5 ms a token is the least without"
    (route,) = found["routes"]
    assert route["most_requests_per_s"]["without"] is None
    assert route["simulated_speedup"] == pytest.approx(2.03, rel=0.03)
    assert found["simulated"]["without"]["routes"][0]["draft_length"] == 0
    assert found["simulated"]["with"]["routes"][0]["draft_length"] > 2
    assert as_json("capacity", *LARGE, *given) == found, "seeded"


def test_a_route_without_arrivals_has_no_figures_of_a_simulation() -> None:
    routes = ("--route", "a:arrivals=2,prompt=20,output=20,acceptance=0.8",
              "--route", "b:arrivals=0,prompt=20,output=20,acceptance=0.8", "--answers", "20")  # fmt: skip
    busy, idle = as_json("capacity", *LARGE[:-2], *routes)["routes"]
    assert busy["simulated_speedup"] > 1
    assert idle["simulated_speedup"] is None
    shown = plan("capacity", *LARGE[:-2], *routes).stdout
    assert re.search(r"^b +- +- +- +- +- +0.00$", shown, re.MULTILINE)


def test_many_arrivals_need_more_machines() -> None:
    given = ("--arrivals-per-s", "100", "--answers", "20", "--output-tokens", "16")
    found = as_json("capacity", *LARGE, *given)
    most = found["routes"][0]["most_requests_per_s"]["without"]
    machines = -(-100 // (0.8 * most))
    assert found["accelerators_needed"]["without"] == 8 * machines > 8
    assert found["simulated"]["machines"] == machines


def test_routes_differ_and_share_a_machine() -> None:
    routes = ("--route", "chat:arrivals=0,prompt=200,output=200,acceptance=0.3",
              "--route", "code:arrivals=0,prompt=200,output=200,acceptance=0.9/0.8")  # fmt: skip
    chat, code = as_json("capacity", *LARGE[:-2], *routes)["routes"]
    assert (chat["name"], code["name"], code["acceptance"]) == ("chat", "code", [0.9, 0.8])
    assert chat["crossing_concurrency"] < code["crossing_concurrency"]
    assert code["by_concurrency"][0]["best_k"] == 2
    shown = plan("capacity", *LARGE[:-2], *routes).stdout
    assert "acceptance 0.9/0.8 (by position)" in shown


def test_measured_step_costs_stand_in_for_a_roofline(curve: dict[str, str]) -> None:
    found = as_json(
        "capacity", "--curve", curve["calibrate.json"], "--acceptance", "0.8", "--prompt-tokens", "16"
    )
    assert found["max_sequences"] == {"without": 8, "with": 8}
    assert found["assumptions"][0] == "step costs as measured (M), drafter model"
    assert found["routes"][0]["by_concurrency"][0]["best_k"] > 0


ROUTE = "a:arrivals=1,prompt=1,output=1,acceptance=1"


def test_published_crossings_are_shown_beside_ours() -> None:
    shown = plan("capacity", "--published").stdout
    assert re.search(r"EAGLE, vLLM +rtx-3090 +2 +0\.\d\d +24 to 32 +at \d+ sequences", shown)
    assert "arXiv 2503.01840, table 3" in shown
    found = as_json("capacity", "--published")
    assert [one["published"]["accelerator"] for one in found] == ["rtx-3090", "rtx-3090", "h100", "h100"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (LARGE[:-2], "no acceptance"),
        ((*LARGE, "--route", ROUTE), "--route and --acceptance"),
        ((*LARGE[:-2], "--route", "a:arrivals=1"), "chat:arrivals=3,prompt=400"),
        ((*LARGE[:-2], "--route", ROUTE.replace("=1", "=x", 1)), "chat:arrivals=3,prompt=400"),
        ((*LARGE[:-2], "--route", ROUTE, "--route", ROUTE), "two routes of one name"),
        ((*LARGE, "--prompt-tokens", "0"), "prompt_tokens = 0"),
        ((*LARGE, "--utilisation", "80", "--arrivals-per-s", "1"), "utilisation 80"),
        ((*LARGE[:2], *LARGE[4:]), "80 GB for 142 GB of weights"),
        ((*LARGE[:6], *LARGE[8:]), "no --draft-params-b"),
        ((*LARGE[:4], *LARGE[6:]), "neither --target nor --params-b"),
        (LARGE[4:], "neither --accelerator nor --curve"),
        ((*LARGE, "--curve", "x"), "both --accelerator and --curve"),
        (("--curve", "x", "--acceptance", "1", "--params-b", "7"), "--curve and --params-b"),
        ((*LARGE[:-2], "--route", ROUTE, "--prompt-tokens", "9"), "--route and --prompt-tokens"),
        (("--published", "--route", ROUTE), "--published and --route"),
    ],
)  # fmt: skip
def test_capacity_refuses(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("capacity", *arguments)


def test_capacity_needs_a_draft_model_s_step_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(CalibratedCosts(CostCurve.of({1: 0.1})).to_json()))
    assert "without a draft model's step costs" in refused(
        "capacity", "--curve", str(path), "--acceptance", "0.5"
    )


EXAMPLES = re.findall(r"```console\n\$ (paceline plan .*?[^\\])\n(.*?)```", DOCUMENT, re.DOTALL)


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[float]:
    return [float(one.replace(",", "")) for one in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    return NUMBER.sub("#", text).split()


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[one[0][:60] for one in EXAMPLES])
def test_the_document_shows_what_the_commands_print(command: str, printed: str) -> None:
    arguments = shlex.split(command.replace("\\\n", " "))
    result = CliRunner().invoke(cli, arguments[1:])
    assert result.exit_code == 0, result.output
    assert words(result.stdout) == words(printed)
    # Simulations may differ in the last digits from one processor to the next.
    assert numbers(result.stdout) == pytest.approx(numbers(printed), rel=0.02)


def test_the_document_has_all_worked_examples_and_the_table_of_accelerators() -> None:
    assert len(EXAMPLES) >= 7
    for one in ACCELERATORS.values():
        row = f"| `{one.name}` | {one.memory_gb:g} | {one.bandwidth_gb_s:g} | {one.tflops:g} |"
        assert row in DOCUMENT
        link = re.search(r"https://\S+", one.source)
        assert link is None or link[0].rstrip(")") in DOCUMENT


@pytest.mark.models
def test_presets_can_be_planned(preset_path: Callable[[str], Path]) -> None:
    preset_path("smollm2-135m-instruct")
    found = as_json("memory", "--target", "smollm2-135m-instruct", "--sequences", "4", "--context", "1024")
    assert found["fits"]
    assert 0.05 < found["weights_gb"] < 0.2
