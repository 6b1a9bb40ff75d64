"""`paceline bench load`: what speculation does to a stream of requests, at one concurrency after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli.input_file import InputRequest, read_requests
from paceline.cli.load_output import show_cells
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.config.engine import EngineSettings
    from paceline.llm import LLM
    from paceline.measure.load import LoadRequest
    from paceline.measure.load_cell import LoadCell
    from paceline.measure.load_mode import Mode

WARM_UP_TOKENS = 8


@click.command(name="load")
@click.option("--target", required=True, metavar="T", help="Model that answers: preset, file or folder.")
@click.option("--draft", metavar="D", help="Model that drafts: preset, file or folder.")
@click.option("--input", "input_file", required=True, type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="One request a line: `messages` or `prompt`, with a `route`.")  # fmt: skip
@click.option("--routes", metavar="R,R,...", help="Only these routes, in this order.  [default: all]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="First N requests of each route only.")
@click.option("--mixed", is_flag=True, help="All routes together, in turns, not one after another.")
@click.option("--concurrency", default="1,2,4,8,16", show_default=True, metavar="N,N,...",
              help="Clients, each with one request at a time.")  # fmt: skip
@click.option("--speculation", default="off,on:3", show_default=True, metavar="M,M,...",
              help="off, auto, on:K, or on:K:DRAFTER with K drafts from model, suffix or mixed.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N")
@click.option("--temperature", type=float, default=0.0, show_default="0, greedy", metavar="X")
@click.option("--top-p", type=float, default=1.0, show_default=True, metavar="X")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S",
              help="Seed of the first request; the next one has the next.")  # fmt: skip
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-tokens whatever the model says.")
@click.option("--context-length", type=int, metavar="N", help="Most tokens of prompt and output together.")
@click.option("--kv-memory", metavar="SIZE", help='Memory for KV caches, as "2GiB".')
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--kernels", type=click.Choice(["auto", "native", "reference"]), default="auto", show_default=True
)
@click.option("--weights", type=click.Choice(["file", "int8"]), default="file", show_default=True)
@click.option("--draft-weights", type=click.Choice(["file", "int4"]), default="file", show_default=True)
@click.option("--draft-vocab", type=click.Choice(["auto", "full"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def load(**options: Any) -> None:
    """Answer requests at each concurrency, without and with speculation, and compare.

    \b
    The load is closed: so many clients, each of which sends its next request when it has its answer. No cell
    finds prefixes or answers of an earlier one. Times are those that a caller in this process sees.
    """
    # Imported late: they bring PyTorch, seconds that `--help` does without.
    from paceline.llm import LLM
    from paceline.measure.load import LoadLoop

    groups = read_groups(options)
    concurrencies = parse_concurrencies(options["concurrency"])
    modes = _modes(options)
    err = Console(stderr=True)
    warn_of_idle_clients(err, groups, concurrencies)
    settings = _settings(options, modes, max(concurrencies))
    what = f"loading {settings.target}" + (f" and {settings.draft}" if settings.draft else "")
    with err.status(what) as status:
        llm = LLM.from_settings(
            settings, lambda share, text: status.update(f"measuring step costs: {text}, {share:.0%}")
        )
    with llm:
        prepared = {name: prepare_requests(llm, requests, options) for name, requests in groups.items()}
        num_answers = sum(map(len, prepared.values())) * len(concurrencies) * len(modes)
        cells: list[LoadCell] = []
        with answers_progress(err, num_answers) as progress:
            loop = LoadLoop(llm.loaded.engine, lambda: progress.advance(progress.task_ids[0]))
            progress.update(progress.task_ids[0], description="warming up")
            loop.warm_up(next(iter(prepared.values()))[0], modes, WARM_UP_TOKENS)
            for name, requests in prepared.items():
                for cell in loop.cells(name, requests, concurrencies, modes):
                    cells.append(cell)
                    done = f"{cell.route or 'no route'}, {cell.concurrency} at once, {cell.speculation}"
                    progress.update(progress.task_ids[0], description=f"after {done}")
    show_cells(cells, settings, options)
    if any(cell.num_failed or cell.num_identical not in (None, cell.num_outputs) for cell in cells):
        raise click.exceptions.Exit(1)


def read_groups(options: dict[str, Any]) -> dict[str | None, list[InputRequest]]:
    """Return the requests of each cell's group: by route, or all in turns."""
    from paceline.measure.load import MIXED

    by_route: dict[str | None, list[InputRequest]] = defaultdict(list)
    for request in read_requests(options["input_file"]):
        by_route[request.route].append(request)
    wanted: list[str | None] = list(by_route)
    if options["routes"] is not None:
        wanted = [name.strip() for name in options["routes"].split(",")]
        missing = [name for name in wanted if name not in by_route]
        if missing or len(set(wanted)) < len(wanted):
            raise ConfigError(
                given=f"--routes {options['routes']}",
                expected="routes of the file, each once: " + ", ".join(map(str, by_route)),
                remedy="Name those, or leave --routes out",
            )
    groups = {name: by_route[name][: options["limit"]] for name in wanted}
    return {MIXED: list(_in_turns(list(groups.values())))} if options["mixed"] else groups


