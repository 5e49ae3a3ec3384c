"""Refits one after the other under traffic, with everything that engines do wrong at it.

What is held against what: the stamps that clients read against the weights that really made each
token, which the simulated engines know.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from steersman.clock import Deadline, MonotonicClock
from steersman.engine import Runtime as SharedRuntime
from steersman.engine import Trust
from steersman_operator.engines.client import EngineClient
from steersman_operator.engines.identify import dialect_for
from steersman_operator.fleet.spec import RolloutMode, SourceKind, Weights
from steersman_operator.fleet.state import Timing
from steersman_proxy.app import ProxyApp
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import Selected
from steersman_sim.engine import PRESETS, REFIT, EngineConfig, Runtime, SimEngine
from tests.proxy.support import until
from tests.shell.whole import Whole, whole

ENGINES = 8
HOPELESS = 3
"""Tries of a load after which an engine is taken for hung; a platform has its probes for that."""
RATE = 50.0
"""Requests a second, of which every second one is streamed."""
TIMING = Timing(
    idle_gap=0.1,
    look_every=0.3,
    look_soon=0.05,
    verify_timeout=1.0,
    retry=0.1,
    retry_limit=0.5,
    looks_per_second=200.0,
)

# A load whose flush is refused can only be had of an engine that flushes by itself.
FAULTS = {
    Runtime.SGLANG: sorted(PRESETS),
    Runtime.VLLM: sorted(PRESETS.keys() - {"refuse-flush"}),
}


class Served(msgspec.Struct):
    """One answer as its client read it."""

    request_id: str
    status: int
    engine: str
    version: str | None
    mixed: str | None
    streamed: bool
    broken: bool = False


class Clients:
    """The traffic, and what came of it."""

    def __init__(self, fleet: Whole, runtime: Runtime) -> None:
        self._fleet = fleet
        self._runtime = runtime
        self._numbers = itertools.count()
        self._open: set[asyncio.Task[None]] = set()
        self.served: list[Served] = []
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Requests at a steady rate until :attr:`stop`, and then the end of the last one."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self.stop.is_set():
                task = asyncio.create_task(self._ask(session, next(self._numbers)))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
                await asyncio.sleep(1 / RATE)
            await asyncio.gather(*self._open)

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        proxy, streamed = self._fleet.proxies[number % 2], number % 4 >= 2
        path, body = _body(self._runtime, number, streamed=streamed)
        headers = {"x-request-id": f"r-{number}", "x-smg-version-policy": "latest-only"}
        async with session.post(proxy.url + path, json=body, headers=headers) as answer:
            one = Served(
                request_id=f"r-{number}",
                status=answer.status,
                engine=answer.headers.get("x-smg-routed-worker-id", ""),
                version=answer.headers.get("x-smg-weight-version"),
                mixed=answer.headers.get("x-smg-mixed-version"),
                streamed=streamed,
            )
            try:
                await answer.read()
            except aiohttp.ClientError:
                one.broken = True
            self.served.append(one)


def _body(runtime: Runtime, number: int, *, streamed: bool) -> tuple[str, dict[str, Any]]:
    tokens = 10 + number % 40
    if runtime is Runtime.VLLM:
        prompt = f"prompt {number}"
        return "/v1/completions", {
            "prompt": prompt,
            "model": "m",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": streamed,
        }
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    text = f"prompt {number}"
    return "/generate", {"text": text, "sampling_params": sampling, "stream": streamed}


class Dispatches:
    """Every choice of an engine, held against the table by which it was made."""

    def __init__(self, fleets: list[Fleet]) -> None:
        self.count = 0
        self.wrong: list[str] = []
        for fleet in fleets:
            self._listen(fleet)

    def _listen(self, fleet: Fleet) -> None:
        true = fleet._count

        def count(engine: Engine, **more: Any) -> Selected:
            self.count += 1
            row, newest = engine.row, more["pool"].row.fleet_max
            if row.trust in (Trust.UNCERTAIN, Trust.UNSYNCED) or not row.gate.open:
                self.wrong.append(f"{engine.id} is {row.trust.value}, open: {row.gate.open}")
            if newest is not None and engine.version != newest:
                self.wrong.append(f"{engine.id} has {engine.version}, the newest is {newest}")
            return true(engine, **more)

        fleet._count = count  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def nursed(fleet: Whole, engines: list[SimEngine]) -> AsyncIterator[None]:
    """Engines that have died are started again, as a platform does it, and those that hang for good
    are ended."""

    async def nurse(engine: SimEngine) -> None:
        while True:
            await engine.wait_dead()
            await asyncio.sleep(0.2)
            await engine.restart()

    async def look(number: int, engine: SimEngine) -> None:
        while True:
            await asyncio.sleep(0.1)
            operation = fleet.engine(number).op
            if operation is not None and operation.tries >= HOPELESS and engine.running:
                await engine.die("it does not answer any more")

    tasks = [asyncio.create_task(nurse(engine)) for engine in engines]
    tasks += [asyncio.create_task(look(*numbered)) for numbered in enumerate(engines)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(traffic: "asyncio.Task[None]") -> None:
    traffic.cancel()
    await asyncio.gather(traffic, return_exceptions=True)


async def weights(number: int, reference: SimEngine) -> Weights:
    """Weights on disk, with the checksum that an engine has which was started with them."""
    path, version = f"/weights/{number}", str(number)
    for rank in reference.core.ranks:
        rank.weights.load(f"disk:{path}", version=version)
    clock = MonotonicClock()
    client = EngineClient(reference.url, clock=clock)
    try:
        dialect = dialect_for(SharedRuntime(reference.config.runtime.value), client)
        assert dialect is not None
        checksum = await dialect.checksum(deadline=Deadline.after(clock, 5.0))
    finally:
        await client.close()
    assert checksum
    return Weights(version=version, source=SourceKind.DISK, path=path, checksum=checksum)


def all_have(fleet: Whole, target: Weights) -> bool:
    return all(
        engine.op is None and engine.gate.open and engine.loaded == target.id
        for engine in fleet.shell.state.engines.values()
    )


async def until_all_have(fleet: Whole, target: Weights) -> None:
    """Wait for the end of a rollout; says what is missing if it does not come."""
    try:
        await until(lambda: all_have(fleet, target), within=60)
    except TimeoutError:
        missing = [
            (engine.spec.id, engine.problem, engine.facts, engine.version, engine.gate, engine.op)
            for engine in fleet.shell.state.engines.values()
            if engine.loaded != target.id or engine.op is not None or not engine.gate.open
        ]
        raise AssertionError(f"{target.version}: {missing}") from None


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("runtime", "mode", "refits"),
    [
        (Runtime.SGLANG, RolloutMode.QUIESCE, 20),
        (Runtime.SGLANG, RolloutMode.IN_PLACE, 6),
        (Runtime.VLLM, RolloutMode.QUIESCE, 6),
        (Runtime.VLLM, RolloutMode.IN_PLACE, 6),
    ],
)
async def test_refits_in_a_row_with_faults_under_traffic(
    tmp_path: Path, runtime: Runtime, mode: RolloutMode, refits: int
) -> None:
    config = EngineConfig(
        runtime=runtime, speed=20.0, model="m", weight_version="0", journal_limit=100_000
    )
    rng = random.Random(f"{runtime} {mode}")
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(SimEngine(msgspec.structs.replace(config, seed=number)))
            for number in range(ENGINES)
        ]
        reference = await stack.enter_async_context(SimEngine(config))
        fleet = await stack.enter_async_context(
            whole(
                tmp_path,
                engines,
                timing=TIMING,
                mode=mode,
                max_unavailable="50%",
                refit_timeout=1.5,
            )
        )
        await stack.enter_async_context(nursed(fleet, engines))
        dispatches = Dispatches([proxy.fleet for proxy in fleet.proxies])
        clients = Clients(fleet, runtime)
        traffic = asyncio.create_task(clients.run())
        stack.push_async_callback(_ended, traffic)
        await until(lambda: len(clients.served) > 20)

        for number in range(1, refits + 1):
            for engine in rng.sample(engines, 2):
                engine.faults.arm(REFIT, rng.choice(FAULTS[runtime]))
            target = await weights(number, reference)
            fleet.want(weights=target)
            await until_all_have(fleet, target)
            for engine in engines:
                engine.faults.disarm()
                held = engine.core.ranks[0].weights.weights
                assert (held.version, held.source) == (target.version, f"disk:{target.path}")

        clients.stop.set()
        await traffic
        judge(engines, clients, dispatches, mode)


def judge(
    engines: list[SimEngine], clients: Clients, dispatches: Dispatches, mode: RolloutMode
) -> None:
    """Hold what clients read against what engines did."""
    assert dispatches.wrong == []
    assert dispatches.count >= len(clients.served)
    served = {one.request_id: one for one in clients.served}
    assert len(served) > 100
    lost = [one for one in clients.served if one.status != 200 or one.broken]
    if mode is RolloutMode.QUIESCE:
        assert lost == []
    else:
        assert {one.status for one in lost} <= {200, 502}, lost
    looked_at = 0
    for engine in engines:
        for entry in engine.journal.entries:
            one = served.get(entry.header("X-Request-Id") or "")
            if one is None or not entry.generations or one in lost or one.engine != engine.url:
                continue
            for sequence in entry.generations:
                truths = {span.version for span in sequence.truth}
                assert truths, one
                assert all(version is not None and version.isdigit() for version in truths), one
                looked_at += 1
                if one.streamed:
                    # Of a stream only what it began with can be said in its head.
                    assert one.version in truths, (one, sequence.truth)
                elif len(truths) == 1:
                    assert (one.version, one.mixed) == (*truths, None), (one, sequence.truth)
                else:
                    assert mode is RolloutMode.IN_PLACE
                    assert one.mixed is not None, (one, sequence.truth)
    assert looked_at > 100


def test_the_proxies_are_those_of_the_product() -> None:
    """`Dispatches` listens at the one place where a request is given to an engine."""
    assert ProxyApp.__module__ == "steersman_proxy.app"
    assert "_count" in Fleet.select.__code__.co_names
    assert "_count" in Fleet.at_once.__code__.co_names
