"""Failures of sleep that users of such systems have reported, with real proxies over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from steersman.engine import Control
from steersman_operator.fleet.commands import Call
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import OnTimeout
from steersman_operator.fleet.state import Phase, Timing
from steersman_operator.shell.ports import CallResult
from steersman_proxy.app import ProxyApp
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from tests.proxy.support import until
from tests.shell.whole import TIMING, Whole, whole

COMPLETIONS = {Runtime.SGLANG: "/generate", Runtime.VLLM: "/v1/completions"}
SLEEPS = {Runtime.SGLANG: "/release_memory_occupation", Runtime.VLLM: "/sleep"}
CALLS = {"/pause_generation", "/pause", *SLEEPS.values()}
runtimes = pytest.mark.parametrize("runtime", Runtime)


def body(runtime: Runtime, tokens: int, *, stream: bool = False) -> dict[str, object]:
    if runtime is Runtime.VLLM:
        return {
            "prompt": "a",
            "model": "m",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    return {"text": "a", "sampling_params": sampling, "stream": stream}


def disturbed(engine: SimEngine) -> list[str]:
    """The calls that an engine with requests could not stand, oldest first."""
    return [entry.path for entry in engine.journal.entries if entry.path in CALLS]


@contextlib.asynccontextmanager
async def one_engine(
    tmp_path: Path, runtime: Runtime, *, timing: Timing = TIMING, speed: float = 0
) -> AsyncIterator[tuple[SimEngine, Whole, aiohttp.ClientSession]]:
    config = EngineConfig(
        runtime=runtime, speed=speed, model="m", weight_version="7", weights_cpu_backup=True
    )
    async with (
        SimEngine(config) as engine,
        whole(tmp_path, [engine], timing=timing) as fleet,
        aiohttp.ClientSession() as client,
    ):
        yield engine, fleet, client


# --- 6: sleep answers 200 while the engine is dying (vllm-project/vllm#45520) -----------------------


@runtimes
async def test_field_failure_6_sleep_is_not_sent_while_a_stream_is_open(
    tmp_path: Path, runtime: Runtime
) -> None:
    """Both runtimes die of it, vLLM after it has said yes."""
    async with one_engine(tmp_path, runtime, speed=1.0) as (engine, fleet, client):
        url = fleet.proxies[0].url + COMPLETIONS[runtime]
        async with client.post(url, json=body(runtime, 50_000, stream=True)) as answer:
            assert answer.status == 200 and await answer.content.readany()
            fleet.want(Control.ASLEEP)
            await _time_passes(fleet, ticks=10)
            assert disturbed(engine) == []
            assert await _draining(fleet) is Phase.DRAINING
            assert fleet.engine().gate.open is False
            assert engine.core.in_flight == 1 and await answer.content.readany()
            answer.close()
        await until(lambda: fleet.engine().settled is Control.ASLEEP)

        assert disturbed(engine)[-1] == SLEEPS[runtime]
        assert engine.died is None


@runtimes
async def test_field_failure_6_an_engine_that_dies_of_a_sleep_it_agreed_to_is_failed_not_asleep(
    tmp_path: Path, runtime: Runtime
) -> None:
    timing = msgspec.structs.replace(TIMING, verify_timeout=0.5, look_soon=0.05, look_every=0.1)
    async with one_engine(tmp_path, runtime, timing=timing) as (engine, fleet, client):
        engines = fleet.shell._engines
        perform = engines.perform

        async def dies_after_its_yes(call: Call) -> CallResult:
            result = await perform(call)
            if call.kind is CallKind.SLEEP:
                assert result.outcome is Outcome.OK
                await engine.die("of the sleep")
            return result

        engines.perform = dies_after_its_yes  # type: ignore[method-assign]
        fleet.want(Control.ASLEEP)
        await until(lambda: bool(fleet.engine().problem) and not fleet.engine().reachable)

        known = fleet.engine()
        assert "does not answer after sleep" in known.problem
        assert known.op is None and not known.gate.open
        assert known.settled is not Control.ASLEEP
        await until(
            lambda: all(one.row.failed for proxy in fleet.proxies for one in proxy.fleet.engines())
        )
        for proxy in fleet.proxies:
            url = proxy.url + COMPLETIONS[runtime]
            assert await _status(client, url, body(runtime, 1)) == 503

        # The process that comes in its place is put to sleep as was asked for, and stays there.
        engines.perform = perform  # type: ignore[method-assign]
        await engine.restart()
        await until(lambda: fleet.engine().reachable)
        fleet.want(Control.ASLEEP)
        await until(lambda: fleet.engine().settled is Control.ASLEEP)
        assert not fleet.engine().problem


# --- 7: a completion that reaches a sleeping engine kills it (vllm-project/vllm#15483) --------------


@contextlib.contextmanager
def late(proxy: ProxyApp) -> Iterator[None]:
    """What the operator says arrives at this proxy only afterwards, in order."""
    assert proxy.control is not None
    follower = proxy.control._follower
    true, waiting = follower.received, []

    def received(*message: object) -> None:
        waiting.append(message)

    follower.received = received  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        follower.received = true  # type: ignore[method-assign]
        for message in waiting:
            true(*message)  # type: ignore[arg-type]


@runtimes
@pytest.mark.parametrize("on_timeout", [OnTimeout.FAIL, OnTimeout.ABORT])
async def test_field_failure_7_no_engine_sleeps_while_one_replica_has_not_heard_of_it(
    tmp_path: Path, runtime: Runtime, on_timeout: OnTimeout
) -> None:
    async with one_engine(tmp_path, runtime) as (engine, fleet, client):
        fleet.pool = msgspec.structs.replace(fleet.pool, on_timeout=on_timeout)
        first, second = fleet.proxies
        path, request = COMPLETIONS[runtime], body(runtime, 1)
        with late(second):
            fleet.want(Control.ASLEEP)
            await until(lambda: _acknowledged(fleet, "proxy-0"))
            held = asyncio.create_task(_status(client, first.url + path, request))
            await until(lambda: first.hold.depth("p") == 1)
            # The other one has not heard of it, sends on, and is served by an engine that is awake.
            before = len(engine.journal.of(path))
            for _ in range(10):
                assert await _status(client, second.url + path, request) == 200
            assert len(engine.journal.of(path)) == before + 10
            await _time_passes(fleet, ticks=5)
            assert disturbed(engine) == []
            assert await _draining(fleet) is Phase.DRAINING

        await until(lambda: fleet.engine().settled is Control.ASLEEP)
        received = len(engine.journal.of(path))
        assert await held == 503
        for proxy in fleet.proxies:
            assert await _status(client, proxy.url + path, request) == 503

        assert len(engine.journal.of(path)) == received
        assert engine.died is None


# --- helpers ----------------------------------------------------------------------------------------


async def _status(client: aiohttp.ClientSession, url: str, request: dict[str, object]) -> int:
    async with client.post(url, json=request) as answer:
        await answer.read()
        return answer.status


async def _draining(fleet: Whole) -> Phase | None:
    """The phase of the operation that was asked for, once there is one."""
    await until(lambda: fleet.engine().op is not None)
    operation = fleet.engine().op
    return None if operation is None else operation.phase


async def _time_passes(fleet: Whole, *, ticks: int) -> None:
    """The operator has thought about it so many times."""
    seen = 0

    def changed() -> None:
        nonlocal seen
        seen += 1

    fleet.shell.on_change.append(changed)
    await until(lambda: seen >= ticks)
    fleet.shell.on_change.remove(changed)


def _acknowledged(fleet: Whole, uid: str) -> bool:
    closed_at, acked = fleet.engine().closed_at, fleet.shell.state.proxies[uid].acked
    return closed_at is not None and acked is not None and acked >= closed_at
