"""The policy for an engine that plans a step before it heard of the last one's outcome."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.policy.controller import SpeculationPolicy
from paceline.policy.tracks import RouteTrack
from paceline.step_records import StepRecord

Probes = Mapping[int, RouteTrack]


class PipelinedPolicy(SpeculationPolicy):
    """As it is, but that a record says which plan its drafts were of.

    vLLM makes drafts in one step and verifies them in the next, so one plan or two have followed by the time
    their record comes. Of all that the policy keeps of a plan only its probes must be found again: who pays
    for them."""

    @property
    def probes(self) -> Probes:
        """The sequences that the latest plan lets draft for a probe, with the routes that pay for it."""
        return dict(self._prober.probed)

    def is_paused(self, label: str | None) -> bool:
        """Whether the route of a request is paused by the policy."""
        return self._track_of(label).is_paused

    def on_step_of(self, record: StepRecord, probes: Probes) -> None:
        """Learn from a step.

        Args:
            record: the step.
            probes: of the plan by which its drafts were made.
        """
        latest = self._prober.probed
        self._prober.probed = dict(probes)
        try:
            self.on_step(record)
        finally:
            self._prober.probed = latest
