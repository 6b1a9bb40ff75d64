"""What `paceline generate` shows: text as it comes and a table for people, JSON lines for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.cli.comparison import Comparison, ModeSummary, summary_json
from paceline.config.engine import EngineSettings
from paceline.policy.reports import RouteReport
from paceline.records import GenerationResult, StreamChunk, Verification


class Printer:
    """Writes answers to stdout and progress to stderr.

    One answer is streamed; several are printed whole, in order, each as soon as those before it are out.
    """

    def __init__(self, *, as_json: bool, modes: Sequence[str], num_answers: int) -> None:
        self._as_json = as_json
        self._modes = modes
        self._num_answers = num_answers
        self._err = Console(stderr=True)
        self._num_printed = 0
        self._progress: Progress | None = None

    @contextmanager
    def loading(self, models: Sequence[str]) -> Iterator[Callable[[float, str], None]]:
        """Show that models are being loaded, and what is measured of them."""
        names = " and ".join(models)
        with self._err.status(f"loading {names}") as status:
            yield lambda share, text: status.update(f"measuring step costs: {text}, {share:.0%}")

    @contextmanager
    def mode(self, mode: str) -> Iterator[None]:
        """Show one run's progress around it."""
        self._num_printed = 0
        if self._is_streaming:
            if len(self._modes) > 1:
                click.echo(f"--- speculation {mode} ---")
            yield
            click.echo()
            return
        columns = (
            TextColumn("speculation {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._err, transient=True) as self._progress:
            self._progress.add_task(mode, total=self._num_answers)
            yield
        self._progress = None

    def chunk(self, chunk: StreamChunk) -> None:
        """Show new text of one answer."""
        if self._is_streaming:
            click.echo(chunk.text, nl=False)

    def answers(self, mode: str, results: Iterable[GenerationResult]) -> None:
        """Print those answers that are new among the finished ones."""
        finished = list(results)
        for result in finished[self._num_printed :]:
            self._print_answer(mode, result)
        self._num_printed = len(finished)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=len(finished))

    def summary(
        self,
        runs: Mapping[str, Sequence[GenerationResult]],
        settings: EngineSettings,
        reports: Sequence[RouteReport] = (),
    ) -> None:
        """Print what the answers add up to, and what the policy makes of them where there is one."""
        if self._as_json:
            policy = {"policy": [report.to_json() for report in reports]} if reports else {}
            click.echo(json.dumps({**summary_json(dict(runs)), **policy}))
            return
        console = Console()
        console.print(_table(runs, settings), highlight=False)
        if len(runs) == 2:
            off, other = runs
            for line in _verdict(Comparison(tuple(runs[off]), tuple(runs[other])), settings, other):
                click.echo(line)
        for report in reports:
            click.echo(_policy_line(report))

    @property
    def _is_streaming(self) -> bool:
        return not self._as_json and self._num_answers == 1

    def _print_answer(self, mode: str, result: GenerationResult) -> None:
        if self._as_json:
            click.echo(json.dumps({**answer_json(result), "mode": mode}))
        elif not self._is_streaming:
            route = f" [{result.route}]" if result.route else ""
            choice = f" choice {result.index}" if result.index else ""
            click.echo(f"--- {result.id}{choice}{route}, speculation {mode} ---\n{result.text}\n")


def answer_json(result: GenerationResult) -> dict[str, Any]:
    """Return the line that `--json` prints for one answer, but for its mode."""
    timing = result.timing
    return {
        "id": result.id,
        "route": result.route,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
        },
        "speculation": result.speculation.to_json(),
        "timing": {
            "ttft_s": timing.ttft_s,
            "decode_s": timing.decode_s,
            "tokens_per_second": timing.tokens_per_second,
            "draft_s": timing.draft_s,
            "verify_s": timing.verify_s,
        },
        "seed": result.seed,
        "index": result.index,
    }


def _table(runs: Mapping[str, Sequence[GenerationResult]], settings: EngineSettings) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("speculation", no_wrap=True)
    # Two lines each, so that no word is cut at 80 columns.
    for name in (
        "tokens\n/ s",
        "acceptance\nrate",
        "acceptance\nlength",
        "TTFT\ns",
        "drafting\ns",
        "verifying\ns",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for mode, results in runs.items():
        row = ModeSummary.of(results)
        table.add_row(
            f"on ({settings.effective_drafter}, k={settings.draft_length})" if mode == "on" else mode,
            _figure(row.tokens_per_second),
            _figure(row.acceptance_rate),
            _figure(row.acceptance_length),
            _figure(row.ttft_s),
            _figure(row.draft_s),
            _figure(row.verify_s),
        )
    return table


def _policy_line(report: RouteReport) -> str:
    estimate = report.speedup.estimate
    gain = "" if estimate is None else f"; {estimate:.2f}x of plain decoding by step costs"
    note = f" ({report.note})" if report.note and estimate is not None else ""
    return f"policy, {report.name}: {report.sentence}{gain}{note}"


def _verdict(comparison: Comparison, settings: EngineSettings, mode: str) -> Iterator[str]:
    yield f"outputs identical: {comparison.num_identical} of {len(comparison.off)}"
    if comparison.ratio is not None:
        yield f"speed, {mode} / off: {comparison.ratio:.2f}x"
    if settings.verification is Verification.REJECTION:
        yield "rejection verification keeps the distribution of sampled outputs, not their bytes"
    elif comparison.num_identical < len(comparison.off):
        yield "outputs differ under coupled verification: that is a fault in the engine, please report it"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
