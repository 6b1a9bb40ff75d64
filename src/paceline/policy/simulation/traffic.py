"""What comes in, and how drafts of it fare: processes that do not depend on the policy under study.

Whether the draft for output position i of a sequence would be accepted is drawn once, from the sequence's
seed, as under coupled verification. Two policies that face the same traffic therefore face the same luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from paceline.records import SpeculationParams

UNCAPPED = 1 << 20
AUTO = SpeculationParams(enabled="auto")


@dataclass(frozen=True, slots=True)
class AcceptanceProcess:
    """Chances of a drafter's tokens, and what the drafter says of them.

    Each token's chance is drawn from a Beta distribution; the drafter's confidence is that chance, or
    something between it and the mean, plus a constant shift in log-odds where it thinks too much or too
    little of itself."""

    mean: float
    spread: float = 0.25
    """0: every token has the mean chance; 1: each is sure to be right or sure to be wrong."""
    insight: float = 1.0
    """1: confidence tells each token's chance; 0: it is the mean, whatever the token."""
    shift: float = 0.0
    """Log-odds that the drafter's confidence has too much."""
    coverage: float = 1.0
    """Share of positions at which there is a proposal at all: a look-up finds a match in some places only."""

    def draw(self, rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return confidences, whether each token is right, and whether there is a proposal, all [length]."""
        if self.spread <= 0 or self.mean in (0.0, 1.0):
            chances = np.full(length, self.mean)
        else:
            concentration = (1 - self.spread) / self.spread
            chances = rng.beta(self.mean * concentration, (1 - self.mean) * concentration, length)
        is_right = rng.random(length) < chances
        said = np.clip(self.insight * chances + (1 - self.insight) * self.mean, 1e-4, 1 - 1e-4)
        said = 1 / (1 + np.exp(-(np.log(said / (1 - said)) + self.shift)))
        has_proposal = rng.random(length) < self.coverage
        return said, is_right, has_proposal


Acceptances = Callable[[float, int], AcceptanceProcess]
"""From the simulated time and the number of the step to what holds then."""


@dataclass(frozen=True, slots=True)
class SimulatedRoute:
    """One kind of traffic."""

    name: str
    acceptance: AcceptanceProcess | Acceptances
    """Of the draft model."""
    suffix: AcceptanceProcess | None = None
    """Of suffix matches; none has no such drafter."""
    has_model: bool = True
    can_score: bool = True
    """Whether its draft model can be asked about text that stands already."""
    concurrency: int | Callable[[float], int] = 0
    """Closed loop: so many clients at a time, each with one request."""
    arrivals_per_s: float = 0.0
    """Open loop: a Poisson process."""
    prompt_tokens: int = 128
    output_tokens: int = 128
    is_geometric: bool = False
    """Whether lengths of answers are geometric with that mean, or all the same."""
    max_tokens: int | None = None
    """The cap that requests carry, which the policy sees; none lets only the answer's end tell its length."""
    speculation: SpeculationParams = field(default_factory=lambda: AUTO)

    def acceptance_at(self, now: float, step: int) -> AcceptanceProcess:
        """Return what holds at a time."""
        if isinstance(self.acceptance, AcceptanceProcess):
            return self.acceptance
        return self.acceptance(now, step)

    def clients_at(self, now: float) -> int:
        """Return the number of closed-loop clients at a time."""
        return self.concurrency(now) if callable(self.concurrency) else self.concurrency


class SimulatedSequence:
    """One request while it is simulated."""

    def __init__(self, number: int, route: SimulatedRoute, seed: int, submitted_at: float) -> None:
        self.number = number
        self.route = route
        self.submitted_at = submitted_at
        rng = np.random.default_rng((seed, number))
        length = int(rng.geometric(1 / route.output_tokens)) if route.is_geometric else route.output_tokens
        self.length = min(length, route.max_tokens or length)
        self._seed = (seed, number)
        self._drawn: dict[tuple[str, AcceptanceProcess], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.num_prompt_left = route.prompt_tokens
        self.num_output = 0
        self.num_draft_computed = 0
        self.first_token_at: float | None = None
        self.num_drafted = 0
        self.num_accepted = 0

    @property
    def num_context(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.route.prompt_tokens + self.num_output

    @property
    def is_decoding(self) -> bool:
        """Whether its first token is out."""
        return self.num_prompt_left == 0 and self.num_output > 0

    @property
    def most_drafts(self) -> int:
        """Drafts beyond this could not be used."""
        cap = self.route.max_tokens or UNCAPPED
        return max(0, cap - self.num_output - 1)

    def drafts(self, source: str, process: AcceptanceProcess, most: int) -> tuple[list[float], list[bool]]:
        """Return confidences and rightness of the drafts that a source would make now, in order."""
        said, is_right, has_proposal = self._luck(source, process)
        start = self.num_output
        if not has_proposal[start]:
            return [], []
        end = min(start + most, len(said))
        return said[start:end].tolist(), is_right[start:end].tolist()

    def outcomes(
        self, source: str, process: AcceptanceProcess, first: int, last: int
    ) -> tuple[tuple[float, bool], ...]:
        """Return (confidence, whether right) for output positions first .. last - 1 that stand already."""
        said, is_right, _ = self._luck(source, process)
        return tuple(zip(said[first:last].tolist(), is_right[first:last].tolist(), strict=True))

    def _luck(self, source: str, process: AcceptanceProcess) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        key = (source, process)
        if key not in self._drawn:
            size = self.length + 65
            self._drawn[key] = process.draw(np.random.default_rng((*self._seed, len(source))), size)
        return self._drawn[key]

    def restart(self) -> None:
        """Lose all KV: what there is has to be computed again."""
        self.num_prompt_left = self.num_context
        self.num_draft_computed = 0
