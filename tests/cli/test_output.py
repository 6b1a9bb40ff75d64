"""Plain tables and sizes."""

from __future__ import annotations

import pytest

from paceline.cli.output import format_bytes, print_fields, print_table


def test_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "SIZE"), [("long name", "1 B"), ("x", "22 B")])
    assert capsys.readouterr().out == "NAME       SIZE\nlong name  1 B\nx          22 B\n"


def test_fields_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("a", "1"), ("long name", "2")])
    assert capsys.readouterr().out == "a          1\nlong name  2\n"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_999, "1 MB"),
        (98_362_432, "98 MB"),
        (1_117_320_768, "1.12 GB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
