"""What is known of acceptance: a calibration and recent drafts for each route and each source of drafts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.policy.calibration import Calibration
from paceline.policy.counts import UNKNOWN, Counts, bins_of, places_of
from paceline.policy.history import SavedCounts, SavedDraft, SavedPool, SavedSource
from paceline.policy.replay import FOUND_NOTHING, MAX_LENGTH, Borrowed, Draft, Replay
from paceline.step_records import SequenceStep

LEAST_OWN = 32.0
"""Verified tokens from which on a route stands by its own figures."""
FAST_TOKENS = 64
DRIFT_LEAST = 0.10
DRIFT_SDS = 3.5
MAX_POSITIONS = 16
POSITION_DRAFTS = 256
"""Drafts after which those before count half, where acceptance is told by position."""
SCORED_STRIDE = 4
"""Positions from one draft that is read out of scored text to the next."""


@dataclass(frozen=True, slots=True)
class AcceptanceFigure:
    """Acceptance of one route with one source of drafts."""

    source: str
    rate: float | None
    """Accepted / verified drafts up to the first rejected one, lately."""
    low: float | None
    high: float | None
    """95 % interval (Wilson 1927), from as many tokens as still count."""
    num_verified: float
    by_position: tuple[float, ...]
    """Accepted at each position / verified there."""
    borrowed_from: tuple[str, ...]
    """Routes that it leans on, while its own history is short."""


class _ByPosition:
    """Verified and accepted tokens at each position of a draft, old ones fading."""

    def __init__(self) -> None:
        self._judged = [0.0] * (MAX_POSITIONS + 1)
        self._accepted = [0.0] * (MAX_POSITIONS + 1)
        """Drafts of which so many tokens were verified, and accepted: 0, 1, ...; the last is "or more"."""
        self._num = 0

    def add(self, num_judged: int, num_accepted: int) -> None:
        """Count a draft."""
        self._judged[min(num_judged, MAX_POSITIONS)] += 1.0
        self._accepted[min(num_accepted, MAX_POSITIONS)] += 1.0
        self._num += 1
        if self._num >= POSITION_DRAFTS:
            self._num = 0
            self._judged = [0.5 * count for count in self._judged]
            self._accepted = [0.5 * count for count in self._accepted]

    @property
    def rates(self) -> tuple[float, ...]:
        """Accepted at each position / verified there."""
        judged = [sum(self._judged[position:]) for position in range(1, MAX_POSITIONS + 1)]
        accepted = [sum(self._accepted[position:]) for position in range(1, MAX_POSITIONS + 1)]
        return tuple(a / n for a, n in zip(accepted, judged, strict=True) if n > 0.5)


class SourceAcceptance:
    """One route with one source of drafts."""

    def __init__(self, source: str, pool: Counts, borrowed: Borrowed) -> None:
        self.source = source
        self.calibration = Calibration(pool)
        self.replay = Replay(self.calibration, borrowed, has_passes=source != "suffix")
        self._by_position = _ByPosition()
        self._fast = 0.0
        self._fast_n = 0.0
        self._is_adrift = False

    def observe(self, *parts: SequenceStep) -> None:
        """Learn from sequences' parts in a step: what was drawn, and what was verified of it."""
        places: list[int] = []
        outcomes: list[bool] = []
        drafts: list[Draft] = []
        for part in parts:
            num_drafted, confidences = part.num_drafted, part.confidences
            if not num_drafted and not confidences:
                drafts.append(FOUND_NOTHING)
                continue
            bins = bins_of(confidences) if confidences else [UNKNOWN] * num_drafted
            drafts.append(Draft(bins, len(bins) >= part.draft_length))
            if num_drafted:
                num_accepted = part.num_accepted
                num_judged = min(num_drafted, num_accepted + _was_rejected(part))
                places += places_of(bins[:num_judged])
                outcomes += [True] * num_accepted + [False] * (num_judged - num_accepted)
                self._by_position.add(num_judged, num_accepted)
        if self.replay.has_passes:
            # A look-up that found nothing counts; a draft model that is still reading the prompt does not.
            drafts = [draft for draft in drafts if draft.bins]
        if drafts:
            self.replay.add(*drafts)
        if outcomes:
            self.calibration.observe_places(places, outcomes)
            self._note_fast(outcomes)

    def _note_fast(self, outcomes: Sequence[bool]) -> None:
        kept = (1 - 1 / FAST_TOKENS) ** len(outcomes)
        self._fast = self._fast * kept + sum(outcomes)
        self._fast_n = self._fast_n * kept + len(outcomes)

    def observe_scored(self, scored: Sequence[tuple[float, bool]]) -> None:
        """Learn from text that stands: (confidence, whether right) at one position after the other.

        Each position tells what a first draft there would have come to, and each run of them what a draft
        from there on would have looked like."""
        bins = bins_of([confidence for confidence, _ in scored])
        outcomes = [is_right for _, is_right in scored]
        self.calibration.observe([0] * len(bins), bins, outcomes)
        for start in range(0, max(1, len(bins) - 3), SCORED_STRIDE):
            if bins[start:]:
                self.replay.add(Draft(bins[start : start + MAX_POSITIONS], was_cut=True))
        self._note_fast(outcomes)

    def saved(self) -> SavedSource:
        """Return what another process may begin with."""
        known = self.calibration
        return SavedSource(
            counts=_saved_counts(known.counts),
            theta=known.theta,
            theta_variance=known.theta_variance,
            drafts=[SavedDraft(bins=one.bins, was_cut=one.was_cut) for one in self.replay.latest()],
        )

    def restore(self, saved: SavedSource) -> None:
        """Begin with what an earlier process knew; surprises and recent rates begin anew."""
        counts = saved.counts
        self.calibration.restore(counts.verified, counts.accepted, saved.theta, saved.theta_variance)
        self.replay.restore([Draft(draft.bins, draft.was_cut) for draft in saved.drafts])

    @property
    def rate(self) -> float | None:
        """Accepted / verified over the last tokens, none before the first."""
        return self._fast / self._fast_n if self._fast_n > 0.5 else None

    @property
    def first_chance(self) -> float:
        """Chance that a first draft is accepted, over the latest drafts, those not verified included."""
        return float(self.replay.chances(1)[0] @ self.replay.weights())

    def drift(self) -> tuple[float, float] | None:
        """Return (slow, fast) rates when acceptance has just left its band; once for each time it does."""
        slow, fast = self.calibration.counts.rate, self.rate
        if slow is None or fast is None or self.calibration.counts.total < 4 * FAST_TOKENS:
            return None
        sd = math.sqrt(max(slow * (1 - slow), 0.01) / FAST_TOKENS)
        limit = max(DRIFT_LEAST, DRIFT_SDS * sd)
        is_outside = abs(fast - slow) > limit
        has_left = is_outside and not self._is_adrift
        if is_outside or abs(fast - slow) < limit / 2:
            self._is_adrift = is_outside
        return (slow, fast) if has_left else None

    def figure(self, neighbours: Sequence[str]) -> AcceptanceFigure:
        """Return what is known, and on whom it leans."""
        total = self.calibration.counts.total
        low = high = None
        rate = self.calibration.counts.rate
        if rate is not None:
            low, high = _wilson(rate, total)
        return AcceptanceFigure(
            self.source,
            self.rate,
            low,
            high,
            total,
            self._by_position.rates,
            tuple(neighbours) if total < LEAST_OWN else (),
        )


