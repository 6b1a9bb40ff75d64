"""Which replicas there are, by their numbers: small ones, used again, so that series do not multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from paceline.clock import monotonic

GONE_AFTER_S = 8.0
"""A replica that has not been heard of for so long is gone; it asks every two seconds, while it loads too."""


@dataclass(slots=True, eq=False)
class Member:
    """One replica, as the hub knows it."""

    key: str
    """Ray's name for it, which no other ever has."""
    number: int
    heard_at: float
    seen: int = 0
    """Version of the routes that it has put in force."""
    is_ready: bool = False
    """Whether it answers requests."""
    unanswered: set[int] = field(default_factory=set)
    """Questions that it has got and not answered."""


class Members:
    """The replicas that were heard of lately.

    Args:
        expected: how many there should be.
        clock: seconds.
    """

    def __init__(self, expected: int, clock: Callable[[], float] = monotonic) -> None:
        self._expected = expected
        self.num_lost = 0
        """Replicas that went without a word."""
        self._clock = clock
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """Give those that are not gone."""
        self._sweep()
        return iter(tuple(self._members.values()))

    def can_join(self) -> bool:
        """Whether one of the expected numbers is free."""
        taken = {member.number for member in self}
        return any(number not in taken for number in range(self._expected))

    def are_complete(self) -> bool:
        """Whether there are as many as there should be."""
        return len(tuple(self)) >= self._expected

    def join(self, key: str, number: int | None = None) -> Member:
        """Return the member of that name, new where there is none.

        Args:
            key: Ray's name for it.
            number: what it had from an earlier hub; kept unless another has it.
        """
        taken = {member.number for member in self}
        if key not in self._members:
            if number is None or number in taken:
                number = next(free for free in range(len(taken) + 1) if free not in taken)
            self._members[key] = Member(key, number, self._clock())
        member = self._members[key]
        member.heard_at = self._clock()
        return member

    def leave(self, key: str) -> None:
        """Let one go that says so."""
        self._members.pop(key, None)

    def _sweep(self) -> None:
        now = self._clock()
        for key, member in list(self._members.items()):
            if now - member.heard_at > GONE_AFTER_S:
                del self._members[key]
                self.num_lost += 1