def _in_turns(groups: Sequence[Sequence[InputRequest]]) -> Iterator[InputRequest]:
    for place in range(max(map(len, groups))):
        for group in groups:
            yield from group[place : place + 1]


def parse_concurrencies(text: str) -> list[int]:
    """Return the numbers of a list such as "1,4,16"; ConfigError if it is none."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) < len(words) or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise ConfigError(
            given=f"--concurrency {text}",
            expected="different numbers from 1 up with commas between them",
            remedy="Give --concurrency 1,4,8",
        )
    return numbers


def _modes(options: dict[str, Any]) -> tuple[Mode, ...]:
    from paceline.measure.load_mode import parse_modes

    has_model = options["draft"] is not None
    drafters = ["model", "suffix", "mixed"] if has_model else ["suffix"]
    return parse_modes(options["speculation"], drafters, "model" if has_model else None)


def _settings(options: dict[str, Any], modes: Sequence[Mode], max_num_seqs: int) -> EngineSettings:
    from paceline.config.engine import EngineSettings

    names = ("target", "device", "kernels", "weights", "draft_weights", "draft_vocab")
    optional = ("context_length", "kv_memory", "threads")
    needs_model = any(mode.drafter in ("model", "mixed") or mode.is_auto for mode in modes)
    return EngineSettings(
        speculation="auto" if any(mode.is_auto for mode in modes) else True,
        draft=options["draft"] if needs_model else None,
        max_num_seqs=max_num_seqs,
        **{name: options[name] for name in names},
        **{name: options[name] for name in optional if options[name] is not None},
    )


def prepare_requests(
    llm: LLM, requests: Sequence[InputRequest], options: dict[str, Any]
) -> list[LoadRequest]:
    """Return requests ready to be submitted, with a seed each."""
    from paceline.measure.load import LoadRequest
    from paceline.records import SamplingParams

    prepared = []
    for index, request in enumerate(requests):
        seed = options["seed"] + index
        sampling = SamplingParams(
            temperature=options["temperature"],
            top_p=options["top_p"],
            max_tokens=options["max_tokens"],
            ignore_eos=options["ignore_eos"],
            seed=seed,
        )
        token_ids = (
            llm.encode_chat(request.messages)
            if request.messages is not None
            else llm.encode(request.prompt or "")
        )
        prepared.append(LoadRequest(request.id, request.route, tuple(token_ids), sampling, seed % 2**64))
    return prepared


def warn_of_idle_clients(
    err: Console, groups: Mapping[str | None, Sequence[InputRequest]], concurrencies: Sequence[int]
) -> None:
    """Say on stderr where there are fewer requests than clients."""
    for name, requests in groups.items():
        if len(requests) < max(concurrencies):
            err.print(
                f"{name or 'no route'}: {len(requests)} requests keep only {len(requests)} clients busy",
                highlight=False,
            )


@contextmanager
def answers_progress(err: Console, total: int) -> Iterator[Progress]:
    """Show how many of so many answers are there."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        progress.add_task("answers", total=total)
        yield progress
