"""A whole measurement, from traffic to figures: plain answers, drafters' readings of them, and timed runs of
the few settings that these and the step costs put first. All of it is kept in a journal as it is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline import __version__
from paceline.clock import Clock, monotonic
from paceline.drafters.answer_store import AnswerStore
from paceline.errors import ChatTemplateError, ConfigError, RequestError
from paceline.measure.bench import Bench
from paceline.measure.candidates import RouteText
from paceline.measure.choosing import forecast_record
from paceline.measure.facts import machine_name, model_facts
from paceline.measure.journal import Journal
from paceline.measure.load import LoadRequest
from paceline.measure.options import MeasureOptions
from paceline.measure.reading import Answer, read_with_suffix
from paceline.measure.replay import Reading, Trace
from paceline.measure.sample import stratified
from paceline.measure.setting import MIXED, MODEL, SUFFIX
from paceline.measure.timing import Timing
from paceline.measure.traffic import Traffic
from paceline.models.download import resolve

PLAIN_SHARE = 0.4
"""Of the budget: most that may go into answers without drafts, which all else rests on."""


@dataclass(frozen=True, slots=True)
class Status:
    """How far a measurement is."""

    phase: str
    detail: str
    spent_s: float
    """With all earlier starts."""
    left_s: float
    """Estimate, never more than the budget leaves."""


class Session:
    """One measurement.

    Args:
        options: what is asked for.
        traffic: what was read.
        journal: with what is known already.
        on_status: told how far it is.
        clock: for the budget; the engine has its own.
    """

    def __init__(
        self,
        options: MeasureOptions,
        traffic: Traffic,
        journal: Journal,
        on_status: Callable[[Status], None] = lambda status: None,
        clock: Clock = monotonic,
    ) -> None:
        self._options = options
        self._journal = journal
        self._on_status = on_status
        self._clock = clock
        self._began = clock()
        self._before_s = max((float(one["spent_s"]) for one in journal.of_kind("spent")), default=0.0)
        self._phase, self._left_s = "loading", options.budget_s
        self.by_route = traffic.by_route(options.routes)
        missing = [name for name, found in self.by_route.items() if not found]
        if missing:
            raise ConfigError(
                given=f"route {missing[0]!r}, which the traffic does not have",
                expected="one of " + ", ".join(dict.fromkeys(one.route for one in traffic.requests)),
                remedy="Correct --routes, or leave it out",
            )
        self._traffic = traffic
        self._rounds = stratified(self.by_route, options.prompts, options.seed)
        self._answers: dict[str, Answer] = {}
        self._limits: dict[str, int] = {}

    @property
    def spent_s(self) -> float:
        """Seconds so far, those of earlier starts included."""
        return self._before_s + self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that the budget leaves."""
        return max(0.0, self._options.budget_s - self.spent_s)

    def run(self) -> None:
        """Do all that is not done yet.

        Raises:
            PacelineError: models, traffic or settings are wrong, or the memory does not suffice.
        """
        if any(float(one["budget_s"]) >= self._options.budget_s for one in self._journal.of_kind("done")):
            return
        with Bench(self._options, lambda text: self._tell(text)) as bench:
            requests = self._prepare(bench)
            self._answer(bench, requests)
            for name in self._options.draft_names:
                self._read(bench, name)
            self._choose(bench)
            self._time(bench)
        self._journal.add("done", {"budget_s": self._options.budget_s})
        self._note_spent()

    def _tell(self, detail: str) -> None:
        self._on_status(Status(self._phase, detail, self.spent_s, min(self._left_s, self.left_s)))

    def _note_spent(self) -> None:
        self._journal.add("spent", {"spent_s": self.spent_s})

    def _prepare(self, bench: Bench) -> list[LoadRequest]:
        """Return the sample's requests, one round of all routes after another, without those that cannot
        run."""
        self._phase = "loading"
        left_out: Counter[str] = Counter(self._traffic.left_out)
        found: list[LoadRequest] = []
        for number, one in enumerate(one for sampled in self._rounds for one in sampled):
            try:
                found.append(bench.prepare(one, self._options.seed + number))
            except (RequestError, ChatTemplateError) as error:
                left_out[f"that the model cannot take ({error.given})"[:160]] += 1
        if not found:
            raise RequestError(
                given=f"{self._options.traffic}, none of whose requests this model can take",
                expected="at least one; the first reason was: " + next(iter(left_out)),
                remedy="Raise --context-length, or take another target",
            )
        self._limits = {one.id: bench.limit(one) for one in found}
        if not list(self._journal.of_kind("setup")):
            self._journal.add("setup", self._setup(bench, left_out))
        return found

    def _setup(self, bench: Bench, left_out: Mapping[str, int]) -> dict[str, object]:
        options = self._options
        drafts = {name: model_facts(model, resolve(model)) for name, model in options.drafts.items()}
        return {
            "paceline_version": __version__,
            "machine": machine_name(),
            "engine": bench.description(),
            "target": model_facts(options.target, resolve(options.target)).to_json(),
            "drafts": [{"draft": name, **facts.to_json()} for name, facts in drafts.items()],
            "num_lines": self._traffic.num_lines,
            "left_out": dict(left_out),
            "in_traffic": {name: len(found) for name, found in self.by_route.items()},
            "context_length": bench.engine.context_length,
        }

    def _answer(self, bench: Bench, requests: Sequence[LoadRequest]) -> None:
        """Answer the sample without drafts: at least a request of each route, and more while time is left."""
        self._phase = "answers without drafts"
        by_id = {one.id: one for one in requests}
        for record in self._journal.of_kind("answer"):
            if record["id"] in by_id:
                self._keep(by_id[record["id"]], record["token_ids"])
        waiting = [one for one in requests if one.id not in self._answers]
        seen = {answer.request.route for answer in self._answers.values()}
        num_first = len({one.route for one in waiting} - seen)
        begun = iter(range(len(waiting)))

        def goes_on() -> bool:
            is_within = self.spent_s < PLAIN_SHARE * self._options.budget_s
            return next(begun, len(waiting)) < num_first or is_within

        for result in bench.answers(iter(waiting), goes_on):
            self._journal.add(
                "answer",
                {
                    "id": result.id,
                    "route": result.route,
                    "token_ids": list(result.token_ids),
                    "finish_reason": result.finish_reason.value,
                    "num_prompt_tokens": result.usage.prompt_tokens,
                    "limit": self._limits[result.id],
                },
            )
            self._keep(by_id[result.id], result.token_ids)
            self._note_spent()
            self._tell(f"{len(self._answers)} of {len(requests)}")

    def _keep(self, request: LoadRequest, token_ids: Sequence[int]) -> None:
        self._answers[request.id] = Answer(request, tuple(token_ids))

    def _of_route(self, route: str) -> list[Answer]:
        """Return a route's answers that have tokens, in the order of the sample, whoever ended first."""
        sampled = [one.id for found in self._rounds for one in found if one.route == route]
        found = [self._answers[name] for name in sampled if name in self._answers]
        return [answer for answer in found if answer.token_ids]

    def _read(self, bench: Bench, name: str | None) -> None:
        """Let a draft model, and look-ups, read all answers that they have not read yet."""
        self._phase = "drafters read the answers"
        known = {(one["drafter"], one["request_id"]) for one in self._journal.of_kind("reading")}
        drafter = MODEL if name is None else f"{MODEL}:{name}"
        for route in self.by_route:
            answers = self._of_route(route)
            for answer in answers:
                if (SUFFIX, answer.request.id) not in known:
                    self._journal.add("reading", self._looked_up(answer, answers).to_json())
                    known.add((SUFFIX, answer.request.id))
                if self._options.drafts and (drafter, answer.request.id) not in known:
                    bench.open(name)
                    self._journal.add("reading", bench.read(answer, drafter).to_json())
            self._note_spent()
            self._tell(f"{drafter}, {route}")

    def _looked_up(self, answer: Answer, answers: Sequence[Answer]) -> Reading:
        """Return what look-ups come to that know the other answers of the route, as those of a server do."""
        store = AnswerStore()
        for other in answers:
            if other is not answer:
                store.add(answer.request.route, other.token_ids)
        return read_with_suffix(answer, store)

    def readings(self, drafter: str) -> dict[str, Reading]:
        """Return the readings of a drafter, by request."""
        found = (
            Reading.from_json(one) for one in self._journal.of_kind("reading") if one["drafter"] == drafter
        )
        return {one.request_id: one for one in found}

    def _text(self, route: str, name: str | None) -> RouteText:
        answers = self._of_route(route)
        looked_up = self.readings(SUFFIX)
        suffix = [looked_up[one.request.id] for one in answers]
        traces: dict[str, tuple[Trace, ...]] = {SUFFIX: tuple(one.trace for one in suffix)}
        if self._options.drafts:
            read = self.readings(MODEL if name is None else f"{MODEL}:{name}")
            model = [read[one.request.id].trace for one in answers]
            traces[MODEL] = tuple(model)
            traces[MIXED] = tuple(
                one.trace.mixed_with(other, one.match_lengths)
                for one, other in zip(suffix, model, strict=True)
            )
        lengths = tuple(
            (len(one.request.prompt_token_ids), len(one.token_ids), self._limits[one.request.id])
            for one in answers
        )
        return RouteText(lengths, traces)

    def _choose(self, bench: Bench) -> None:
        """Forecast every setting, keep what is worth timing, and where speculation stops helping."""
        self._phase = "forecasting"
        known = {(one["route"], one["draft"]) for one in self._journal.of_kind("forecast")}
        for name in self._options.draft_names:
            for route in self._measured_routes():
                if (route, name) in known:
                    continue
                bench.open(name)
                text = self._text(route, name)
                self._journal.add("forecast", forecast_record(self._options, bench.costs, route, text, name))
                self._note_spent()
                self._tell(route)

    def _measured_routes(self) -> Iterator[str]:
        yield from (route for route in self.by_route if self._of_route(route))

    def _time(self, bench: Bench) -> None:
        self._phase = "timing"
        timing = Timing(self._options, self._journal, bench, lambda: self.left_s)
        routes = {route: self._of_route(route) for route in self._measured_routes()}
        for name in timing.drafts():
            readings = self.readings(MODEL if name is None else f"{MODEL}:{name}")
            for detail in timing.run(name, routes, readings):
                self._left_s = timing.left_s
                self._note_spent()
                self._tell(detail)
