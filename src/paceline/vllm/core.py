"""The engine core's end of the bridge: routes in, counts and states out, and faults that stop nobody.

Its scheduler calls it in each step; a thread of its own follows the routes while there are none, and writes
files, so that a step waits for no disk."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.clock import Clock, monotonic
from paceline.policy.decision_log import DecisionLog
from paceline.policy.states import Decision
from paceline.records import FinishReason
from paceline.vllm.bridge import Bridge, BridgeOptions
from paceline.vllm.driver import RouteDriver, StepDrafts
from paceline.vllm.engine_file import EngineFile, EngineWriter
from paceline.vllm.facts import EngineFacts
from paceline.vllm.knowledge import load_knowledge, save_knowledge
from paceline.vllm.recording import Step
from paceline.vllm.routes_file import RoutesWatcher, read_routes
from paceline.vllm.steps import Candidate, Load, Outcome, ScheduledPart

log = logging.getLogger(__name__)

TICK_S = 0.05
SAVE_S = 30.0


class RouteCore:
    """Routes, policy and bridge of one engine core.

    Args:
        options: where the bridge is.
        facts: the engine core.

    Raises:
        ConfigError: there is no file of routes, or it cannot be used.

    Each method is safe in any thread, and none raises on behalf of routes or policy: a fault is logged, told
    in the engine core's file, and costs the step its drafts.
    """

    def __init__(self, options: BridgeOptions, facts: EngineFacts, clock: Clock = monotonic) -> None:
        self.bridge = Bridge(options.folder)
        self._clock = clock
        self._started_at = time.time()
        self._lock = threading.RLock()
        self._watcher = RoutesWatcher(self.bridge.routes_path)
        routes = self._watcher.poll() or read_routes(self.bridge.routes_path)
        decisions = DecisionLog(self.bridge.decisions_path(facts.rank))
        decisions.add_listener(self._hurry)
        known = load_knowledge(self.bridge.policy_path(facts.rank), facts.parts)
        costs = None if known is None else known.costs
        self.driver = RouteDriver(routes, facts, costs=costs, log=decisions, clock=clock)
        if known is not None:
            restored = self.driver.policy.restore(known.history)
            log.info("restored what was learned of routes %s", ", ".join(restored) or "(none)")
        self._writer = EngineWriter(self.bridge.engine_path(facts.rank), self._values)
        self._saved_at = clock()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._writer.write(clock())
        self._thread = threading.Thread(target=self._run, name="paceline-bridge", daemon=True)
        self._thread.start()

    def follow_routes(self) -> None:
        """Put the routes in force that the serving process wrote last, if it wrote any."""
        with self._lock:
            error = self._watcher.error
            routes = self._watcher.poll()
            if self._watcher.error is not None and self._watcher.error != error:
                log.error("new routes are not in force: %s", self._watcher.error)
                self._wake.set()
            if routes is None:
                return
            try:
                self.driver.put_in_force(routes)
            except Exception as failure:
                self._note(failure, "routes could not be put in force")
            self._wake.set()

    def add(self, request_id: str, extra_args: Mapping[str, Any] | None, num_prompt_tokens: int) -> None:
        """Take note of a request that came."""
        with self._lock:
            try:
                self.driver.add(request_id, extra_args, num_prompt_tokens)
            except Exception as failure:
                self._note(failure, f"request {request_id} has no route")

    def begin(
        self,
        parts: Sequence[ScheduledPart],
        candidates: Sequence[Candidate],
        load: Load,
        began_at: float,
        most: int,
    ) -> tuple[Step | None, StepDrafts]:
        """Plan a step's drafts; see `RouteDriver.begin`."""
        with self._lock:
            try:
                return self.driver.begin(parts, candidates, load, began_at, most)
            except Exception as failure:
                self._note(failure, "a step is planned without drafts")
                return None, StepDrafts(self.driver.depth(0))

    def draft_length(self, request_id: str) -> int:
        """Return how many drafts a request may have in its next step."""
        with self._lock:
            return self.driver.draft_length(request_id)

    def end(self, step: Step, outcomes: Mapping[str, Outcome], told_at: float) -> None:
        """Count a step; see `RouteDriver.end`."""
        with self._lock:
            try:
                self.driver.end(step, outcomes, told_at)
            except Exception as failure:
                self._note(failure, "a step was not counted")

    def preempted(self, request_id: str) -> None:
        """Take note of a request that gave its blocks away."""
        with self._lock:
            self.driver.preempted(request_id)

    def finished(self, request_id: str, reason: FinishReason, *, is_in_step: bool) -> None:
        """Take note of a request that ended."""
        with self._lock:
            try:
                self.driver.finished(request_id, reason, is_in_step=is_in_step)
            except Exception as failure:
                self._note(failure, f"the end of request {request_id} was not counted")

    def _values(self) -> dict[str, Any]:
        with self._lock:
            return self.look().to_json()

    def look(self) -> EngineFile:
        """Return what there is to say; its counts are the living ones."""
        with self._lock:
            driver = self.driver
            facts, load = driver.facts, driver.load
            loads = driver.loads()
            faults = [*driver.faults, *([self._writer.fault] if self._writer.fault else [])]
            return EngineFile(
                rank=facts.rank, pid=os.getpid(), started_at=self._started_at, written_at=time.time(),
                vllm_version=facts.vllm_version, method=facts.method, drafter=facts.drafter,
                max_draft_length=facts.max_draft_length, is_async=facts.is_async,
                skips_drafting=facts.can_skip, routes_version=driver.routes_version,
                routes_error=self._watcher.error,
                num_running=sum(one.num_running for one in loads.values()),
                num_waiting=sum(one.num_waiting for one in loads.values()),
                num_preemptions=driver.preemptions.total(), num_kv_blocks=load.num_blocks,
                num_kv_blocks_used=load.num_blocks_used, counts=driver.counts, loads=loads,
                reports=driver.policy.reports(), unknown_routes=dict(driver.unknown_routes),
                costs=driver.policy.knowledge(), errors=tuple(faults),
            )  # fmt: skip

    def close(self) -> None:
        """Write what there is to say and what was learned, and stop."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=5)
        self._writer.write(self._clock(), is_urgent=True)
        self._save()

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_urgent = self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self.follow_routes()
                now = self._clock()
                self._writer.write(now, is_urgent=is_urgent, is_idle=not self.driver.requests)
                if now - self._saved_at >= SAVE_S:
                    self._save()
            except Exception:
                log.exception("the bridge's thread failed, and goes on")

    def _save(self) -> None:
        self._saved_at = self._clock()
        facts = self.driver.facts
        try:
            with self._lock:
                save_knowledge(self.bridge.policy_path(facts.rank), self.driver.policy, facts.parts)
        except (OSError, ValueError) as error:
            log.warning("what the policy learned could not be saved: %s", error)

    def _hurry(self, decision: Decision) -> None:
        self._wake.set()

    def _note(self, failure: Exception, what: str) -> None:
        log.exception("%s; vLLM goes on", what)
        self.driver.note_fault(failure)
        self._wake.set()
