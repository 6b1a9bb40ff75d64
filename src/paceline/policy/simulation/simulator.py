"""Runs a policy over simulated traffic on simulated hardware, step by step, on a simulated clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.clock import ManualClock
from paceline.policy.interface import DraftChoice, DraftPlan, DraftPolicy, SequenceView, StepView
from paceline.policy.simulation.drafting import SimulatedDrafting, cut
from paceline.policy.simulation.memory import SimulatedMemory
from paceline.policy.simulation.result import (
    SimulatedMachine,
    SimulationResult,
    answer_of,
    drafters_of,
    trace_of,
)
from paceline.policy.simulation.traffic import SimulatedRoute, SimulatedSequence
from paceline.records import FinishReason
from paceline.step_records import SequenceStep, StepRecord

MIXED_RATIO = 1.5
JOINT_START_S = 4.0


class Simulator:
    """One machine, some routes, one policy.

    Args:
        machine: true costs, which the policy does not see but in its records.
        routes: the traffic.
        policy: any; `FixedPolicy` with requests of fixed length is what the best fixed setting is found by.
        seed: of everything random.
    """

    def __init__(
        self, machine: SimulatedMachine, routes: Sequence[SimulatedRoute], policy: DraftPolicy, seed: int = 0
    ) -> None:
        self.machine = machine
        self.routes = tuple(routes)
        self.policy = policy
        self.clock = ManualClock()
        self._seed = seed
        self._rng = np.random.default_rng((seed, 99))
        self._arrivals = np.random.default_rng((seed, 98))
        self._next_arrival = {
            route.name: self._gap(route) for route in self.routes if route.arrivals_per_s > 0
        }
        self._number = 0
        self._waiting: list[SimulatedSequence] = []
        self._running: list[SimulatedSequence] = []
        self._memory = SimulatedMemory(machine.num_blocks, machine.block_size)
        self._drafting = SimulatedDrafting(machine, self._memory, self.clock, self._shake)
        self._num_steps = 0
        self.result = SimulationResult(0.0, {route.name: 0 for route in self.routes})

    def run(self, *, steps: int | None = None, seconds: float | None = None) -> SimulationResult:
        """Simulate so many steps or seconds more, whichever comes first, and return the result so far."""
        last_step = None if steps is None else self._num_steps + steps
        until = None if seconds is None else self.clock() + seconds
        while (last_step is None or self._num_steps < last_step) and (until is None or self.clock() < until):
            self._arrive()
            self._admit()
            if not self._running:
                if not self._next_arrival:
                    break
                self.clock.advance(max(1e-6, min(self._next_arrival.values()) - self.clock()))
                continue
            self._step()
        self.result.seconds = self.clock()
        self.result.num_preemptions = self._memory.num_preemptions
        return self.result

    def abort_all(self) -> None:
        """Let every request leave without an answer, as clients do that disconnect."""
        self._running.clear()
        self._waiting.clear()

    def _gap(self, route: SimulatedRoute) -> float:
        return float(self._arrivals.exponential(1 / route.arrivals_per_s))

    def _arrive(self) -> None:
        now = self.clock()
        for route in self.routes:
            open_now = sum(s.route is route for s in (*self._running, *self._waiting))
            for _ in range(max(0, route.clients_at(now) - open_now)):
                self._submit(route)
            while route.name in self._next_arrival and self._next_arrival[route.name] <= now:
                self._submit(route)
                self._next_arrival[route.name] += self._gap(route)

    def _submit(self, route: SimulatedRoute) -> None:
        self._waiting.append(SimulatedSequence(self._number, route, self._seed, self.clock()))
        self._number += 1

    def _admit(self) -> None:
        self._is_short_of_blocks = False
        while self._waiting and len(self._running) < self.machine.max_num_seqs:
            if not self._memory.admit(self._waiting[0], self._running):
                self._is_short_of_blocks = True
                return
            self._running.append(self._waiting.pop(0))

    def _step(self) -> None:
        machine, now = self.machine, self.clock()
        decoding = [s for s in self._running if s.is_decoding]
        prefilling = [s for s in self._running if not s.is_decoding]
        is_alone = not decoding or (bool(prefilling) and _start_together(decoding, prefilling[0], now))
        mixed = machine.mixed_rows or max(8, int(MIXED_RATIO * len(decoding)))
        room = machine.prefill_rows - len(decoding) if is_alone else mixed
        chunks: list[tuple[SimulatedSequence, int]] = []
        for sequence in prefilling:
            count = min(sequence.num_prompt_left, room)
            if count:
                chunks.append((sequence, count))
                room -= count
        plan = self._plan(decoding, sum(count for _, count in chunks))
        drafts, draft_s, draft_rows = self._drafting.draft(decoding, plan, self._running, self._num_steps)
        lengths = cut(decoding, drafts, plan)
        rows = len(decoding) + sum(lengths.values()) + sum(count for _, count in chunks)
        context = sum(s.num_context for s in decoding) + sum(
            s.num_context - s.num_prompt_left for s, _ in chunks
        )
        verify_s = machine.target.seconds_of(rows, len(decoding) + len(chunks), context) * self._shake()
        self.clock.advance(draft_s + verify_s + machine.overhead_s)
        parts = [
            self._commit(s, choice, drafts.get(s.number), lengths.get(s.number, 0))
            for s, choice in zip(decoding, plan.choices, strict=True)
        ]
        parts += [self._prefill(sequence, count) for sequence, count in chunks]
        self._grow()
        self._tell(now, draft_s, verify_s, parts, tuple(draft_rows))

    def _plan(self, decoding: Sequence[SimulatedSequence], num_prompt_rows: int) -> DraftPlan:
        views = [
            SequenceView(
                s.number,
                s.route.name,
                s.route.speculation,
                s.num_context,
                s.num_output,
                s.most_drafts,
                drafters_of(s.route),
                s.num_context - s.num_draft_computed,
                s.num_draft_computed > 0,
                can_score=s.route.has_model and s.route.can_score,
            )
            for s in decoding
        ]
        memory = self._memory
        plan = self.policy.plan(
            StepView(
                self.clock(),
                views,
                num_prompt_rows,
                len(self._waiting),
                memory.num_blocks,
                memory.num_used(self._running),
                memory.num_of_drafts(self._running),
                memory.num_preemptions,
                self._is_short_of_blocks,
            )
        )
        for sequence, choice in zip(decoding, plan.choices, strict=True):
            if not choice.keeps_drafts:
                sequence.num_draft_computed = 0
        return plan

    def _commit(
        self,
        sequence: SimulatedSequence,
        choice: DraftChoice,
        drafted: tuple[str, list[float], list[bool]] | None,
        length: int,
    ) -> SequenceStep:
        source, said, right = drafted or (None, [], [])
        accepted = next((i for i, ok in enumerate(right[:length]) if not ok), length)
        left = sequence.length - sequence.num_output
        new = min(accepted + 1, left)
        accepted = min(accepted, left)
        before = sequence.num_context
        sequence.num_output += new
        if length:
            # What was drafted and stands is computed; the draft model lacks the tokens behind it.
            sequence.num_draft_computed = min(sequence.num_draft_computed + min(accepted, len(said) - 1),
                                              sequence.num_context - 1)  # fmt: skip
        sequence.num_drafted += length
        sequence.num_accepted += accepted
        self.result.num_tokens[sequence.route.name] += new
        return SequenceStep(
            request_id=f"r{sequence.number}", index=0, route=sequence.route.name, drafter=choice.drafter,
            num_context_tokens=before, num_tokens=1, is_decoding=True, draft_length=choice.draft_length,
            num_drafted=length, num_accepted=accepted, num_new_tokens=new, num_sent_tokens=new,
            confidences=tuple(said), source=source, number=sequence.number,
            scored=self._drafting.take_scores(sequence.number),
            finish_reason=FinishReason.STOP if sequence.num_output >= sequence.length else None,
        )  # fmt: skip

    def _prefill(self, sequence: SimulatedSequence, count: int) -> SequenceStep:
        before = sequence.num_context - sequence.num_prompt_left
        sequence.num_prompt_left -= count
        new = int(sequence.num_prompt_left == 0)
        if new:
            sequence.num_output += 1
            sequence.first_token_at = sequence.first_token_at or self.clock()
            self.result.num_tokens[sequence.route.name] += 1
        is_over = bool(new) and sequence.num_output >= sequence.length
        return SequenceStep(
            request_id=f"r{sequence.number}", index=0, route=sequence.route.name, drafter=None,
            num_context_tokens=before, num_tokens=count, is_decoding=False, draft_length=0, num_drafted=0,
            num_accepted=0, num_new_tokens=new, num_sent_tokens=new, number=sequence.number,
            finish_reason=FinishReason.STOP if is_over else None,
        )  # fmt: skip

    def _grow(self) -> None:
        for sequence in self._memory.make_room([s for s in self._running if s.num_output < s.length]):
            self._running.remove(sequence)
            self._waiting.insert(0, sequence)

    def _tell(
        self,
        began: float,
        draft_s: float,
        verify_s: float,
        parts: list[SequenceStep],
        draft_rows: tuple[int, ...],
    ) -> None:
        ended = [s for s in self._running if s.num_output >= s.length]
        self._running = [s for s in self._running if s.num_output < s.length]
        self.policy.on_step(
            StepRecord(
                number=self._num_steps, began_at=began, plan_s=0.0, draft_s=draft_s, verify_s=verify_s,
                commit_s=self.machine.overhead_s, sequences=tuple(parts), num_running=len(self._running),
                num_waiting=len(self._waiting), num_preemptions=self._memory.num_preemptions,
                num_kv_blocks=self._memory.num_blocks,
                num_kv_blocks_used=self._memory.num_used(self._running),
                draft_rows=draft_rows,
            )
        )  # fmt: skip
        for sequence in ended:
            self.policy.on_finish(answer_of(sequence, self.clock()))
        self.result.num_finished += len(ended)
        self._num_steps += 1
        self.result.steps.append(trace_of(began, parts, self.clock() - began))

    def _shake(self) -> float:
        shaken = float(np.exp(self._rng.normal(0.0, self.machine.noise))) if self.machine.noise else 1.0
        if self.machine.outliers and self._rng.random() < self.machine.outliers:
            shaken *= 10.0
        return shaken


def _start_together(decoding: Sequence[SimulatedSequence], prompt: SimulatedSequence, now: float) -> bool:
    """Whether a prompt goes first, as it came with the streams that have just begun."""
    started_at = min(s.first_token_at for s in decoding if s.first_token_at is not None)
    return prompt.submitted_at <= started_at and now - started_at < JOINT_START_S
