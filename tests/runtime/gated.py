"""A target whose forward passes wait for the test, so that tests know where the engine's thread stands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import torch

from paceline.engine.engine import Engine
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.scripted import NextLogits, ScriptedModel
from tests.engine.scripted import hashed_logits, make_engine

V = 24
LOGITS = hashed_logits(V)
PATIENCE_S = 60.0
"""How long a test waits for what must come at once; only a fault waits so long."""

T = TypeVar("T")


def go(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async test."""

    async def limited() -> T:
        return await asyncio.wait_for(function(), PATIENCE_S)

    return asyncio.run(limited())


class Gate:
    """Lets forward passes through one by one."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._is_open = False

    def enter(self) -> None:
        """Called by the model: says that it is there, and waits."""
        self._entered.release()
        if not self._is_open:
            assert self._permits.acquire(timeout=PATIENCE_S)

    async def entered(self) -> None:
        """Wait until the next forward pass has begun."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=PATIENCE_S)

    async def step(self) -> None:
        """Let the forward pass that waits through, and wait for the next."""
        self._permits.release()
        await self.entered()

    def open(self) -> None:
        """Let all through from now on."""
        self._is_open = True
        self._permits.release(1)


class GatedModel(ScriptedModel):
    def __init__(self, gate: Gate, next_logits: NextLogits = LOGITS) -> None:
        super().__init__(next_logits, V, context_length=20_000)
        self._gate = gate

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        self._gate.enter()
        return super().forward(slices, kv)


def gated_engine(gate: Gate, drafters: Any = None, **more: Any) -> Engine:
    engine = make_engine(LOGITS, V, drafters, **more)
    engine._model = GatedModel(gate)
    return engine
