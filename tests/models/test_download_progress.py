"""What a person sees of a download."""

from __future__ import annotations

import io

from rich.console import Console

from paceline.clock import ManualClock
from paceline.models.download_progress import ConsoleProgress


def test_without_a_terminal_there_is_a_line_for_every_tenth() -> None:
    output, clock = io.StringIO(), ManualClock()
    progress = ConsoleProgress(Console(file=output, force_terminal=False, width=200), clock)
    with progress.track("a-model", 100_000_000) as tracker:
        tracker.note("part 1 of 2")
        for _ in range(100):
            clock.advance(1.0)
            tracker.advance(1_000_000)
    lines = output.getvalue().splitlines()
    assert lines == [f"a-model: {done} of 100 MB (part 1 of 2)" for done in range(10, 101, 10)]


def test_what_takes_no_time_is_not_reported() -> None:
    output = io.StringIO()
    progress = ConsoleProgress(Console(file=output, force_terminal=False, width=200), ManualClock())
    with progress.track("checking", 1000) as tracker:
        tracker.advance(1000)
    assert output.getvalue() == ""


def test_on_a_terminal_there_is_a_bar_with_its_label_and_note() -> None:
    output = io.StringIO()
    progress = ConsoleProgress(Console(file=output, force_terminal=True, width=120))
    with progress.track("a-model", 1000, done=500) as tracker:
        tracker.note("part 2 of 2")
        tracker.advance(500)
    assert "a-model" in output.getvalue()
    assert "part 2 of 2" in output.getvalue()


def test_brackets_in_a_line_are_printed_as_they_are() -> None:
    output = io.StringIO()
    ConsoleProgress(Console(file=output, force_terminal=False)).say("[bold]x[/bold]")
    assert output.getvalue() == "[bold]x[/bold]\n"
