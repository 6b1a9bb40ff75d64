"""`paceline plan break-even`: from three step times to tokens per step, speedup and break-even."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.output import print_fields, print_json
from paceline.cli.plan_curve import MS, read_curve
from paceline.errors import ConfigError
from paceline.planner.break_even import MOST_DRAFTS, implied_acceptance
from paceline.planner.step_times import BreakEven, StepTimes, from_acceptance, from_tokens


@click.command(name="break-even")
@click.option("--draft-ms", type=float, required=True, metavar="MS",
              help="Time to draft all k tokens; in proportion to k.")  # fmt: skip
@click.option("--verify-ms", type=float, metavar="MS",
              help="Time of the target's pass that checks k drafts; the same for any k.")  # fmt: skip
@click.option("--plain-ms", type=float, metavar="MS", help="Time of a step without drafts.")
@click.option("--k", type=int, required=True, metavar="K", help="Draft length that the times are of.")
@click.option("--acceptance", metavar="A[,A...]",
              help="Chance of a drafted token, those before it accepted: one for all positions (independent),"
              " or one for each of k positions or more.")  # fmt: skip
@click.option("--tokens-per-step", type=float, metavar="N",
              help="Instead: tokens that a step emits, as counted, the target's own among them.")  # fmt: skip
@click.option("--curve", type=click.Path(path_type=Path), metavar="FILE",
              help="How verification grows with rows: what `paceline calibrate --json` printed, or CSV with "
              "rows and ms. Stands in for --verify-ms and --plain-ms where they are not given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def break_even(
    draft_ms: float, verify_ms: float | None, plain_ms: float | None, k: int, acceptance: str | None,
    tokens_per_step: float | None, curve: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compute speedup, break-even acceptance and the best draft length from step times.

    \b
    All times are of one step of the same batch. A step emits the drafts that stand and one token of the
    target's own, which is counted. 4 drafts in 20 ms, checked in 80 ms, against plain steps of 80 ms:
      paceline plan break-even --draft-ms 20 --verify-ms 80 --plain-ms 80 --k 4 --acceptance 0.6
    """
    times = _times(draft_ms, verify_ms, plain_ms, k, curve)
    if (acceptance is None) == (tokens_per_step is None):
        raise ConfigError(
            given="both --acceptance and --tokens-per-step" if acceptance else "no acceptance",
            expected="either --acceptance (a chance) or --tokens-per-step (a count)",
            remedy="Give one of them",
        )
    chances = None if acceptance is None else _chances(acceptance)
    if chances is not None:
        found = from_acceptance(times, chances[0] if len(chances) == 1 else chances)
    else:
        assert tokens_per_step is not None
        found = from_tokens(times, tokens_per_step)
    if as_json:
        print_json(
            {
                "tokens_per_step": found.tokens_per_step,
                "speedup": found.speedup,
                "break_even_acceptance": found.break_even_acceptance,
                "best_k": None if found.best is None else found.best.draft_length,
            }
        )
        return
    print_fields(_fields(times, found, chances))


def _times(
    draft_ms: float, verify_ms: float | None, plain_ms: float | None, k: int, path: Path | None
) -> StepTimes:
    curve = None if path is None else read_curve(path)
    if curve is None and (verify_ms is None or plain_ms is None):
        raise ConfigError(
            given="no --plain-ms" if plain_ms is None else "no --verify-ms",
            expected="both times, or a curve",
            remedy="Give them, or --curve with what `paceline calibrate --json` printed",
        )  # fmt: skip
    if not 1 <= k <= MOST_DRAFTS:
        raise ConfigError(
            given=f"--k {k}", expected=f"1 to {MOST_DRAFTS} drafted tokens", remedy="Correct it"
        )
    if curve is not None:
        verify_ms = curve.seconds_of(k + 1) / MS if verify_ms is None else verify_ms
        plain_ms = curve.seconds_of(1) / MS if plain_ms is None else plain_ms
    assert verify_ms is not None
    assert plain_ms is not None
    return StepTimes(draft_ms * MS, verify_ms * MS, plain_ms * MS, k, curve)


def _chances(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            given=f"--acceptance {text!r}",
            expected="a chance such as 0.6, or one for each position such as 0.8,0.7,0.6",
            remedy="Write numbers from 0 to 1, separated by commas",
        ) from None


def _fields(times: StepTimes, found: BreakEven, chances: list[float] | None) -> list[tuple[str, str]]:
    k, step_s = times.draft_length, times.step_s(times.draft_length)
    gain = "a gain" if found.speedup > 1 else "a loss" if found.speedup < 1 else "neither gain nor loss"
    return [
        ("acceptance model", _model(found, chances, k)),
        ("tokens per step", f"{found.tokens_per_step:.2f}, the target's own token counted"),
        ("step", f"{step_s / MS:g} ms: drafting {times.draft_s / MS:g}, verifying {times.verify_s / MS:g}; "
                 f"plain {times.plain_s / MS:g}"),
        ("time per token", f"{step_s / found.tokens_per_step / MS:.1f} ms against {times.plain_s / MS:.1f}"),
        ("tokens per second", f"{found.tokens_per_step / step_s:.1f} against {1 / times.plain_s:.1f}, "
                              "of one sequence"),
        ("speedup", f"{found.speedup:.2f}x, {gain}"),
        ("break-even", _threshold(times, found)),
        ("best k", _best(times, found)),
    ]  # fmt: skip


def _model(found: BreakEven, chances: list[float] | None, k: int) -> str:
    if chances is None:
        same = implied_acceptance(found.tokens_per_step, k)
        return f"none: tokens were counted (independence would need {same:.2f} for each drafted token)"
    if len(chances) == 1:
        return f"independent: each drafted token stands with {chances[0]:g} if those before it did"
    return (
        "by position: " + ", ".join(f"{chance:g}" for chance in chances) + ", each if those before it stood"
    )


def _threshold(times: StepTimes, found: BreakEven) -> str:
    needed = times.step_s(times.draft_length) / times.plain_s
    if found.break_even_acceptance is None:
        return f"never at k = {times.draft_length}: {needed:.2f} tokens per step would be needed"
    return (
        f"acceptance {found.break_even_acceptance:.2f} (independent), {max(1.0, needed):.2f} tokens per step"
    )


def _best(times: StepTimes, found: BreakEven) -> str:
    if found.best is None:
        return "not known: a count at one k says nothing of others"
    growth = "as the curve says" if times.curve else "as long for every k"
    if not found.best.draft_length:
        return f"0: no draft length gains (verification {growth})"
    limit = ", the longest looked at" if found.best.draft_length == MOST_DRAFTS else ""
    return f"{found.best.draft_length}{limit}: {found.best.speedup:.2f}x (verification {growth})"
