"""`paceline plan memory`: weights, KV and work of a target and its draft model in one memory."""

from __future__ import annotations

from typing import Any

import click

from paceline.cli.output import print_fields, print_json, print_table
from paceline.cli.plan_models import DEFAULT_CONTEXT, PlannedModels, from_files, from_numbers, resident_bytes
from paceline.cli.plan_options import OF_NUMBERS, number_options, refuse_beside
from paceline.errors import ConfigError
from paceline.planner.memory import GB, MemoryDemand, MemoryPlan, plan_memory
from paceline.planner.placement import LINKS, Link, step_transfer
from paceline.planner.suggestions import suggestions
from paceline.policy.simulation.accelerators import ACCELERATORS, accelerator_of


@click.command()
@click.option(
    "--target", metavar="T", help="Model that answers: preset, file or folder, held as the engine would."
)
@click.option("--draft", metavar="D", help="Model that drafts, likewise.")
@number_options
@click.option("--draft-weights", type=click.Choice(["auto", "file", "int4"]), default="auto",
              show_default=True, help="Of files: as the engine's option.")  # fmt: skip
@click.option("--draft-vocab", type=click.Choice(["auto", "full"]), default="auto", show_default=True)
@click.option("--context", type=click.IntRange(min=2), metavar="N",
              help=f"Tokens of each sequence. [default: {DEFAULT_CONTEXT}]")  # fmt: skip
@click.option("--sequences", type=click.IntRange(min=1), metavar="N",
              help="Sequences that run at once. [default: as many as fit; of files 8]")  # fmt: skip
@click.option("--kv-gb", type=float, metavar="GB", help="Set aside for the KV of both models. "
              "[default: what the sequences take]")  # fmt: skip