class Acceptance:
    """All routes and all sources. What one route learns helps those that know little."""

    def __init__(self) -> None:
        self._pools: dict[str, tuple[Counts, Borrowed]] = {}
        self._found: dict[tuple[str, str], SourceAcceptance] = {}

    def of(self, route: str, source: str) -> SourceAcceptance:
        """Return what is known of a route with a source, made if it is new."""
        found = self._found.get((route, source))
        if found is None:
            pool = self._pools.setdefault(source, (Counts(), Borrowed()))
            found = self._found[route, source] = SourceAcceptance(source, *pool)
        return found

    def saved_pools(self) -> dict[str, SavedPool]:
        """Return what all routes know together, by source."""
        return {
            source: SavedPool(
                counts=_saved_counts(counts),
                drafts=[SavedDraft(bins=bins[:MAX_LENGTH], was_cut=cut) for bins, cut in borrowed.drafts],
            )
            for source, (counts, borrowed) in self._pools.items()
        }

    def restore_pools(self, pools: Mapping[str, SavedPool]) -> None:
        """Begin with what all routes of an earlier process knew together, of sources that are new."""
        for source, saved in pools.items():
            if source in self._pools:
                continue
            counts, borrowed = self._pools[source] = Counts(), Borrowed()
            counts.restore(saved.counts.verified, saved.counts.accepted)
            borrowed.drafts.extend(Draft(draft.bins, draft.was_cut) for draft in saved.drafts)

    @property
    def num_breaks(self) -> int:
        """Times that acceptance changed at a stroke, of all routes and sources together."""
        return sum([found.calibration.num_breaks for found in self._found.values()])

    def known(self, route: str) -> list[SourceAcceptance]:
        """Return the sources that a route has had anything to do with."""
        return [found for (name, _), found in self._found.items() if name == route]

    def figures(self, route: str) -> tuple[AcceptanceFigure, ...]:
        """Return the figures of a route, one for each source."""
        return tuple(found.figure(self._neighbours(route, found.source)) for found in self.known(route))

    def _neighbours(self, route: str, source: str) -> list[str]:
        return [
            name
            for (name, other), found in self._found.items()
            if other == source and name != route and found.calibration.counts.total >= LEAST_OWN
        ]


def _saved_counts(counts: Counts) -> SavedCounts:
    verified, accepted = counts.lists()
    return SavedCounts(verified=verified, accepted=accepted)


def _was_rejected(part: SequenceStep) -> bool:
    """Whether the draft behind the accepted ones was judged, and fell.

    Not where the answer ended inside the accepted drafts: those behind its end were never compared.
    """
    return part.num_accepted < part.num_drafted and part.num_new_tokens > part.num_accepted


def _wilson(rate: float, count: float) -> tuple[float, float]:
    z = 1.96
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
