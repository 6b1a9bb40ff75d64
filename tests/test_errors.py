"""The error tree is drawn whole, and every error keeps its three parts."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from paceline import errors
from paceline.errors import PacelineError


def _classes() -> list[type[PacelineError]]:
    members = inspect.getmembers(errors, inspect.isclass)
    return [member for _, member in members if issubclass(member, PacelineError)]


def _drawn_parents() -> dict[str, str | None]:
    """Read child -> parent from the indentation of the drawn tree."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w*Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            parents[match[2]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_as_drawn_is_the_tree_as_written() -> None:
    written = {
        kind.__name__: None if kind is PacelineError else kind.__mro__[1].__name__ for kind in _classes()
    }
    assert _drawn_parents() == written


@pytest.mark.parametrize("kind", _classes())
def test_a_message_has_all_three_parts(kind: type[PacelineError]) -> None:
    error = kind("a flea", "an elephant", "Bring an elephant")
    assert str(error) == "a flea; expected an elephant. Bring an elephant."
    assert (error.given, error.expected, error.remedy) == ("a flea", "an elephant", "Bring an elephant")


@pytest.mark.parametrize("kind", _classes())
def test_an_error_survives_a_process_border(kind: type[PacelineError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("a flea", "an elephant", "Bring an elephant")))
    assert type(copy) is kind
    assert (copy.given, copy.expected, copy.remedy) == ("a flea", "an elephant", "Bring an elephant")


def test_every_class_says_what_it_is_for() -> None:
    assert all(kind.__doc__ for kind in _classes())
