"""All there is to know of a route, for people, servers and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline.policy.acceptance import Acceptance, AcceptanceFigure
from paceline.policy.counterfactual import SpeedupFigure
from paceline.policy.states import PauseReason, RouteState
from paceline.policy.tracks import RouteTrack


@dataclass(frozen=True, slots=True)
class RouteReport:
    """One route, now."""

    name: str
    speculation: str
    """What its owner wants."""
    state: RouteState
    reason: PauseReason | None
    sentence: str
    steps_in_state: int
    acceptance: tuple[AcceptanceFigure, ...]
    """One for each source of drafts."""
    draft_lengths: tuple[float, ...]
    """Share of its sequences' steps in which so many drafts were verified: 0, 1, ...; the last is "or
    more"."""
    expected_speedup: float
    """Of the step that it took part in last, from costs and acceptance."""
    speedup: SpeedupFigure
    output_length: float | None
    probes_lost_s: float

    @property
    def note(self) -> str:
        """What is to be said beside the speedup."""
        borrowed = sorted({name for figure in self.acceptance for name in figure.borrowed_from})
        words = [] if self.speedup.is_checked else ["estimate not yet checked"]
        if borrowed:
            words.append(f"acceptance borrowed from {', '.join(borrowed)}")
        return "; ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **asdict(self),
            "state": self.state.value,
            "reason": None if self.reason is None else self.reason.value,
            "speedup": {**asdict(self.speedup), "is_checked": self.speedup.is_checked},
            "note": self.note,
        }


def report(track: RouteTrack, acceptance: Acceptance, step: int) -> RouteReport:
    """Return the report of a route."""
    total = sum(track.draft_lengths) or 1.0
    return RouteReport(
        name=track.name,
        speculation=track.settings.speculation.value,
        state=track.state,
        reason=track.reason,
        sentence=track.sentence,
        steps_in_state=step - max(0, track.changed_at_step),
        acceptance=acceptance.figures(track.name),
        draft_lengths=tuple(count / total for count in track.draft_lengths),
        expected_speedup=track.speedup,
        speedup=track.comparison.figure(),
        output_length=track.lengths.mean,
        probes_lost_s=track.ledger.lost_s,
    )
