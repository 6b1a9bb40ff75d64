"""Two replicas on a real Ray, with a real model: routes, streams, metrics and errors are one server's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from tests.ray.running import (
    ADMIN,
    MODEL,
    Running,
    configuration,
    replicas_of,
    scrape,
    serving,
    sse_events,
    total,
    until,
    write,
)

pytestmark = pytest.mark.models

REPEATED = "one two three four five six seven eight nine ten " * 6
LONG = {"ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ray") / "paceline.yaml")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    with serving(path) as state:
        yield state


def ask(http: httpx.Client, route: str, max_tokens: int = 8, **more: Any) -> httpx.Response:
    body = {"model": f"{MODEL}:{route}", "prompt": REPEATED, "max_tokens": max_tokens, **LONG, **more}
    return http.post("/v1/completions", json=body)


def drafted_by_replica(http: httpx.Client, route: str) -> Counter[str]:
    """Ask at once until both replicas have answered; returns what each drafted in one answer at most."""
    found: Counter[str] = Counter()
    while len(found) < 2:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: ask(http, route, 24, return_speculation=True), range(4)))
        for answer in answers:
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            replica = answer.headers["X-Paceline-Replica"]
            found[replica] = max(found.get(replica, 0), choice["speculation"]["num_drafted"])
    return found


def test_a_flag_that_is_flipped_reaches_both_replicas_while_streams_run(server: Running) -> None:
    with server.http() as http:
        before = drafted_by_replica(http, "code")
        assert set(before) == {"0", "1"}
        assert all(count > 0 for count in before.values()), before

        def stream(_: int) -> str:
            body = {"model": f"{MODEL}:code", "prompt": REPEATED, "max_tokens": 150, "stream": True, **LONG}
            with http.stream("POST", "/v1/completions", json=body) as answer:
                return "".join(event["choices"][0]["text"] for event in sse_events(answer))

        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(stream, number) for number in range(4)]
            until(lambda: total(scrape(http), "paceline_sequences_running") >= 1)
            answer = http.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            # Not some time later, but when the change is confirmed, and whoever is asked.
            for route in (answer.json(), *routes(http, "code"), *routes(http, "code")):
                states = {number: one["report"]["state"] for number, one in route["replicas"].items()}
                assert states == {"0": "off", "1": "off"}
            texts = {stream.result() for stream in streams}
        assert texts == {ask(http, "plain", 150).json()["choices"][0]["text"]}
        assert drafted_by_replica(http, "code") == Counter({"0": 0, "1": 0})
        decisions = http.get("/admin/routes/code/decisions", headers=ADMIN).json()["decisions"]
        assert {one["replica"] for one in decisions if one["by"] == "admin"} == {"0", "1"}
        own = http.get("/admin/routes/code/decisions?replica=1", headers=ADMIN).json()["decisions"]
        assert own == [one for one in decisions if one["replica"] == "1"]
        assert http.delete("/admin/routes/code/overlay", headers=ADMIN).status_code == 200
        (route,) = routes(http, "code")
        assert {one["report"]["state"] for one in route["replicas"].values()} == {"speculating"}


def test_streams_come_token_by_token(server: Running) -> None:
    with server.http() as http:
        aborted = total(scrape(http), "paceline_answers_total", finish_reason="abort")
        body = {"model": f"{MODEL}:plain", "prompt": "A story.", "max_tokens": 900, "stream": True, **LONG}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            coming = sse_events(answer)
            first = [next(coming) for _ in range(5)]
            # The rest of the answer is not computed yet.
            assert total(scrape(http), "paceline_sequences_running") == 1
            assert len({event["id"] for event in first}) == 1
        # Whoever leaves ends the answer, through the proxy and the front.
        until(lambda: total(scrape(http), "paceline_answers_total", finish_reason="abort") == aborted + 1)
        assert total(scrape(http), "paceline_sequences_running") == 0
        body |= {"max_tokens": 40, "stream_options": {"include_usage": True}}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            found = list(sse_events(answer))
        texts = [one for one in found if one["choices"] and one["choices"][0]["text"]]
        assert len(texts) == found[-1]["usage"]["completion_tokens"] == 40


def test_metrics_are_what_clients_had_of_each_replica(server: Running) -> None:
    with server.http() as http:
        before = scrape(http)
        lengths = [4 + number % 3 for number in range(24)]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda length: ask(http, "plain", length), lengths))
        after = scrape(http)
        assert {answer.status_code for answer in answers} == {200}
        had: dict[str, Counter[str]] = {"answers": Counter(), "output": Counter(), "prompt": Counter()}
        for answer in answers:
            replica, usage = answer.headers["X-Paceline-Replica"], answer.json()["usage"]
            had["answers"][replica] += 1
            had["output"][replica] += usage["completion_tokens"]
            had["prompt"][replica] += usage["prompt_tokens"]
        assert set(had["answers"]) == {"0", "1"}
        for name, counts in (
            ("paceline_answers_total", had["answers"]),
            ("paceline_output_tokens_total", had["output"]),
            ("paceline_prompt_tokens_total", had["prompt"]),
        ):
            for replica, count in counts.items():
                grown = [total(one, name, replica=replica, route="plain") for one in (before, after)]
                assert grown[1] - grown[0] == count, (name, replica)
            everywhere = [total(one, name, route="plain") for one in (before, after)]
            assert everywhere[1] - everywhere[0] == counts.total()
        assert set(replicas_of(after, "paceline_steps_total")) == {"0", "1"}
        assert total(after, "paceline_replicas", state="ready") == 2
        with_labels = [dict(labels) for (name, labels), _ in after.items() if name.startswith("paceline_")]
        without = [one for one in with_labels if "replica" not in one and "state" not in one]
        assert without == [{}], "only the number of replicas that were lost belongs to none"
        status = http.get("/status").json()
        assert status["replicas"] == ["0", "1"]
        assert sum(one["num_answers"] for one in status["routes"]) == total(after, "paceline_answers_total")


def test_errors_are_in_openais_form_through_the_proxy(server: Running) -> None:
    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=server.http()
    )
    with client:
        with pytest.raises(openai.NotFoundError) as found:
            client.completions.create(model="nobody", prompt="x")
        assert found.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            client.completions.create(model=MODEL, prompt="x", temperature=9)
        assert wrong.value.code == "invalid_parameter"
        with pytest.raises(openai.APIStatusError) as large:
            client.completions.create(model=MODEL, prompt="x" * 30_000)
        assert (large.value.status_code, large.value.code) == (413, "body_too_large")
    with server.http() as http:
        refused = http.patch("/admin/routes/code", json={"speculation": "off"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        nowhere = http.patch("/admin/routes/nowhere", json={"speculation": "off"}, headers=ADMIN)
        assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "route_not_found")
        wrong_value = http.patch("/admin/routes/code", json={"speculation": "maybe"}, headers=ADMIN)
        assert (wrong_value.status_code, wrong_value.json()["error"]["code"]) == (400, "invalid_setting")
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: ask(http, "plain", 60), range(40)))
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}, statuses
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.json()["error"]["code"] == "busy"
        assert int(full.headers["Retry-After"]) >= 1


def test_the_file_is_followed_by_both_replicas(server: Running, path: Path) -> None:
    with server.http() as http:
        changed = configuration()
        changed["routes"]["plain"] = {"speculation": True, "drafters": ["suffix"], "draft_length": 2}
        changed["routes"]["new"] = {"speculation": False}
        path.write_text(yaml.safe_dump(changed))
        until(lambda: bool(routes(http, "new")))
        (plain,) = routes(http, "plain")
        assert {one["report"]["state"] for one in plain["replicas"].values()} == {"speculating"}
        assert drafted_by_replica(http, "new") == Counter({"0": 0, "1": 0})
        path.write_text("routes: [")
        until(lambda: http.get("/admin/routes", headers=ADMIN).json()["config_error"] is not None)
        refused = http.post("/admin/reload", headers=ADMIN)
        assert refused.status_code == 400, refused.text
        write(path)
        assert http.post("/admin/reload", headers=ADMIN).status_code == 200
        assert http.get("/admin/routes", headers=ADMIN).json()["config_error"] is None
        assert routes(http, "new") == []
        assert ask(http, "new").status_code == 404


def routes(http: httpx.Client, name: str) -> list[dict[str, Any]]:
    found = http.get("/admin/routes", headers=ADMIN)
    assert found.status_code == 200, found.text
    return [one for one in found.json()["routes"] if one["name"] == name]
