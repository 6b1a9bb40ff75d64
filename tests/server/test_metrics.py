"""What `/metrics` says is what clients had."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import TOKEN, Running, limits, running, settings_of

LONG = {"ignore_eos": True, "temperature": 0.0}
ROUTES = {
    "code": {"speculation": True, "drafters": ["model"], "draft_length": 3},
    "batch": {"speculation": False},
}


@pytest.fixture(scope="module")
def fresh(models: dict[str, str]) -> Iterator[Running]:
    with running(settings_of(**models, **limits(), routes=ROUTES, default_route="code")) as state:
        yield state


def scrape(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = http.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_several_draft_models_are_told_apart(models: dict[str, str]) -> None:
    drafts = {"small": models["draft"], "twin": models["target"]}
    routes = {
        name: {"speculation": True, "drafters": [f"model:{name}"], "draft_length": 3} for name in drafts
    }
    settings = settings_of(
        target=models["target"], drafts=drafts, **limits(), routes=routes, default_route="twin",
        draft_weights="file",
    )  # fmt: skip
    with running(settings) as state:
        http = state.http()
        texts = []
        for name in drafts:
            body = {
                "model": f"tiny:{name}", "prompt": "the def", "max_tokens": 30, "return_speculation": True,
                **LONG,
            }  # fmt: skip
            (choice,) = http.post("/v1/completions", json=body).json()["choices"]
            assert choice["speculation"]["drafter"] == f"model:{name}"
            texts.append(choice["text"])
        assert texts[0] == texts[1]
        seen = scrape(http)
        drafted = {
            dict(labels)["route"]: dict(labels)["drafter"]
            for (name, labels), value in seen.items()
            if name == "paceline_drafted_tokens_total" and value
        }
        assert drafted == {"small": "model:small", "twin": "model:twin"}
        infos = {dict(labels)["role"]: dict(labels) for name, labels in seen if name == "paceline_model_info"}
        assert infos.keys() == {"target", "draft:small", "draft:twin"}
        assert infos["draft:twin"]["digest"] == infos["target"]["digest"] != infos["draft:small"]["digest"]
        admin = {"Authorization": f"Bearer {TOKEN}"}
        changed = http.patch("/admin/routes/small", json={"drafters": ["model"]}, headers=admin).json()
        assert changed["in_force"]["drafters"] == ["model:small"], "the first one"
        wrong = http.patch("/admin/routes/small", json={"drafters": ["model:x"]}, headers=admin)
        assert wrong.status_code == 400


def test_counts_are_those_of_the_answers(fresh: Running) -> None:
    http = fresh.http()
    records = []
    for model in ("tiny:code", "tiny:code", "tiny:batch"):
        body = {"model": model, "prompt": "the def", "max_tokens": 30, "return_speculation": True, **LONG}
        records.append(http.post("/v1/completions", json=body).json()["choices"][0]["speculation"])
    http.post("/v1/completions", json={"model": "none", "prompt": "a"})
    http.get("/some/path/of/somebody")
    seen = scrape(http)

    def value(name: str, **labels: str) -> float:
        return seen[name, tuple(sorted(labels.items()))]

    code = {"route": "code"}
    assert value("paceline_output_tokens_total", **code) == 60
    assert value("paceline_output_tokens_total", route="batch") == 30
    assert value("paceline_answers_total", finish_reason="length", **code) == 2
    for name, key in (("drafted", "num_drafted"), ("accepted", "num_accepted")):
        counted = value(f"paceline_{name}_tokens_total", drafter="model", **code)
        assert counted == sum(record[key] for record in records)
        places = [n for (full, _), n in seen.items() if full == f"paceline_{name}_tokens_by_position_total"]
        assert sum(places) == counted
    assert value("paceline_verify_steps_total", **code) == sum(r["num_steps"] for r in records[:2])
    assert value("paceline_time_to_first_token_seconds_count", **code) == 2
    assert value("paceline_draft_length_count", **code) == value("paceline_verify_steps_total", **code)
    assert value("paceline_draft_length_bucket", le="0.0", route="batch") == 29
    assert value("paceline_route_state", state="speculating", **code) == 1
    assert value("paceline_route_state", state="off", route="batch") == 1
    assert value("paceline_sequences_running") == 0
    assert value("paceline_http_responses_total", endpoint="/v1/completions", status="404") == 1
    assert value("paceline_http_responses_total", endpoint="other", status="404") == 1
    digest = fresh.settings.engine.target
    names = [dict(labels) for (name, labels) in seen if name == "paceline_model_info"]
    assert {one["role"] for one in names} == {"target", "draft"}
    assert all(re.fullmatch("[0-9a-f]{16}", one["digest"]) for one in names), digest


def test_nothing_that_a_client_wrote_becomes_a_label(fresh: Running) -> None:
    http = fresh.http()
    for number in range(20):
        http.get(f"/{number}")
        http.post("/v1/completions", json={"model": f"secret{number}", "prompt": f"secret{number}"})
        http.get(f"/v1/models/secret{number}")
    text = http.get("/metrics").text
    assert "secret" not in text
    assert len(text.splitlines()) < 400


def test_names_follow_the_conventions(fresh: Running) -> None:
    text = fresh.http().get("/metrics").text
    families = list(text_string_to_metric_families(text))
    assert len(families) > 25
    for family in families:
        assert family.name.startswith("paceline_")
        assert family.documentation.endswith(".")
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples)
        assert not family.name.endswith(("_ms", "_milliseconds"))
