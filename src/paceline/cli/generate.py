"""`paceline generate`: answer one prompt or a file of them, with and without speculation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paceline.cli.comparison import Comparison
from paceline.cli.draft_flags import DRAFTER_HELP, draft_option
from paceline.cli.generate_output import Printer
from paceline.cli.generate_settings import (
    engine_settings,
    modes_of,
    read_inputs,
    sampling_params,
    without_idle_draft,
)
from paceline.cli.input_file import InputRequest
from paceline.config.engine import EngineSettings
from paceline.llm import LLM
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.reports import RouteReport
from paceline.records import (
    FinishReason,
    GenerationResult,
    SamplingParams,
    SpeculationParams,
    Verification,
    draw_seed,
)

MAX_TOKENS = 256
WARM_UP_TOKENS = 8

AnswerKey = tuple[str, int]
"""Id of a request, and which of its choices."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to be submitted, any number of times."""

    id: str
    route: str | None
    token_ids: tuple[int, ...]
    sampling: SamplingParams


@click.command()
@click.option("--target", required=True, metavar="T", help="Model that answers: preset, file or folder.")
@draft_option
@click.option("--drafter", metavar="NAME", help=f"{DRAFTER_HELP}  [default: model with --draft, else none]")
@click.option(
    "--draft-length",
    type=int,
    metavar="K",
    help="Tokens proposed in each step; with auto, the most of them.  [default: 4; 8 with auto]",
)
@click.option(
    "--speculation",
    type=click.Choice(["on", "off", "auto"]),
    help="auto: where it pays, by what is measured.  [default: on, where there is a drafter]",
)
@click.option(
    "--verification",
    type=click.Choice([v.value for v in Verification]),
    default=Verification.COUPLED.value,
    show_default=True,
    help="coupled: same seed, same bytes. rejection: same distribution.",
)
@click.option(
    "--chat", metavar="TEXT", help="Answer TEXT as a user's message, with the model's chat template."
)
@click.option("--prompt", metavar="TEXT", help="Continue TEXT as it is.")
@click.option(
    "--input",
    "input_file",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help="Answer each line's `messages` or `prompt`.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="First N lines of --input only.")
@click.option("--max-tokens", type=int, default=MAX_TOKENS, show_default=True, metavar="N")
@click.option("--temperature", type=float, default=0.0, show_default="0, greedy", metavar="X")
@click.option("--top-p", type=float, default=1.0, show_default=True, metavar="X")
@click.option("--n", type=int, default=1, show_default=True, metavar="N", help="Answers to each prompt.")
@click.option(
    "--json-schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The answer is JSON that fits this schema.",
)
@click.option("--regex", metavar="R", help="The whole answer matches R.")
@click.option(
    "--choice", multiple=True, metavar="TEXT", help="The answer is TEXT, or TEXT of another --choice."
)
@click.option("--seed", type=int, metavar="S", help="64-bit seed.  [default: drawn, and shown with --json]")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="C",
    help="Sequences at once.",
)
@click.option("--context-length", type=int, metavar="N", help="Most tokens of prompt and output together.")
@click.option(
    "--kv-memory", metavar="SIZE", help='Memory for KV caches, as "2GiB".  [default: 1/4 of what is free]'
)
@click.option("--threads", type=int, metavar="N", help="[default: the CPUs this process may use]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--kernels",
    type=click.Choice(["auto", "native", "reference"]),
    default="auto",
    show_default=True,
    help="Arithmetic on a CPU. reference: float32 PyTorch, slow.",
)
@click.option(
    "--weights",
    type=click.Choice(["file", "int8"]),
    default="file",
    show_default=True,
    help="int8: hold matrices of other types than native kernels have in 8 bits.",
)
@click.option(
    "--draft-weights",
    type=click.Choice(["auto", "file", "int4"]),
    default="auto",
    show_default=True,
    help="int4: draft faster, a little less aptly. auto: int4 on native kernels.",
)
@click.option(
    "--draft-vocab",
    type=click.Choice(["auto", "full"]),
    default="auto",
    show_default=True,
    help="auto: draft from the most frequent tokens, where there is a list of them.",
)
@click.option("--compare", is_flag=True, help="Run without, then with speculation, and compare.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each answer, then a summary.")
def generate(**options: Any) -> None:
    """Answer a prompt, and say what speculation bought.

    \b
    paceline generate --target qwen2.5-coder-1.5b-instruct \\
        --draft qwen2.5-coder-0.5b-instruct --chat "Write quicksort in Python." --compare
    """
    requests = read_inputs(options)
    settings, sampling = engine_settings(options), sampling_params(options)
    modes = modes_of(options, settings)
    settings = without_idle_draft(settings, modes)
    printer = Printer(as_json=options["as_json"], modes=modes, num_answers=len(requests) * sampling.n)
    with printer.loading((settings.target, *settings.draft_models.values())) as on_progress:
        llm = LLM.from_settings(settings, on_progress)
    with llm:
        prepared = [_prepare(llm, request, sampling) for request in requests]
        if len(modes) > 1:
            warm_up(llm, prepared[0], modes)
        runs = {mode: run_mode(llm, prepared, mode, printer) for mode in modes}
        policy = llm.loaded.engine.policy
        reports = policy.reports() if isinstance(policy, SpeculationPolicy) else {}
    _finish(runs, settings, printer, list(reports.values()))


