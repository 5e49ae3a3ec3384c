"""A sim engine, the operator's hands on it, and short names for what the core would want."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from steersman.clock import Deadline, MonotonicClock
from steersman.engine import Runtime
from steersman_operator.engines import (
    CallResult,
    EngineClient,
    EngineDialect,
    EngineKeys,
    Engines,
    dialect_for,
)
from steersman_operator.fleet.commands import AskLoad, Call, Look
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Observation
from steersman_operator.fleet.spec import PauseMode, SourceKind, Weights
from steersman_sim.engine import EngineConfig, Fault, SimEngine, When
from steersman_sim.engine.sglang.core import SglangCore
from steersman_sim.engine.vllm.core import VllmCore
from tests.sim.support import Client, generate_body, serving, sglang, tokens_body, vllm

RUNTIMES = (Runtime.SGLANG, Runtime.VLLM)

CLOCK = MonotonicClock()

CALLS = tuple(kind for kind in CallKind if kind is not CallKind.TRANSFER)
"""What an engine is called for; a transfer is the trainer's."""

SEVEN = Weights(version="7", source=SourceKind.DISK, path="/w/7")
"""The weights of a refit, if a test does not say which."""

TIMEOUT = 1.0
"""Seconds that a call gets which is meant to have no answer."""


def config(runtime: Runtime, **options: Any) -> EngineConfig:
    """An instant engine."""
    return sglang(**options) if runtime is Runtime.SGLANG else vllm(**options)


class Steered(Client):
    """One engine, called by the operator as its core would have it, and by clients of its own."""

    engines: Engines
    declared: Runtime = Runtime.UNKNOWN

    async def do(
        self,
        kind: CallKind,
        *,
        mode: PauseMode = PauseMode.ABORT,
        tags: tuple[str, ...] | None = None,
        boot_id: str | None = None,
        weights: Weights | None = None,
        timeout: float = 30.0,
    ) -> CallResult:
        if weights is None and kind in (CallKind.REFIT, CallKind.LABEL):
            weights = SEVEN
        if tags is None:
            tags = ALL_TAGS if kind in (CallKind.SLEEP, CallKind.WAKE) else ()
        call = Call(
            number=1,
            engine="e",
            url=self.engine.url,
            runtime=self.declared,
            kind=kind,
            pause_mode=mode,
            tags=tags,
            boot_id=boot_id,
            weights=weights,
            timeout=timeout,
        )
        return await self.engines.perform(call)

    async def pause(self, mode: PauseMode = PauseMode.ABORT, **options: Any) -> CallResult:
        return await self.do(CallKind.PAUSE, mode=mode, **options)

    async def resume(self, **options: Any) -> CallResult:
        return await self.do(CallKind.RESUME, **options)

    async def sleep(self, **options: Any) -> CallResult:
        return await self.do(CallKind.SLEEP, **options)

    async def wake(self, **options: Any) -> CallResult:
        return await self.do(CallKind.WAKE, **options)

    async def refit(self, weights: Weights = SEVEN, **options: Any) -> CallResult:
        return await self.do(CallKind.REFIT, weights=weights, **options)

    async def label(self, version: str = "7", **options: Any) -> CallResult:
        weights = Weights(version=version, source=SourceKind.EXTERNAL)
        return await self.do(CallKind.LABEL, weights=weights, **options)

    # What the core does not ask for yet, of the dialect itself.

    @asynccontextmanager
    async def speaking(self) -> AsyncIterator[tuple[EngineDialect, Deadline]]:
        client = EngineClient(self.engine.url, clock=CLOCK)
        dialect = dialect_for(Runtime(self.engine.config.runtime.value), client)
        assert dialect is not None
        try:
            yield dialect, Deadline.after(CLOCK, 30.0)
        finally:
            await client.close()

    async def begin(self) -> CallResult:
        async with self.speaking() as (dialect, deadline):
            return await dialect.begin(deadline=deadline)

    async def commit(self, version: str) -> CallResult:
        async with self.speaking() as (dialect, deadline):
            return await dialect.commit(version, deadline=deadline)

    async def checksum(self) -> str | None:
        async with self.speaking() as (dialect, deadline):
            return await dialect.checksum(deadline=deadline)

    async def invalidate(self) -> CallResult:
        async with self.speaking() as (dialect, deadline):
            return await dialect.invalidate_cache(deadline=deadline)

    async def look(self) -> Observation:
        return await self.engines.look(Look(engine="e", url=self.engine.url, runtime=self.declared))

    async def load(self) -> int | None:
        return await self.engines.ask_load(
            AskLoad(engine="e", url=self.engine.url, runtime=self.declared)
        )

    def ask(self, *, tokens: int = 8) -> "asyncio.Task[Any]":
        """A request of somebody's, under way."""
        if is_sglang(self.engine):
            return self.soon("/generate", generate_body(tokens=tokens))
        return self.soon("/inference/v1/generate", tokens_body([1, 2, 3], tokens=tokens))

    def paths(self) -> list[str]:
        """What the engine was asked, in order, without the routes that only read."""
        return [entry.path for entry in self.engine.journal.entries if entry.method == "POST"]

    def bodies(self, path: str) -> list[Any]:
        """The JSON bodies that a route got."""
        return [entry.json() for entry in self.engine.journal.of(path)]


@asynccontextmanager
async def steered(
    runtime: Runtime, *, keys: EngineKeys | None = None, look_timeout: float = 5.0, **options: Any
) -> AsyncIterator[Steered]:
    """An instant engine of this kind, with the operator's hands on it."""
    async with steering(config(runtime, **options), keys=keys, look_timeout=look_timeout) as it:
        yield it


@asynccontextmanager
async def steering(
    engine: EngineConfig, *, keys: EngineKeys | None = None, look_timeout: float = 5.0
) -> AsyncIterator[Steered]:
    """An engine with the operator's hands on it."""
    async with serving(engine) as client:
        it = Steered(client.engine, client.session)
        it.engines = Engines(keys=lambda _: keys or EngineKeys(), look_timeout=look_timeout)
        try:
            yield it
        finally:
            await it.engines.close()


def is_sglang(engine: SimEngine) -> bool:
    """Which kind it is."""
    return engine.config.runtime.value == "sglang"


def paused(engine: SimEngine) -> bool:
    """Whether it really is paused."""
    core = engine.core
    if isinstance(core, SglangCore):
        return core.gate.paused
    assert isinstance(core, VllmCore)
    return core.paused()


def released(engine: SimEngine) -> set[str]:
    """What memory it really has given up."""
    core = engine.core
    if isinstance(core, SglangCore):
        return set(core.released)
    assert isinstance(core, VllmCore)
    return set(core.asleep)


def held(engine: SimEngine) -> list[tuple[str, str]]:
    """What each rank calls its weights, and where those that it really has are from."""
    return [(rank.weights.label, rank.weights.weights.source) for rank in engine.core.ranks]


def once(**what: Any) -> Fault:
    """A fault that strikes one request, instead of its handler."""
    return Fault(times=1, **what)


def once_after(**what: Any) -> Fault:
    """The same, when the handler has done its work."""
    return Fault(times=1, when=When.AFTER, **what)
