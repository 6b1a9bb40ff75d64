"""`paceline plan capacity`: speedup by load, where it ends, and accelerators needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from paceline.cli.output import print_json
from paceline.cli.plan_capacity_output import CapacityReport, RouteCapacity, show, show_published
from paceline.cli.plan_curve import read_costs
from paceline.cli.plan_models import PlannedModels, from_numbers
from paceline.cli.plan_options import OF_NUMBERS, number_options, refuse_beside
from paceline.errors import ConfigError
from paceline.planner.capacity import (
    StepModel,
    Workload,
    at_load,
    best_at,
    crossing,
    groups_needed,
    most_requests,
)
from paceline.planner.memory import GB, MemoryDemand, plan_memory
from paceline.planner.published import PUBLISHED, compare
from paceline.policy.simulation.accelerators import ACCELERATORS, accelerator_of
from paceline.policy.simulation.curves import roofline

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_SEQUENCES = 1024
ROUTE_KEYS = ("arrivals", "prompt", "output", "acceptance")


@click.command()
@click.option("--accelerator", type=click.Choice(list(ACCELERATORS)), help="Roofline of this one.")
@click.option("--num-accelerators", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="That share one copy of the models.")  # fmt: skip
@number_options
@click.option("--curve", type=click.Path(path_type=Path), metavar="FILE",
              help="Instead of a roofline: what `paceline calibrate --draft D --json` printed.")  # fmt: skip
@click.option("--acceptance", metavar="A[,A...]",
              help="Chance of a drafted token, those before it accepted: one, or one each.")  # fmt: skip
@click.option(
    "--arrivals-per-s", type=float, default=0.0, metavar="N", help="Requests. [default: not simulated]"
)
@click.option("--prompt-tokens", type=int, default=512, show_default=True, metavar="N")
@click.option("--output-tokens", type=int, default=256, show_default=True, metavar="N", help="On average.")
@click.option("--route", "routes", multiple=True, metavar="NAME:KEY=VALUE,...",
              help="Instead of these four: a route's arrivals, prompt, output and acceptance (by position "
              "with / between). May be repeated.")  # fmt: skip
@click.option("--max-sequences", type=click.IntRange(min=1), metavar="N",
              help="At once. [default: what memory holds, at most 1024; of a curve 8]")  # fmt: skip
@click.option(
    "--token-ms", type=float, metavar="MS", help="Longest time between tokens that will do. [default: any]"
)
@click.option("--utilisation", type=float, default=0.8, show_default=True, metavar="SHARE",
              help="Of what a machine can do; the rest is for bunches.")  # fmt: skip
@click.option("--answers", type=click.IntRange(min=20), default=300, show_default=True, metavar="N",
              help="Simulated for each run.")  # fmt: skip
@click.option("--published", is_flag=True,
              help="Instead: crossings that others measured, beside what rooflines say of them.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def capacity(**options: Any) -> None:
    """Plan capacity: the load at which speculation stops gaining, and accelerators with and without it.

    \b
    Where the best draft length of a 70B target with a 1B draft model on eight H100s becomes 0:
      paceline plan capacity --accelerator h100 --num-accelerators 8 --params-b 70 --draft-params-b 1 \\
          --acceptance 0.8 --arrivals-per-s 4
    """
    if options["published"]:
        refuse_beside("--published", ("accelerator", "curve", "acceptance", "routes", "params_b"))
        show_published([compare(one) for one in PUBLISHED], as_json=options["as_json"])
        return
    works = _workloads(options)
    model, models, assumptions = _model(options)
    most = {True: _most_sequences(options, models, works, True),
            False: _most_sequences(options, models, works, False)}  # fmt: skip
    routes = tuple(_route(model, work, most, options) for work in works)
    needed = {s: _groups(works, routes, s, options["utilisation"]) for s in (False, True)}
    report = CapacityReport(
        routes, most, options["num_accelerators"], needed, _simulated(model, works, most, needed, options),
        (*assumptions, f"a machine is planned to do {options['utilisation']:.0%} of what it can"),
    )  # fmt: skip
    if options["as_json"]:
        print_json(report.to_json())
        return
    show(report)


def _model(options: dict[str, Any]) -> tuple[StepModel, PlannedModels | None, tuple[str, ...]]:
    accelerator, path = options["accelerator"], options["curve"]
    if (accelerator is None) == (path is None):
        raise ConfigError(
            given="both --accelerator and --curve" if path else "neither --accelerator nor --curve",
            expected="a roofline or measured step costs",
            remedy="Give --accelerator with --params-b and --draft-params-b, or --curve FILE",
        )
    if path is not None:
        refuse_beside("--curve", (*OF_NUMBERS, "num_accelerators"))
        costs = read_costs(path)
        name, draft = next(iter(costs.drafts.items()))
        said = ", ".join(filter(None, (costs.description.get("machine"), costs.description.get("kernels"))))
        return (
            StepModel(costs.target, draft),
            None,
            (f"step costs as measured ({said or path}), drafter {name}",),
        )
    if options["draft_params_b"] is None:
        raise ConfigError(
            given="no --draft-params-b", expected="a draft model's size", remedy="Give its thousand millions"
        )
    models = from_numbers({**options, "context": None, "sequences": None})
    assert models.draft is not None
    one, number = accelerator_of(accelerator), options["num_accelerators"]
    target, draft = (
        roofline(
            accelerator, params, bytes_per_param=planned.bytes_per_param or 2.0,
            kv_bytes_per_token=planned.memory.kv_bytes_per_token, num_accelerators=number,
        )
        for params, planned in (
            (options["params_b"], models.target), (options["draft_params_b"], models.draft)
        )
    )  # fmt: skip
    return StepModel(target, draft), models, (
        f"roofline of {number} x {accelerator}: {one.bandwidth_reached:.0%} of its bandwidth, "
        f"{one.compute_reached:.0%} of its arithmetic, {1e3 * one.launch_s:g} ms a pass, links free",
        f"target: {models.target.what}, {models.target.shape}",
        f"draft model: {models.draft.what}, {models.draft.shape}",
    )  # fmt: skip


def _workloads(options: dict[str, Any]) -> list[Workload]:
    if not options["routes"]:
        if options["acceptance"] is None:
            raise ConfigError(
                given="no acceptance",
                expected="how often drafts of this traffic are accepted",
                remedy="Give --acceptance 0.7 or --route; measure it on your own prompts with "
                "`paceline generate --input FILE --compare`",
            )
        found = _acceptance(options["acceptance"].split(","))
        return [
            Workload(found, options["prompt_tokens"], options["output_tokens"], options["arrivals_per_s"])
        ]
    refuse_beside("--route", ("acceptance", "prompt_tokens", "output_tokens", "arrivals_per_s"))
    works = [_parse_route(text) for text in options["routes"]]
    if len({work.name for work in works}) < len(works):
        raise ConfigError(given="two routes of one name", expected="names that differ", remedy="Rename one")
    return works


def _parse_route(text: str) -> Workload:
    name, _, rest = text.partition(":")
    values = dict(part.partition("=")[::2] for part in rest.split(","))
    try:
        if not name or set(values) != set(ROUTE_KEYS):
            raise ValueError("keys")
        return Workload(
            _acceptance(values["acceptance"].split("/")), int(values["prompt"]), int(values["output"]),
            float(values["arrivals"]), name,
        )  # fmt: skip
    except ValueError:
        raise ConfigError(
            given=f"--route {text!r}",
            expected="NAME:" + ",".join(f"{key}=VALUE" for key in ROUTE_KEYS),
            remedy="Write for instance chat:arrivals=3,prompt=400,output=200,acceptance=0.6",
        ) from None


def _acceptance(parts: Sequence[str]) -> float | list[float]:
    try:
        chances = [float(part) for part in parts]
    except ValueError:
        raise ConfigError(
            given=f"acceptance {','.join(parts)!r}",
            expected="a chance such as 0.6, or one for each position",
            remedy="Write numbers from 0 to 1",
        ) from None
    return chances[0] if len(chances) == 1 else chances


def _most_sequences(
    options: dict[str, Any], models: PlannedModels | None, works: Sequence[Workload], speculates: bool
) -> int:
    if options["max_sequences"] is not None:
        return int(options["max_sequences"])
    if models is None:
        return 8
    assert models.draft is not None
    memory_gb = accelerator_of(options["accelerator"]).memory_gb * options["num_accelerators"]
    context = max(work.prompt_tokens + work.output_tokens for work in works)
    plan = plan_memory(
        MemoryDemand(
            memory_gb * GB, models.target.memory, models.draft.memory if speculates else None, context
        )
    )
    if plan.sequences_with_draft < 1:
        raise ConfigError(
            given=f"{memory_gb:g} GB for {(plan.weight_bytes + plan.draft_bytes) / GB:g} GB of weights",
            expected="room for them and one sequence",
            remedy="Raise --num-accelerators, or take smaller weights (--dtype)",
        )
    return min(MOST_SEQUENCES, plan.sequences_with_draft)


def _route(model: StepModel, work: Workload, most: dict[bool, int], options: dict[str, Any]) -> RouteCapacity:
    token_s = None if options["token_ms"] is None else options["token_ms"] * 1e-3
    ladder = [n for n in LADDER if n <= most[True]]
    found = crossing(model, work)
    return RouteCapacity(
        work=work,
        plain=tuple(at_load(model, work, n, 0) for n in ladder),
        best=tuple(best_at(model, work, n) for n in ladder),
        crossing=found,
        crossing_decoding=crossing(model, replace(work, counts_prompts=False)),
        crossing_requests_per_s=None
        if found.concurrency is None
        else at_load(model, work, found.concurrency, 0).requests_per_s,
        most={s: most_requests(model, work, most[s], token_s, speculates=s) for s in (False, True)},
    )


def _groups(
    works: Sequence[Workload], routes: Sequence[RouteCapacity], speculates: bool, utilisation: float
) -> int | None:
    points = [route.most[speculates] for route in routes]
    if not any(work.arrivals_per_s for work in works) or any(point is None for point in points):
        return None
    return groups_needed(works, [point for point in points if point is not None], utilisation)


def _simulated(
    model: StepModel, works: Sequence[Workload], most: dict[bool, int], needed: dict[bool, int | None],
    options: dict[str, Any],
) -> Any:  # fmt: skip
    groups = [number for number in needed.values() if number]
    if not groups:
        return None
    from paceline.planner.simulated import simulate

    number = max(groups)
    shared = [replace(work, arrivals_per_s=work.arrivals_per_s / number) for work in works]
    with Console(stderr=True).status("simulating the same arrivals without and with speculation"):
        return {
            speculates: simulate(
                model, shared, speculates=speculates, max_num_seqs=most[speculates],
                num_answers=options["answers"], seed=options["seed"],
            )
            for speculates in (False, True)
        }  # fmt: skip