def _prepare(llm: LLM, request: InputRequest, sampling: SamplingParams) -> PreparedRequest:
    token_ids = (
        llm.encode_chat(request.messages)
        if request.messages is not None
        else llm.encode(request.prompt or "")
    )
    if sampling.seed is None:
        # Drawn here and not by the engine, so that both runs of a comparison use the same one.
        sampling = sampling.model_copy(update={"seed": draw_seed()})
    return PreparedRequest(request.id, request.route, tuple(token_ids), sampling)


def warm_up(llm: LLM, request: PreparedRequest, modes: Sequence[str]) -> None:
    """Answer the first request in a few tokens, each way, so that no run pays for what is only done once."""
    sampling = request.sampling.model_copy(update={"max_tokens": WARM_UP_TOKENS})
    for mode in modes:
        llm.submit(request.token_ids, sampling, speculation=_speculation(llm, mode), request_id="warm-up")
        for _ in llm.run():
            pass


def _speculation(llm: LLM, mode: str) -> SpeculationParams:
    return llm.settings.speculation_params.model_copy(
        update={"enabled": {"on": True, "auto": "auto"}.get(mode, False)}
    )


def run_mode(
    llm: LLM, prepared: Sequence[PreparedRequest], mode: str, printer: Printer
) -> tuple[GenerationResult, ...]:
    """Answer all requests with speculation off or on; results in the order of the requests."""
    llm.loaded.engine.clear_prefix_cache()  # or the second run would find the prompts of the first
    speculation = _speculation(llm, mode)
    for request in prepared:
        llm.submit(
            request.token_ids,
            request.sampling,
            speculation=speculation,
            request_id=request.id,
            route=request.route,
        )
    results: dict[AnswerKey, GenerationResult] = {}
    with printer.mode(mode):
        for chunk in llm.run():
            printer.chunk(chunk)
            if chunk.result is not None:
                results[chunk.request_id, chunk.index] = chunk.result
                printer.answers(mode, _in_order(prepared, results))
    return tuple(_in_order(prepared, results))


def _in_order(
    prepared: Sequence[PreparedRequest], results: dict[AnswerKey, GenerationResult]
) -> Iterator[GenerationResult]:
    """Yield the finished answers up to the first that is still missing."""
    for request in prepared:
        for index in range(request.sampling.n):
            if (request.id, index) not in results:
                return
            yield results[request.id, index]


def _finish(
    runs: dict[str, tuple[GenerationResult, ...]],
    settings: EngineSettings,
    printer: Printer,
    reports: Sequence[RouteReport],
) -> None:
    printer.summary(runs, settings, reports)
    failed = [r for results in runs.values() for r in results if r.finish_reason is FinishReason.ERROR]
    if failed and failed[0].error is not None:
        raise failed[0].error
    if len(runs) == 2 and settings.verification is Verification.COUPLED:
        comparison = Comparison(*runs.values())
        if comparison.num_identical < len(comparison.off):
            raise click.exceptions.Exit(1)
