"""Whether the drafter's pass is run in a step in which nobody drafts.

vLLM runs one such pass so that the drafter's KV follows the target's, and drafting can begin again at any
token. Without it, requests that run keep holes there and are not drafted for any more; new ones are. So it is
left out where no request is to be drafted for soon. A request that only watches, of a route that is paused,
keeps it up for all; that is paid for out of what probes may lose."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.policy.interface import DraftChoice
from paceline.policy.ledger import Ledger

SHARE = 0.01
"""Of the time, for keeping the drafter's KV up for nobody but watchers."""


class Upkeep:
    """Decides, step by step."""

    def __init__(self, share: float = SHARE) -> None:
        self.ledger = Ledger(share)
        self._has_paid = False
        """Whether the last step ran the pass for watchers alone."""

    def skips(self, holders: Iterable[tuple[DraftChoice, bool]], pass_s: float) -> bool:
        """Whether the pass is left out of a step in which nobody drafts.

        Args:
            holders: for each request whose drafter KV has no holes, what the policy said, and whether its
                route is paused.
            pass_s: seconds that it would take.
        """
        keeping = [is_paused for choice, is_paused in holders if choice.keeps_drafts]
        if not keeping:
            return True
        if not all(keeping):
            return False
        # Begun only with enough at hand to see a watcher through some steps.
        least = pass_s if self._has_paid else 32 * pass_s
        self._has_paid = self.ledger.can_spend(least)
        if self._has_paid:
            self.ledger.spend(pass_s)
        return not self._has_paid
