"""`paceline plan`: what speculation would buy and cost, from figures, before anything is loaded."""

from __future__ import annotations

import click

from paceline.cli.plan_break_even import break_even
from paceline.cli.plan_capacity import capacity
from paceline.cli.plan_memory import memory


@click.group()
def plan() -> None:
    """Plan memory, break-even and capacity from figures, before anything is loaded.

    \b
    Everything here is an estimate and says from what. `paceline bench load` and `paceline calibrate` measure.
    """


plan.add_command(memory)
plan.add_command(break_even)
plan.add_command(capacity)
