"""The engine that a measurement runs on: the target with one draft model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.config.engine import EngineSettings
from paceline.drafters.model import ModelDrafter
from paceline.drafters.scope import answer_scope
from paceline.engine.engine import Engine
from paceline.errors import PacelineError, RequestError
from paceline.llm import LLM
from paceline.measure.load import LoadLoop, LoadRequest
from paceline.measure.load_cell import CellCounts
from paceline.measure.load_mode import Mode
from paceline.measure.options import MeasureOptions
from paceline.measure.reading import Answer, read_with_model
from paceline.measure.replay import Reading
from paceline.measure.rows import RowCounter
from paceline.measure.setting import MODEL, SUFFIX
from paceline.measure.traffic import TrafficRequest
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.step_costs import StepCosts
from paceline.records import AnswerSharing, FinishReason, GenerationResult

WARM_UP_TOKENS = 8
NUM_TOGETHER = 8
"""Answers without drafts that are made at once, at least: what they take is not measured."""
PLAIN = Mode()
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What one run of a batch came to."""

    results: Mapping[str, GenerationResult]
    counts: CellCounts
    target_rows: int
    draft_rows: int


class Bench:
    """Loads engines as they are needed, one at a time, and answers requests on them.

    Args:
        options: which models, and how large.
        on_note: told in words what is being done.
    """

    def __init__(self, options: MeasureOptions, on_note: Note = lambda text: None) -> None:
        self._options = options
        self._on_note = on_note
        self._llm: LLM | None = None
        self._draft: str | None = None
        self._rows = RowCounter()

    def __enter__(self) -> Bench:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Drop the engine."""
        self.close()

    def close(self) -> None:
        """Drop the engine and its memory."""
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    def open(self, draft: str | None) -> LLM:
        """Return the engine with a draft model, or with none of that name; the one before is dropped."""
        if self._llm is not None and self._draft == draft:
            return self._llm
        self.close()
        options = self._options
        model = options.draft_of(draft)
        self._on_note(f"loading {options.target}" + (f" and {model}" if model else ""))
        settings = EngineSettings(
            target=options.target,
            draft=model,
            speculation="auto",
            max_draft_length=options.max_draft_length,
            max_num_seqs=max(NUM_TOGETHER, *options.concurrency),
            **options.engine,
        )
        self._llm = LLM.from_settings(
            settings, lambda share, text: self._on_note(f"measuring step costs: {text}, {share:.0%}")
        )
        self._draft = draft
        self.engine.observers.add(self._rows)
        return self._llm

    @property
    def llm(self) -> LLM:
        """The engine that is there, or the one with the first draft model."""
        return self._llm or self.open(self._options.draft_names[0])

    @property
    def engine(self) -> Engine:
        """The same without what turns text into tokens."""
        return self.llm.loaded.engine

    @property
    def policy(self) -> SpeculationPolicy:
        """The engine's policy, which knows what steps cost."""
        policy = self.engine.policy
        assert isinstance(policy, SpeculationPolicy)
        return policy

    @property
    def costs(self) -> StepCosts:
        """What steps cost, as calibrated and corrected by every step so far."""
        return self.policy.costs

    def description(self) -> dict[str, str]:
        """Return what step costs depend on, in words: machine, threads, kernels and how weights are held."""
        return dict(self.costs.calibrated.description)

    def prepare(self, request: TrafficRequest, seed: int) -> LoadRequest:
        """Return a request ready to be submitted.

        Raises:
            RequestError, ChatTemplateError: it cannot be answered by this model.
        """
        sampling = self._options.sampling(request.sampling, seed)
        token_ids = (
            self.llm.encode_chat(request.messages)
            if request.messages is not None
            else self.llm.encode(request.prompt or "")
        )
        assert sampling.seed is not None
        found = LoadRequest(request.id, request.route, tuple(token_ids), sampling, sampling.seed % 2**64)
        self.engine.prepare(found.submitted(PLAIN))
        return found

    def limit(self, request: LoadRequest) -> int:
        """Return the most tokens that an answer can have."""
        room = self.engine.context_length - len(request.prompt_token_ids)
        return min(room, request.sampling.max_tokens or room)

    def answers(
        self, requests: Iterator[LoadRequest], goes_on: Callable[[], bool]
    ) -> Iterator[GenerationResult]:
        """Answer requests without drafts, several at once, for as long as `goes_on` says; those that have
        begun are finished."""
        engine = self.engine
        together = max(NUM_TOGETHER, *self._options.concurrency)
        running = 0
        while True:
            while running < together and goes_on() and (request := next(requests, None)) is not None:
                engine.submit(request.submitted(PLAIN))
                running += 1
            if not engine.has_work:
                return
            for chunk in engine.step():
                if chunk.result is not None:
                    running -= 1
                    yield _checked(chunk.result)

    def read(self, answer: Answer, name: str) -> Reading:
        """Let this engine's draft model read an answer."""
        drafter = self.engine.drafters[MODEL]
        assert isinstance(drafter, ModelDrafter)
        (sequence,) = self.engine.prepare(answer.request.submitted(PLAIN))
        return read_with_model(drafter, name, sequence.number, answer, sequence.sampling)

    def teach(self, route: str, readings: Sequence[Reading]) -> None:
        """Tell the policy what readings of a route's answers gave, as it learns from a server's idle time."""
        for reading in readings:
            if reading.matches:
                self.policy.on_scored(
                    route, MODEL, list(zip(reading.confidences, reading.matches, strict=True))
                )

    def warm_up(self, request: LoadRequest, modes: Sequence[Mode]) -> None:
        """Answer one request in a few tokens in each mode, lest a run pay for what is only done once."""
        LoadLoop(self.engine).warm_up(request, modes, WARM_UP_TOKENS)

    def time(
        self, requests: Sequence[LoadRequest], concurrency: int, mode: Mode, others: Sequence[Answer]
    ) -> TimedRun:
        """Answer a batch once, look-ups knowing the answers to `others` and nothing else."""

        def prepare() -> None:
            for answer in others:
                request = answer.request.submitted(PLAIN)
                scope = answer_scope(request, AnswerSharing.TENANT_AND_ROUTE)
                self.engine.drafters[SUFFIX].learn(scope, answer.token_ids)

        self._rows.take()
        results, counts = LoadLoop(self.engine).run(requests, concurrency, mode, prepare)
        for result in results.values():
            _checked(result)
        return TimedRun(results, counts, *self._rows.take())


def _checked(result: GenerationResult) -> GenerationResult:
    if result.finish_reason is FinishReason.ERROR:
        raise (
            result.error
            if isinstance(result.error, PacelineError)
            else RequestError(
                given=f"request {result.id!r}, which could not be answered",
                expected="an answer",
                remedy="Leave it out of the traffic",
            )
        ) from result.error
    return result
