"""What the policy remembers of one route, and of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.policy.calibration import AcceptanceLevel
from paceline.policy.counterfactual import RouteComparison
from paceline.policy.ledger import Ledger
from paceline.policy.output_lengths import OutputLengths
from paceline.policy.profile import Prices, Profile
from paceline.policy.routes import RouteSettings
from paceline.policy.states import PauseReason, RouteState, Situation

LAST_LENGTH = 16
"""Draft lengths are counted one by one below it; this one stands for all further ones."""


class CutProfile(NamedTuple):
    """A profile up to a length, with its sums."""

    profile: Profile
    gain: float
    rows: float
    active: float
    slots: np.ndarray
    """As the search takes them."""


@dataclass(slots=True)
class CachedProfile:
    """A profile with what it was computed from."""

    profile: Profile
    prices: Prices
    step: int
    acceptance: tuple[AcceptanceLevel, ...]
    """Of its sources."""
    cuts: dict[int, CutProfile] = field(default_factory=dict)
    """By the most drafts that a sequence may have."""


@dataclass(slots=True)
class RouteTrack:
    """One route while it is served. Only the policy changes it."""

    name: str
    settings: RouteSettings
    state: RouteState = RouteState.SPECULATING
    reason: PauseReason | None = None
    sentence: str = "speculating: nothing speaks against it yet"
    changed_at_step: int = -10_000
    wish: float = 1.0
    """Share of the last steps in which drafting was worth it, smoothed."""
    would_draft: bool = True
    """Whether it was when that was looked at last."""
    is_short: bool = False
    """Whether only the length of its answers spoke against it then."""
    asked_at_step: int = -10_000
    """When that was."""
    shortness: float = 0.0
    """Share in which only the length of its answers spoke against it, smoothed."""
    source: str | None = None
    """Where its drafts mostly come from: "suffix", or a draft model; none before any was considered."""
    situation: Situation | None = None
    """When the present state was entered."""
    lengths: OutputLengths = field(default_factory=OutputLengths)
    comparison: RouteComparison = field(default_factory=RouteComparison)
    ledger: Ledger = field(default_factory=lambda: Ledger(0.01))
    watcher: int | None = None
    """Sequence that is probed while the route is paused."""
    probed_at_step: int = -10_000
    probe_every: int = 6
    """Steps between drafts that are probes."""
    num_probes: int = 0
    profiles: dict[tuple[str, float, int], CachedProfile] = field(default_factory=dict)
    draft_lengths: list[float] = field(default_factory=lambda: [0.0] * (LAST_LENGTH + 1))
    """How often each draft length was verified, old steps fading."""
    speedup: float = 1.0
    """Expected of the last step that it took part in."""
    is_checked: bool = False
    """Whether control windows bear the estimated speedup out."""

    @property
    def is_paused(self) -> bool:
        """Whether the policy paused it."""
        return self.state is RouteState.PAUSED

    def fade(self) -> None:
        """Let old draft lengths count less."""
        self.draft_lengths = [count * 0.5 for count in self.draft_lengths]
