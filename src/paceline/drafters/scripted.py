"""A drafter that does as it is told, for those who test engines, policies and drafts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from paceline.drafters.interface import DraftProposal, DraftRequest

Script = Callable[[DraftRequest], "DraftProposal | Sequence[int]"]


class ScriptedDrafter:
    """Calls a function for each request and records what it was given.

    Args:
        script: returns the tokens to propose, or a whole proposal; nothing it returns is checked here,
            so that a test can misbehave.
        name: the name it reports.
    """

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[DraftRequest] = []
        self.released: list[int] = []
        self.learned: list[tuple[Hashable, tuple[int, ...]]] = []
        self._script = script

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return what the script says, one proposal for each request."""
        # Copied, since the engine's own list grows under the record.
        self.requests.extend(replace(r, token_ids=tuple(r.token_ids)) for r in requests)
        answers = [self._script(request) for request in requests]
        return [a if isinstance(a, DraftProposal) else DraftProposal(tuple(a)) for a in answers]

    def learn(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Record the answer."""
        self.learned.append((scope, tuple(token_ids)))

    def forget_answers(self) -> None:
        """Drop the record of answers."""
        self.learned.clear()

    def release(self, sequence_id: int) -> None:
        """Record that the sequence ended."""
        self.released.append(sequence_id)
