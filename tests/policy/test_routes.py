"""Routes: what may be written, what a request may change, and what is said of mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config.drafter_names import with_mixed
from paceline.errors import ConfigError, InvalidParameterError
from paceline.policy.routes import (
    MAX_LABELS,
    OTHER,
    RouteOverride,
    RouteSettings,
    RouteTable,
    Speculation,
)
from paceline.records import Verification


def test_unquoted_on_and_off_are_booleans_in_yaml() -> None:
    assert RouteSettings(speculation=True).speculation is Speculation.ON
    assert RouteSettings(speculation=False).speculation is Speculation.OFF
    assert RouteSettings(speculation="off").speculation is Speculation.OFF
    assert RouteSettings().speculation is Speculation.AUTO


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speculate": "on"}, "unknown key 'speculate' of a route; expected one of speculation, drafters"),
        (
            {"speculation": "sometimes"},
            "speculation = 'sometimes' of a route; expected 'auto', 'on' or 'off'",
        ),
        ({"max_draft_length": 0}, "max_draft_length = 0 of a route; expected"),
        ({"max_draft_length": 65}, "max_draft_length = 65 of a route"),
        ({"draft_length": 4, "max_draft_length": 8}, "max_draft_length = 8 beside draft_length = 4"),
        ({"drafters": []}, "drafters = [] of a route; expected at least one drafter, each once"),
        ({"drafters": ["model", "model"]}, "at least one drafter, each once"),
        ({"weight": 0}, "weight = 0 of a route"),
        ({"probe_budget": 0.2}, "probe_budget = 0.2 of a route"),
        ({"min_output_length": 0}, "min_output_length = 0 of a route"),
        ({"verification": "hope"}, "verification = 'hope' of a route"),
    ],
)
def test_what_a_route_may_not_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RouteSettings(**values)
    assert message in str(caught.value)


def test_a_route_of_the_configuration_is_named_in_its_errors() -> None:
    with pytest.raises(ConfigError, match=r"weight = -1 of a route \('chat'\)"):
        RouteSettings.of("chat", {"weight": -1})
    with pytest.raises(ConfigError, match="route 'chat' = 'on'; expected a mapping of keys"):
        RouteSettings.of("chat", "on")
    assert RouteSettings.of("chat", None) == RouteSettings()


def test_lengths_follow_from_what_was_given() -> None:
    assert (RouteSettings().most_drafts, RouteSettings().fixed_length) == (8, 4)
    assert (RouteSettings(draft_length=6).most_drafts, RouteSettings(draft_length=6).fixed_length) == (6, 6)
    assert RouteSettings(max_draft_length=2).fixed_length == 2


def test_a_change_keeps_the_other_keys() -> None:
    before = RouteSettings(weight=3.0, speculation="on")
    after = before.changed({"speculation": "off"})
    assert (after.weight, after.speculation) == (3.0, Speculation.OFF)
    assert before.changed({"draft_length": 3}).fixed_length == 3
    with pytest.raises(ConfigError):
        before.changed({"colour": "blue"})


def test_requests_find_their_route_or_the_default_or_an_error() -> None:
    strict = RouteTable({"chat": RouteSettings(), "code": RouteSettings()})
    assert strict.resolve("code") == "code"
    with pytest.raises(InvalidParameterError, match="route 'math'; expected one of 'chat', 'code'"):
        strict.resolve("math")
    with pytest.raises(InvalidParameterError, match="no route; expected one of"):
        strict.resolve(None)
    lenient = RouteTable({"chat": RouteSettings()}, default="chat")
    assert lenient.resolve("math") == lenient.resolve(None) == "chat"
    with pytest.raises(ConfigError, match="default_route = 'talk'; expected one of the routes: chat"):
        RouteTable({"chat": RouteSettings()}, default="talk")
    with pytest.raises(ConfigError, match="no routes"):
        RouteTable({})
    with pytest.raises(ConfigError, match="route 'math'"):
        strict.replace("math", RouteSettings())


def test_labels_of_tools_are_kept_apart_up_to_a_number() -> None:
    table = RouteTable({}, any_label=RouteSettings())
    assert table.resolve(None) == "default"
    names = {table.resolve(f"label-{i}") for i in range(2 * MAX_LABELS)}
    assert OTHER in names
    assert len(table.names) == MAX_LABELS + 1


def test_a_request_may_ask_for_less_than_its_route_allows() -> None:
    route = RouteSettings(max_draft_length=6, verification="rejection")
    plain = RouteOverride().within("chat", route)
    assert (plain.enabled, plain.is_adaptive, plain.verification) == ("route", True, Verification.REJECTION)
    assert RouteOverride(enabled=False).within("chat", route).enabled is False
    assert RouteOverride(enabled="auto", max_draft_length=2).within("chat", route).max_draft_length == 2
    assert RouteOverride(enabled=True, max_draft_length=2).within("chat", route).draft_length == 2
    assert RouteOverride(drafter="mixed").within("chat", route).drafter == "mixed"


@pytest.mark.parametrize(
    ("asked", "route", "message"),
    [
        (
            {"max_draft_length": 9},
            {},
            "speculation.max_draft_length = 9 for route 'chat'; expected at most 8",
        ),
        ({"enabled": True}, {"speculation": "off"}, "false: speculation is off for this route"),
        ({"enabled": "auto"}, {"speculation": "off"}, "false: speculation is off for this route"),
        (
            {"drafter": "model"},
            {"drafters": ["suffix"]},
            "drafter = 'model' for route 'chat'; expected one of suffix",
        ),
    ],
)
def test_it_may_not_ask_for_more(asked: dict[str, Any], route: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        RouteOverride(**asked).within("chat", RouteSettings(**route))
    assert message in str(caught.value)


@pytest.mark.parametrize("values", [{"enabled": "sometimes"}, {"max_draft_length": 0}, {"k": 3}])
def test_what_an_override_may_not_be(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="expected enabled: true, false or 'auto'"):
        RouteOverride(**values)


def test_mixed_goes_with_both_of_its_parts() -> None:
    assert with_mixed(("suffix", "model")) == ("suffix", "model", "mixed")
    assert with_mixed(("model",)) == ("model",)
    assert with_mixed(("mixed",)) == ("mixed",)


def test_no_two_settings_in_force_have_one_version() -> None:
    """By which a held plan knows that it does not serve any more, also where a whole table was replaced."""
    first, second = (RouteTable({"r": RouteSettings()}) for _ in range(2))
    seen = [first.version, second.version]
    for table in (first, second):
        table.replace("r", RouteSettings(speculation=Speculation.OFF))
        seen.append(table.version)
    assert len(set(seen)) == 4