@click.option(
    "--memory-gb", type=float, metavar="GB", help="There is. [default: of files, what is free here]"
)
@click.option("--accelerator", type=click.Choice(list(ACCELERATORS)), help="Instead: its memory.")
@click.option("--num-accelerators", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--k", type=click.IntRange(1, 64), default=4, show_default=True, help="Draft length.")
@click.option("--link-gb-s", type=float, metavar="GB/S",
              help="Price this link instead of the named ones: 10^9 bytes per second, one way.")  # fmt: skip
@click.option("--link-latency-us", type=float, metavar="US",
              help="Of a message over it. [default: 10]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def memory(**options: Any) -> None:
    """Plan the memory of a target and a draft model, and what the draft model costs in sequences.

    \b
    From numbers (1 GB is 10^9 bytes), for any engine:
      paceline plan memory --params-b 7 --dtype bf16 --draft-params-b 1 --kv-gb 40 --memory-gb 80
    From files, as the embedded engine would hold them on this machine:
      paceline plan memory --target qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct
    """
    models = _models(options)
    kv_bytes = None if options["kv_gb"] is None else options["kv_gb"] * GB
    if kv_bytes is None and options["sequences"] is None:
        kv_bytes = models.own_kv_bytes
    plan = plan_memory(
        MemoryDemand(
            options["memory_bytes"],
            models.target.memory,
            models.draft.memory if models.draft else None,
            models.context,
            models.sequences,
            kv_bytes,
            models.process_bytes,
        )
    )
    if options["as_json"]:
        print_json(plan.to_json())
        return
    _show(plan, models, options)


def _models(options: dict[str, Any]) -> PlannedModels:
    is_from_files = options["target"] is not None
    if options["draft"] is not None and not is_from_files:
        raise ConfigError(
            given="--draft without --target", expected="both", remedy="Name the target's file, too"
        )
    if is_from_files:
        refuse_beside("--target", OF_NUMBERS)
    elif options["params_b"] is not None:
        refuse_beside("--params-b", ("draft_weights", "draft_vocab"))
    if options["link_gb_s"] is None and options["link_latency_us"] is not None:
        raise ConfigError(
            given="--link-latency-us without --link-gb-s",
            expected="both: named links have their own latencies",
            remedy="Give the link's bandwidth, too",
        )
    options["memory_bytes"] = _memory_bytes(options, is_from_files)
    return from_files(options) if is_from_files else from_numbers(options)


def _memory_bytes(options: dict[str, Any], is_from_files: bool) -> float:
    given, accelerator = options["memory_gb"], options["accelerator"]
    if given is not None and accelerator is not None:
        raise ConfigError(
            given="--memory-gb and --accelerator", expected="one of them", remedy="Leave one of them out"
        )
    if given is not None or accelerator is not None:
        each = given if accelerator is None else accelerator_of(accelerator).memory_gb
        return float(each * GB * options["num_accelerators"])
    if not is_from_files:
        raise ConfigError(
            given="no memory",
            expected="how much there is",
            remedy="Give --memory-gb 80, or --accelerator h100",
        )
    from paceline.config.memory import available_memory

    return float(available_memory() + resident_bytes())


def _show(plan: MemoryPlan, models: PlannedModels, options: dict[str, Any]) -> None:
    draft = models.draft
    total = plan.demand.memory_bytes
    where = options["accelerator"]
    rows = [("memory", f"{_gb(total)}" + (f", {options['num_accelerators']} x {where}" if where else ""))]
    if models.process_bytes:
        rows.append(
            ("program", f"{_gb(models.process_bytes)}: interpreter, libraries and tokenizers, measured")
        )
    rows += [
        ("target weights", f"{_gb(plan.weight_bytes)}: {models.target.what}"),
        ("draft weights", f"{_gb(plan.draft_bytes)}: {draft.what}" if draft else "-"),
        ("KV", f"{_gb(plan.kv_bytes)}: {_kv_words(plan, models, options)}"),
        ("workspace", f"{_gb(plan.workspace_bytes)}" if plan.workspace_bytes else "not counted"),
        ("free", _gb(plan.free_bytes) if plan.fits else f"none, {_gb(-plan.free_bytes)} lacking"),
        ("fits", "yes" if plan.fits else "no"),
    ]
    print_fields(rows)
    click.echo()
    _show_kv(plan, models)
    if draft is not None:
        click.echo()
        _show_placement(plan, models, options)
    for sentence in suggestions(plan, draft.bytes_per_param if draft else None):
        click.echo("\n- " + sentence)


def _kv_words(plan: MemoryPlan, models: PlannedModels, options: dict[str, Any]) -> str:
    if options["kv_gb"] is not None:
        return "as set aside" + (", for both" if models.draft else "")
    if plan.demand.kv_bytes is not None:
        return "what the engine sets aside by itself, a quarter of what weights and work leave"
    count = plan.sequences_with_draft if models.sequences is None else models.sequences
    return f"{count:,} sequences of {models.context:,} tokens"


def _show_kv(plan: MemoryPlan, models: PlannedModels) -> None:
    named = [("target", models.target), *([("draft", models.draft)] if models.draft else [])]
    rows = [
        (
            name,
            f"{one.memory.kv_bytes_per_token:,.0f}",
            _gb(one.memory.kv_bytes(models.context), 3),
            one.shape,
        )
        for name, one in named
        if one is not None
    ]
    print_table(("", "KV BYTES / TOKEN", f"AT {models.context:,} TOKENS", "FROM"), rows)
    if models.draft is None:
        click.echo(f"\nsequences of {models.context:,} tokens: {plan.sequences_without_draft:,}")
        return
    click.echo(
        f"\nsequences of {models.context:,} tokens: {plan.sequences_without_draft:,} without the draft "
        f"model, {plan.sequences_with_draft:,} with it: {plan.sequences_lost:,} lost"
    )


def _show_placement(plan: MemoryPlan, models: PlannedModels, options: dict[str, Any]) -> None:
    sequences = models.sequences or max(1, plan.sequences_with_draft)
    k, vocab = options["k"], models.target.vocab_size
    links = list(LINKS.values())
    if options["link_gb_s"] is not None:
        links = [Link("as given", options["link_gb_s"], 1e-6 * (options["link_latency_us"] or 10.0))]
    rows = [("beside the target", f"{plan.sequences_with_draft:,}", "-", "-", "-")]
    for link in links:
        ids, full = (
            step_transfer(link, sequences, k, vocab, sends_probabilities=sends) for sends in (False, True)
        )
        rows.append(
            (
                f"across {link.name} ({link.gb_s:g} GB/s, {1e6 * link.latency_s:g} us)",
                f"{plan.sequences_without_draft:,}",
                _size(ids.to_target_bytes + ids.to_draft_bytes),
                _time(ids.seconds),
                f"{_size(full.to_target_bytes + full.to_draft_bytes)} in {_time(full.seconds)}",
            )
        )
    click.echo(
        f"Where the draft model may run: a step of {sequences:,} sequences at k = {k}, vocabulary {vocab:,}"
    )
    header = ("DRAFT MODEL", "SEQUENCES", "SENT / STEP", "ADDS / STEP", "WITH REJECTION (PROBABILITIES)")
    print_table(header, rows)


def _gb(num_bytes: float, digits: int = 2) -> str:
    return f"{num_bytes / GB:,.{digits}f} GB"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e3:,.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:,.1f} MB"


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:,.2f} ms"
