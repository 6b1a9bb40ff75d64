"""Where the draft model may run: beside the target, or across a link, with each step's messages priced."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError

ID_BYTES = 4
"""Of a token id."""
PROBABILITY_BYTES = 4
"""Of one probability of the drafter's distribution, which rejection verification needs."""


@dataclass(frozen=True, slots=True)
class Link:
    """A way for bytes."""

    name: str
    gb_s: float
    """One way, 10^9 bytes per second."""
    latency_s: float
    """Of one message, both ends' software included; an assumption for the named links."""
    source: str = "as given"


LINKS = {
    one.name: one
    for one in (
        Link("nvlink4", 450, 5e-6, "NVIDIA H100 data sheet: 900 GB/s both ways together"),
        Link("pcie4", 32, 10e-6, "16 lanes, one way"),
        Link("pcie5", 64, 10e-6, "16 lanes, one way"),
        Link("ethernet-100g", 12.5, 30e-6, "100 Gbit/s"),
        Link("ethernet-10g", 1.25, 50e-6, "10 Gbit/s"),
    )
}


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one step sends."""

    to_target_bytes: int
    to_draft_bytes: int
    seconds: float


def step_transfer(
    link: Link, sequences: int, draft_length: int, vocab_size: int, *, sends_probabilities: bool
) -> Transfer:
    """Return what one step of a batch sends over a link, and how long that takes: two messages, in turn.

    To the target go k token ids of each sequence, and where drafts are judged by rejection sampling the
    drafter's distribution at each of them as well; coupled verification needs ids alone. Back go the tokens
    that the target emitted, at most k + 1 of each sequence, and their number.

    Raises:
        ConfigError: a figure is not positive.
    """
    if min(sequences, draft_length, vocab_size) < 1 or not link.gb_s > 0 or not link.latency_s >= 0:
        raise ConfigError(
            given=f"{sequences} sequences, k = {draft_length}, {vocab_size} tokens, {link.gb_s:g} GB/s, "
            f"{1e6 * link.latency_s:g} us",
            expected="positive figures",
            remedy="Correct them",
        )
    each = ID_BYTES + (PROBABILITY_BYTES * vocab_size if sends_probabilities else 0)
    to_target = sequences * draft_length * each
    to_draft = sequences * (draft_length + 2) * ID_BYTES
    seconds = 2 * link.latency_s + (to_target + to_draft) / (link.gb_s * 1e9)
    return Transfer(to_target, to_draft, seconds)
