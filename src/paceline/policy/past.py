"""Routes' histories taken over from an earlier process, each when its route is met again.

What was true then need not be true now, so it is aged: counts weigh like few tokens, the fast shift is as
unsure as that of a route just met, and old drafts give way to new ones. A route that was paused for what lies
in its traffic stays paused, and is probed as ever; load and memory are of the moment, so routes paused for
these begin by speculating where it pays."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from paceline.policy.acceptance import Acceptance
from paceline.policy.history import LASTING, History, SavedRoute
from paceline.policy.routes import RouteTable
from paceline.policy.state_keeper import StateKeeper
from paceline.policy.tracks import RouteTrack

log = logging.getLogger(__name__)


class Past:
    """What is remembered of routes that may come again.

    Args:
        routes: that there are.
        acceptance: to be told of what was known.
        states: the same, of pauses.
    """

    def __init__(self, routes: RouteTable, acceptance: Acceptance, states: StateKeeper) -> None:
        self._routes = routes
        self._acceptance = acceptance
        self._states = states
        self._waiting: dict[str, SavedRoute] = {}

    def take(self, history: History, known: Mapping[str, RouteTrack]) -> tuple[str, ...]:
        """Take a history over, and return the names of its routes that may come again.

        Args:
            history: from an earlier process.
            known: routes that were met already; they keep what they know.
        """
        self._acceptance.restore_pools(history.pools)
        self._waiting = {
            name: route
            for name, route in history.routes.items()
            if self._routes.may_have(name) and name not in known
        }
        return tuple(self._waiting)

    def meet(self, track: RouteTrack) -> None:
        """Give a route that is met for the first time what an earlier process knew of it."""
        saved = self._waiting.pop(track.name, None)
        if saved is None:
            return
        if saved.verification is not track.settings.verification:
            log.info(
                "route %s: its history is not used; drafts were judged by %s, and are now by %s",
                track.name, saved.verification.value, track.settings.verification.value,
            )  # fmt: skip
            return
        for source, known in saved.sources.items():
            self._acceptance.of(track.name, source).restore(known)
        track.lengths.restore(saved.output_lengths)
        track.ledger.credit_s = saved.credit_s
        if saved.paused is not None:
            self._states.restore(track, saved.paused, saved.sentence)
        log.info("route %s: taken up from its history, %s", track.name, track.sentence)

    def history(self, tracks: Mapping[str, RouteTrack]) -> History:
        """Return what is known now, of routes that were not met again yet as it was."""
        met = {name: self._saved(track) for name, track in tracks.items()}
        return History(routes=self._waiting | met, pools=self._acceptance.saved_pools())

    def _saved(self, track: RouteTrack) -> SavedRoute:
        known = self._acceptance.known(track.name)
        is_lasting = track.is_paused and track.reason in LASTING
        return SavedRoute(
            verification=track.settings.verification,
            paused=track.reason if is_lasting else None,
            sentence=track.sentence[:1000] if is_lasting else "",
            credit_s=track.ledger.credit_s,
            output_lengths=track.lengths.latest,
            sources={found.source: found.saved() for found in known},
        )
