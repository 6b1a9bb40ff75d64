"""vLLM as it is deployed, its engine core in a process of its own, driven step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from paceline.config.routes import RouteSettings
from paceline.vllm.bridge import Bridge
from paceline.vllm.engine_file import EngineFile, read_engine
from paceline.vllm.routes_file import RouteEntry, RoutesFile, write_routes

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
COUNTING = "one two three four five six seven. " * 4


def draft_model(model: Path) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": 4}


class Asked(NamedTuple):
    """One request."""

    prompt: str
    route: str | None = None
    max_tokens: int = 32
    arguments: Mapping[str, Any] = {}
    structured: Any = None


class Answer(NamedTuple):
    """What came of it, with vLLM's own count of its drafts."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    drafted: tuple[int, ...]
    """Drafts of each step that verified any."""
    accepted: tuple[int, ...]

    def by_position(self) -> tuple[list[int], list[int]]:
        """Return (drafted, accepted) at the first place of a step, the second, ..."""
        places = range(4)
        drafted = [sum(n > place for n in self.drafted) for place in places]
        return drafted, [sum(n > place for n in self.accepted) for place in places]


class Served:
    """One vLLM with our scheduler, or without.

    Args:
        model: folder of the target.
        folder: of the bridge.
        routes: settings by name, the default first; none runs vLLM as it comes.
        flags: more of vLLM's.
    """

    def __init__(
        self, model: Path, folder: Path, routes: Mapping[str, RouteSettings] | None, **flags: Any
    ) -> None:
        from vllm import LLM

        self.bridge = Bridge(folder)
        self.version = 0
        if routes is not None:
            self.put(routes)
            flags = {
                "scheduler_cls": "paceline.vllm.RouteScheduler",
                "additional_config": {"paceline": {"bridge": str(folder)}},
                "per_request_spec_decode_metrics": "detailed",
                **flags,
            }
        self.llm = LLM(
            str(model), dtype="float32", max_model_len=512, enforce_eager=True, seed=0,
            **{"max_num_seqs": 8, **flags},
        )  # fmt: skip
        self.engine = self.llm.llm_engine
        self._num_asked = 0

    def put(self, routes: Mapping[str, RouteSettings]) -> int:
        """Write routes and return their version."""
        self.version += 1
        entries = {name: RouteEntry(settings, "ann") for name, settings in routes.items()}
        write_routes(self.bridge.routes_path, RoutesFile(self.version, next(iter(entries)), entries))
        return self.version

    def look(self, until: Callable[[EngineFile], bool] = lambda _: True, within_s: float = 20) -> EngineFile:
        """Return the engine core's file once it says what is waited for."""
        ends = time.monotonic() + within_s
        while True:
            found = read_engine(self.bridge.engine_path(0))
            if until(found):
                return found
            assert time.monotonic() < ends, f"not so within {within_s} s: {found}"
            time.sleep(0.05)

    def ask(self, asked: Asked) -> str:
        """Send a request and return its id."""
        from vllm import SamplingParams

        self._num_asked += 1
        name = f"r{self._num_asked}"
        extra = dict(asked.arguments)
        if asked.route is not None:
            extra["paceline_route"] = asked.route
        params = SamplingParams(
            temperature=0, max_tokens=asked.max_tokens, ignore_eos=asked.structured is None,
            extra_args=extra or None, structured_outputs=asked.structured,
        )  # fmt: skip
        self.engine.add_request(name, asked.prompt, params)
        return name

    def run(
        self, *asked: Asked, between: Callable[[int, dict[str, int]], None] | None = None
    ) -> list[Answer]:
        """Send requests and step until all are answered.

        Args:
            asked: the requests.
            between: called after each step with its number and the tokens so far of each request.
        """
        names = [self.ask(one) for one in asked]
        found = self.drain(between)
        return [found[name] for name in names]

    def drain(self, between: Callable[[int, dict[str, int]], None] | None = None) -> dict[str, Answer]:
        """Step until nobody waits for anything, and return the answers by request."""
        found: dict[str, Answer] = {}
        lengths: dict[str, int] = {}
        num_steps = 0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                one = output.outputs[0]
                lengths[output.request_id] = len(one.token_ids)
                if output.finished:
                    counted = one.spec_decode_metrics
                    found[output.request_id] = Answer(
                        tuple(one.token_ids), one.text, one.finish_reason,
                        tuple(counted.per_step_drafted) if counted else (),
                        tuple(counted.per_step_accepted) if counted else (),
                    )  # fmt: skip
            num_steps += 1
            if between is not None:
                between(num_steps, lengths)
        return found

    def close(self) -> None:
        """Stop the engine core."""
        self.engine.engine_core.shutdown()
