"""The hub and its replicas without Ray: direct calls in the place of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError, ServingError, UnknownRouteError
from paceline.ray import hub as hub_module
from paceline.ray.hub import Hub
from paceline.ray.link import HubLink
from paceline.ray.members import GONE_AFTER_S, Members
from paceline.ray.records import Question, SharedRoutes, Topic

BASE = {"target": "anything.gguf", "default_route": "chat"}


def settings_in(folder: Path, **routes: Any) -> ServeSettings:
    path = folder / "paceline.yaml"
    path.write_text(yaml.safe_dump({**BASE, "routes": {"chat": {"speculation": "auto"}, **routes}}))
    return load_serve_config(path, environ={})


class Follower:
    """What a replica does with letters: it notes them."""

    def __init__(self, hub: Hub, key: str) -> None:
        self.hub = hub
        self.is_cut = False
        self.seen: list[SharedRoutes] = []
        self.link = HubLink(self.call, key)

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.is_cut:
            raise ServingError("a line that is cut", "one that is not", "Wait")
        return await getattr(self.hub, method)(*arguments)

    async def take(self, routes: SharedRoutes) -> None:
        await asyncio.sleep(0.05)  # a step that is running
        self.seen.append(routes)

    async def answer(self, question: Question) -> Any:
        if question.detail.get("fails"):
            raise RuntimeError("a question that hurts")
        return f"{self.link.key}: {question.topic.value}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Follower]:
        await self.link.join()
        task = asyncio.create_task(self.link.run())
        try:
            await self.link.first_routes()
            await self.link.open(self.take, self.answer)
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def two(settings: ServeSettings) -> AsyncIterator[tuple[Hub, Follower, Follower]]:
    hub = Hub(settings, 2)
    await hub.start()
    async with Follower(hub, "a").running() as a, Follower(hub, "b").running() as b:
        yield hub, a, b
    await hub.close()


def test_a_change_ends_when_every_replica_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(settings_in(tmp_path)) as (_, a, b):
            assert (a.link.number, b.link.number) == (0, 1)
            await a.link.change("chat", {"speculation": "off"}, "alice")
            for one in (a, b):
                assert one.seen[-1].in_force["chat"].speculation.value == "off"
                assert one.seen[-1].changed_by == {"chat": "alice"}
                assert one.seen[-1].overlay["chat"]["speculation"].by == "alice"
            await b.link.reset("chat", "bob")
            assert a.seen[-1].in_force == a.seen[-1].base
            assert a.seen[-1].changed_by == {"chat": "bob"}

    asyncio.run(main())


def test_what_is_wrong_is_refused_as_it_would_be_without_replicas(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(settings_in(tmp_path)) as (_, a, b):
            before = len(b.seen)
            with pytest.raises(UnknownRouteError):
                await a.link.change("nowhere", {"speculation": "off"}, "alice")
            with pytest.raises(ConfigError):
                await a.link.change("chat", {"speculation": "perhaps"}, "alice")
            assert len(b.seen) == before

    asyncio.run(main())


def test_changes_are_kept_by_the_hub_alone(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)

    async def change() -> None:
        async with two(settings) as (_, a, _b):
            await a.link.change("chat", {"speculation": "off"}, "alice")

    async def look() -> SharedRoutes:
        async with two(settings) as (_, a, _b):
            return await a.link.first_routes()

    asyncio.run(change())
    assert asyncio.run(look()).overlay["chat"]["speculation"].value == "off"


def test_the_file_is_read_in_one_place_and_followed_in_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(settings_in(tmp_path)) as (_, a, b):
            settings_in(tmp_path, batch={"speculation": False})
            notes = await a.link.reload("alice")
            assert notes == ["route batch is new"]
            assert set(b.seen[-1].in_force) == {"chat", "batch"}
            (tmp_path / "paceline.yaml").write_text("routes: [")
            with pytest.raises(ConfigError):
                await b.link.reload("alice")
            async with asyncio.timeout(20):
                while a.seen[-1].config_error is None:
                    await asyncio.sleep(0.05)
            assert set(a.seen[-1].in_force) == {"chat", "batch"}, "what was in force stays"

    asyncio.run(main())


def test_everybody_is_asked_and_who_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with two(settings_in(tmp_path)) as (hub, a, b):
            answers = await a.link.ask(Topic.STATUS)
            assert answers == {0: "a: status", 1: "b: status"}
            both = await asyncio.gather(a.link.ask(Topic.ROUTES), b.link.ask(Topic.METRICS))
            assert both == [{0: "a: routes", 1: "b: routes"}, {0: "a: metrics", 1: "b: metrics"}]
            assert await hub.ask(Topic.STATUS, {"fails": True}, within_s=1.0) == {}
            assert await hub.counts() == {"ready": 2, "loading": 0, "lost": 0}

    asyncio.run(main())


def test_a_replica_follows_a_hub_that_was_started_again(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)

    async def main() -> None:
        async with two(settings) as (old, a, b):
            await a.link.change("chat", {"speculation": "off"}, "alice")
            for one in (a, b):
                one.is_cut = True
            new = Hub(settings, 2)
            for one in (a, b):
                one.hub, one.is_cut = new, False
            # Before the first of them has said a word to it, it is not content with nobody's following.
            await new.change("chat", {"max_draft_length": 3}, "bob")
            for one in (a, b):
                assert one.seen[-1].in_force["chat"].max_draft_length == 3
                assert one.seen[-1].in_force["chat"].speculation.value == "off"
            assert (a.link.number, b.link.number) == (0, 1)
            assert sorted(await new.ask(Topic.STATUS, {})) == [0, 1]
            await new.close()
            a.hub = b.hub = old

    asyncio.run(main())


def test_a_hub_that_is_started_again_goes_by_the_file_as_it_is_then(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings_in(tmp_path, batch={"speculation": False})

    async def main() -> None:
        async with two(settings) as (_, a, _b):
            assert set((await a.link.first_routes()).in_force) == {"chat", "batch"}

    asyncio.run(main())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_numbers_are_used_again_once_their_replica_is_gone() -> None:
    clock = Clock()
    members = Members(2, clock)
    assert [members.join(key).number for key in "ab"] == [0, 1]
    assert not members.can_join()
    clock.now += GONE_AFTER_S - 1
    members.join("b")
    clock.now += 2
    assert [member.key for member in members] == ["b"]
    assert members.num_lost == 1
    assert members.can_join()
    assert members.join("c").number == 0
    members.leave("c")
    assert members.num_lost == 1, "it said goodbye"
    assert members.join("d", number=1).number == 0, "another has that number"
    assert members.join("e").number == 2, "more than expected, and told apart all the same"


def test_a_hub_does_not_wait_for_a_silent_replica_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "SETTLED_AFTER_S", 0.0)

    async def main() -> None:
        async with two(settings_in(tmp_path)) as (hub, _a, b):
            b.is_cut = True
            with pytest.raises(ServingError):
                await b.link.change("chat", {"speculation": "off"}, "bob")
            assert await hub.ask(Topic.STATUS, {}, within_s=1.0) == {0: "a: status"}

    asyncio.run(main())
