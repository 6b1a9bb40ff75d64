"""The rule of one step: when a draft ends, whose match is taken, and which drafts get a row of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.policy.counts import bin_of, bins_of, place_of
from paceline.policy.draft_lengths import worthwhile_prefix
from paceline.policy.profile import Prices
from paceline.policy.replay import Replay


class Member(NamedTuple):
    """What the rule knows of one sequence that may draft in the step."""

    weight: float
    most: int
    """Drafts that it may have."""
    model: Replay | None
    """Its route's history with the draft model; none where that may not be asked."""
    suffix: Replay | None
    model_value: float
    """What asking the draft model is worth beyond its cost, expected."""
    is_fixed: bool = False
    """Whether somebody asked for a fixed draft length: nothing is cut then."""


class StepRule:
    """Compares what a token is worth with what it costs, at the prices that the step was planned with.

    Args:
        members: by sequence number.
        prices: of a row, and of one sequence's part in a draft pass.
        price: weighted tokens that a second is worth.
        verify: seconds [n] of the step with 0 .. n - 1 draft rows.
        draft: seconds [n] of a draft pass over 0 .. n - 1 rows.
        drafts: the same by draft model, where there are several.
    """

    def __init__(
        self,
        members: dict[int, Member],
        prices: Prices,
        price: float,
        verify: Sequence[float],
        draft: Sequence[float],
        drafts: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._members = members
        self._drafts = drafts or {}
        self._prices = prices
        self._price = price
        self._verify = verify
        self._draft = draft
        self._survival: dict[int, float] = {}
        self._depth: dict[int, int] = {}
        self.passed_over: dict[int, list[int]] = {}
        """Bins of matches that were not taken, by sequence number."""

    def going_on(self, drawn: Sequence[tuple[int, float]], source: str = "model") -> list[bool]:
        """Say for each sequence that drew a token whether its next one is worth its cost; see `DraftRule`."""
        worth: list[tuple[float, int]] = []
        answers = [False] * len(drawn)
        for place, (number, confidence) in enumerate(drawn):
            member = self._members.get(number)
            if member is None or member.is_fixed or member.model is None:
                answers[place] = True
                continue
            depth = self._depth.get(number, 0)
            found = bin_of(confidence)
            survival = self._survival.get(number, 1.0) * member.model.calibration.chance_at(
                place_of(depth, found)
            )
            self._survival[number], self._depth[number] = survival, depth + 1
            if depth + 1 >= member.most:
                continue
            value = member.weight * survival * member.model.next_chances()[found] - self._prices.row
            if value > 0:
                worth.append((-value, place))
        # A pass costs little more for two sequences than for one: they go on together where that pays.
        worth.sort()
        has_fixed = any(answers)
        draft = self._drafts.get(source, self._draft)
        total = best = 0.0
        num_going = 0
        for count, (negative, _) in enumerate(worth, 1):
            total -= negative
            seconds = draft[min(count, len(draft) - 1)] - (draft[1] if has_fixed else 0.0)
            if total - self._price * seconds > best:
                best, num_going = total - self._price * seconds, count
        for _, place in worth[:num_going]:
            answers[place] = True
        return answers

    def prefers_match(self, number: int, confidences: Sequence[float]) -> bool:
        """Say whether a match is worth more than asking the draft model; see `DraftRule`."""
        member = self._members.get(number)
        if member is None or member.suffix is None or not confidences:
            return False
        confidences = confidences[: member.most]
        survival, value = 1.0, 0.0
        for chance in member.suffix.calibration.chances_of(confidences):
            survival *= chance
            net = member.weight * survival - self._prices.row
            if net <= 0:
                break
            value += net
        is_preferred = value > max(0.0, member.model_value)
        if not is_preferred:
            self.passed_over[number] = bins_of(confidences)
        return is_preferred

    def lengths(self, proposals: Sequence[tuple[int, str, Sequence[float], bool]]) -> list[int]:
        """Return how many drafts of each proposal are worth a row; see `DraftRule`."""
        kept = [0] * len(proposals)
        num_fixed = 0
        ranked: list[tuple[float, int, int]] = []
        for place, (number, source, confidences, may_be_cut) in enumerate(proposals):
            if not confidences:
                continue
            member = self._members.get(number)
            replay = None if member is None else member.suffix if source == "suffix" else member.model
            if member is None or member.is_fixed or replay is None or not may_be_cut:
                kept[place] = len(confidences)
                num_fixed += kept[place]
                continue
            survival = -member.weight
            for depth, chance in enumerate(replay.calibration.chances_of(confidences[: member.most])):
                survival *= chance
                ranked.append((survival, depth, place))
        ranked.sort()
        if ranked:
            worth = [-survival for survival, _, _ in ranked]
            num = worthwhile_prefix(worth, self._verify[num_fixed:], self._price)
            for _, _, place in ranked[:num]:
                kept[place] += 1
        return kept
