"""Routes and policy beside a scheduler that is not ours: what it asks at each step, and what it tells.

It knows nothing of vLLM, so that it can be tested without it. Not thread-safe."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from paceline.clock import Clock, monotonic
from paceline.config.drafter_names import MODEL
from paceline.errors import PacelineError
from paceline.metrics.counts import Counts
from paceline.policy.decision_log import DecisionLog
from paceline.policy.interface import PLAIN, SequenceView, StepView
from paceline.policy.routes import RouteTable, Speculation
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import FinishReason
from paceline.vllm.engine_file import RouteLoad
from paceline.vllm.facts import EngineFacts
from paceline.vllm.pipelined import PipelinedPolicy, Probes
from paceline.vllm.recording import Planned, Step, StepTiming, part_of
from paceline.vllm.requests import ROUTE_DECIDES, RouteRequest, read_route, read_speculation, within
from paceline.vllm.routes_file import RoutesFile
from paceline.vllm.steps import NO_LOAD, Candidate, Load, Outcome, ScheduledPart, pass_rows
from paceline.vllm.upkeep import Upkeep

NUM_PLAIN_STEPS = 8
"""Steps without drafts by which a machine is known that nothing was measured on before."""
LEARNED_OFF = 8
"""While every route is off, the policy is told one step of so many: there is nothing to learn but what steps
cost."""
MAX_UNKNOWN = 32


class StepDrafts(NamedTuple):
    """What a step is to draft for the next one."""

    depth: int = 0
    """Most tokens that any request drafts: what the worker is told."""
    skips: bool = False
    """Whether the worker leaves the drafter out altogether."""


class RouteDriver:
    """Keeps the requests' routes, asks the policy, and counts.

    Args:
        routes: what is allowed, at first.
        facts: the engine core.
        costs: what its steps took when it last ran; none guesses, and looks before it drafts.
        log: where decisions go.
    """

    def __init__(
        self,
        routes: RoutesFile,
        facts: EngineFacts,
        *,
        costs: CalibratedCosts | None = None,
        log: DecisionLog | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.facts = facts
        self.routes_version = routes.version
        settings = {name: entry.settings for name, entry in routes.routes.items()}
        self.policy = PipelinedPolicy(
            RouteTable(settings, routes.default_route), costs, log=log, asks_rule=False
        )
        self.counts = Counts(tuple(settings))
        self.policy.log.add_listener(self.counts.on_decision)
        self.requests: dict[str, RouteRequest] = {}
        self.unknown_routes: Counter[str] = Counter()
        self.num_requests: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()
        self.load = NO_LOAD
        self.faults: deque[str] = deque(maxlen=8)
        self._clock = clock
        self._num_seen = 0
        self._timing = StepTiming(self.policy.costs, clock())
        self._probes: Probes = {}
        self._upkeep = Upkeep()
        self._ended: list[tuple[RouteRequest, FinishReason]] = []
        self._num_steps = 0
        self._is_off = self._is_nobody_allowed()

    def put_in_force(self, routes: RoutesFile) -> None:
        """Go by other routes from the next step on; requests that run included."""
        table, now = self.policy.routes, self._clock()
        before = {name: table[name] for name in table.names}
        changed = {name: one for name, one in routes.routes.items() if before.get(name) != one.settings}
        if set(before) != set(routes.routes) or table.default != routes.default_route:
            kept = {name: before.get(name, one.settings) for name, one in routes.routes.items()}
            self.policy.routes = RouteTable(kept, routes.default_route)
        for name, entry in changed.items():
            self.policy.set_route(name, entry.settings, by=entry.by, now=now)
        self.routes_version = routes.version
        self._is_off = self._is_nobody_allowed()

    def _is_nobody_allowed(self) -> bool:
        """Whether there are no drafts, whatever a request says: it can ask for less than its route allows."""
        table = self.policy.routes
        return self.facts.drafter is None or all(
            table[name].speculation is Speculation.OFF for name in table.names
        )

    def add(self, request_id: str, extra_args: Mapping[str, Any] | None, num_prompt_tokens: int) -> None:
        """Take note of a request that came. What it says wrongly is noted and has no effect on others."""
        said, table = read_route(extra_args), self.policy.routes
        if said is not None and said not in table:
            key = said if said in self.unknown_routes or len(self.unknown_routes) < MAX_UNKNOWN else "..."
            self.unknown_routes[key] += 1
        name = table.resolve(said)
        speculation = ROUTE_DECIDES
        try:
            speculation = read_speculation(extra_args, name, table[name])
        except PacelineError as error:
            self.faults.append(f"request {request_id}: {error}")
        speculation = within(speculation, self.facts.max_draft_length)
        self._num_seen += 1
        self.num_requests[name] += 1
        self.requests[request_id] = RouteRequest(
            request_id, self._num_seen, name, speculation, num_prompt_tokens, self._clock(),
            holds_drafts=self.facts.has_draft_kv,
        )  # fmt: skip

    def draft_length(self, request_id: str) -> int:
        """Return how many drafts a request may have in its next step."""
        request = self.requests.get(request_id)
        return 0 if request is None else request.planned.draft_length

    def preempted(self, request_id: str) -> None:
        """Take note of a request that gave its blocks away; what it computes anew, the drafter does too."""
        request = self.requests.get(request_id)
        if request is not None:
            self.preemptions[request.route] += 1
            request.is_running, request.planned = False, PLAIN
            request.holds_drafts = self.facts.has_draft_kv

    def begin(
        self,
        parts: Sequence[ScheduledPart],
        candidates: Sequence[Candidate],
        load: Load,
        began_at: float,
        most: int = 64,
    ) -> tuple[Step, StepDrafts]:
        """Plan the drafts that a step makes for the next one.

        Args:
            parts: what it computes.
            candidates: the requests that will decode after it.
            load: the engine core, now.
            began_at: the clock's reading when the step began to be scheduled.
            most: drafts that any request may have, as vLLM was told for a batch of this size.
        """
        found = [(part, self.requests[part.request_id]) for part in parts if part.request_id in self.requests]
        for part, request in found:
            request.is_running = True
            if request.num_cached_tokens is None:
                request.num_cached_tokens = part.num_context_tokens
        self.load = load
        # What they verify was planned a step ago, and what is planned now, they verify in the next.
        planned, probes = [Planned(*one, one[1].planned) for one in found], self._probes
        drafts = self._plan(candidates, load, self._clock(), most)
        passes: tuple[int, ...] = ()
        if self.facts.has_draft_kv:
            if drafts.skips and any(not part.is_decoding for part, _ in found):
                # A prompt has to be whole in the drafter's KV too: who drafts later may share it.
                drafts = drafts._replace(skips=False)
            if drafts.skips:
                for _, request in found:
                    request.holds_drafts = False
            num_rows = sum(part.num_tokens + part.num_drafted for part, _ in found)
            passes = pass_rows(num_rows, len(found), drafts.depth)
        is_off = self._is_off and not probes and not any(part.num_drafted for part, _ in found)
        return Step(began_at, self._clock() - began_at, planned, passes, probes, is_off), drafts

    def _plan(self, candidates: Sequence[Candidate], load: Load, now: float, most: int) -> StepDrafts:
        known = [
            (one, self.requests[one.request_id]) for one in candidates if one.request_id in self.requests
        ]
        if not known or self._is_off:
            self._probes = {}
            for _, request in known:
                request.planned = PLAIN
            return StepDrafts(self.depth(0), self._can_skip and (bool(known) or not self.facts.has_draft_kv))
        views = [self._view(one, request) for one, request in known]
        plan = self.policy.plan(
            StepView(
                now, views, load.num_prompt_rows, load.num_waiting, load.num_blocks, load.num_blocks_used,
                num_preemptions=self.preemptions.total(), is_short_of_blocks=load.is_short_of_blocks,
            )
        )  # fmt: skip
        self._probes = self.policy.probes
        for (_, request), choice in zip(known, plan.choices, strict=True):
            is_within = choice.draft_length <= most
            request.planned = choice if is_within else choice._replace(draft_length=most)
        depth = max(request.planned.draft_length for _, request in known)
        skips = not depth and self._can_skip
        if skips and self.facts.has_draft_kv:
            holders = [
                (choice, self.policy.is_paused(request.route))
                for (_, request), choice in zip(known, plan.choices, strict=True)
                if request.holds_drafts
            ]
            skips = self._upkeep.skips(holders, self.policy.costs.draft(MODEL).seconds(len(known)))
        return StepDrafts(self.depth(depth), skips)

    @property
    def _can_skip(self) -> bool:
        return self.facts.can_skip and not (self.facts.has_draft_kv and self._is_looking)

    @property
    def _is_looking(self) -> bool:
        """Whether it first looks what steps without drafts take, on a machine that nothing is known of."""
        return self.policy.costs.is_guess and self._num_steps < NUM_PLAIN_STEPS

    def depth(self, wanted: int) -> int:
        """Return how many tokens the worker drafts for whoever drafts most."""
        return wanted if self.facts.can_vary_depth else self.facts.max_draft_length

    def _view(self, one: Candidate, request: RouteRequest) -> SequenceView:
        drafter, speculation = self.facts.drafter, request.speculation
        can_draft = request.holds_drafts or not self.facts.has_draft_kv
        settings = self.policy.routes[self.policy.routes.resolve(request.route)]
        is_adaptive = settings.speculation is Speculation.AUTO and speculation.enabled is not True
        if is_adaptive and self._is_looking:
            can_draft = False
        return SequenceView(
            request.number, request.route, speculation, one.num_context_tokens, one.num_output_tokens,
            one.most_drafts,
            (drafter,) if drafter is not None and can_draft else (),
            holds_drafts=request.holds_drafts,
        )  # fmt: skip

    def end(self, step: Step, outcomes: Mapping[str, Outcome], told_at: float) -> None:
        """Count a step and let the policy learn from it; then the answers that ended in it.

        Args:
            step: as `begin` gave it.
            outcomes: of its requests, but for those that are gone and whose tokens count no more.
            told_at: the clock's reading when its output came.
        """
        now = self._clock()
        parts = [part_of(one, outcomes, now) for one in step.planned]
        record = self._timing.record(step, parts, self.load, self.preemptions.total(), told_at, now)
        self._num_steps += any(part.is_decoding for part in parts)
        self.counts.on_step(record)
        if not step.is_off or self._num_steps <= NUM_PLAIN_STEPS or record.number % LEARNED_OFF == 0:
            self.policy.on_step_of(record, step.probes)
        self._upkeep.ledger.earn(record.duration_s)
        ended, self._ended = self._ended, []
        for request, reason in ended:
            self._tell(request, reason)

    def finished(self, request_id: str, reason: FinishReason, *, is_in_step: bool) -> None:
        """Take note of a request that ended.

        Args:
            request_id: which; one that is not known is none of ours.
            reason: why.
            is_in_step: whether the step that ended it is yet to be told to `end`.
        """
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        request.is_running = False
        if is_in_step:
            self._ended.append((request, reason))
        else:
            self._tell(request, reason)

    def _tell(self, request: RouteRequest, reason: FinishReason) -> None:
        result = request.result(reason)
        self.counts.on_finish(result)
        self.policy.on_finish(result)

    def note_fault(self, error: BaseException) -> None:
        """Take note of a fault of ours; nobody drafts until a plan is made again."""
        self.faults.append(f"{type(error).__name__}: {error}"[:500])
        for request in self.requests.values():
            request.planned = PLAIN

    def loads(self) -> dict[str, RouteLoad]:
        """Return each route's requests."""
        running: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for request in self.requests.values():
            (running if request.is_running else waiting)[request.route] += 1
        names = dict.fromkeys([*self.policy.routes.names, *self.num_requests])
        return {
            name: RouteLoad(running[name], waiting[name], self.preemptions[name], self.num_requests[name])
            for name in names
        }
