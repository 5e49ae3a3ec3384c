"""The janitor: requests that are in flight for too long, over real sockets."""

import asyncio

import pytest

from steersman.clock import MonotonicClock
from steersman.settings import PoolSettings, Timeouts
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http.janitor import Janitor
from steersman_proxy.load.breaker import Judgement
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import JSON, OK, STREAM, Watched, Wire, always, fake_engine

pytestmark = pytest.mark.usefixtures("adapter")

POOL = PoolSettings(timeouts=Timeouts(stale=0.2))


@pytest.mark.parametrize(
    "answer", [[], [JSON], [JSON, b'{"a":']], ids=["no head", "head of JSON", "part of JSON"]
)
async def test_a_client_that_has_seen_nothing_gets_504(answer: list[bytes]) -> None:
    script = Watched(*answer)
    async with fake_engine(script) as engine, adapter_rig(engine.url, pool=POOL) as rig:
        async with client_of(rig) as client:
            answered = await client.post()
            assert answered.status == 504
            assert answered.error["code"] == "request_stale"
            assert answered.values(b"x-smg-routed-worker-id") == [engine.url.encode()]
            await script.closed.wait()
            assert rig.in_flight == 0
        await until(lambda: len(rig.recorder.records) == 1)
        assert rig.recorder.records[0].outcome is Outcome.UPSTREAM_FAILED


async def test_a_stream_that_trickles_for_ever_is_broken() -> None:
    async def trickle(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM)
        while True:
            await wire.send(b"5\r\nhello\r\n")
            await asyncio.sleep(0.02)

    async with fake_engine(trickle) as engine, adapter_rig(engine.url, pool=POOL) as rig:
        async with client_of(rig) as client:
            answered = await client.post(b'{"stream":true}')
            assert answered.status == 200
            assert answered.body.startswith(b"hello")
            assert not answered.whole
        await until(lambda: rig.in_flight == 0)
        await until(lambda: len(rig.recorder.records) == 1)
        assert getattr(rig.recorder.records[0].error, "code", None) == "request_stale"
        (state,) = rig.fleet.engines()
        assert state.breaker.outcomes[Judgement.FAILURE] == 0


async def test_requests_that_end_in_time_are_left_alone_and_so_is_waiting() -> None:
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url, pool=POOL) as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client:
            await client.send(post())
            await until(lambda: rig.hold.depth("p") == 1)
            await asyncio.sleep(0.3)
            rig.apply(gates_open=True)
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.3)
            assert (await client.post()).status == 200


async def test_a_client_that_leaves_just_then_is_no_fault() -> None:
    script = Watched()
    async with fake_engine(script) as engine, adapter_rig(engine.url, pool=POOL) as rig:
        async with client_of(rig) as client:
            await client.send(post())
            await script.arrived.wait()
        rig.adapter.sweep(rig.context.clock.now() + 1)
        await until(lambda: rig.adapter.running == 0)
        await until(lambda: rig.in_flight == 0)
        await script.closed.wait()


async def test_the_janitor_comes_at_the_earliest_moment_and_then_when_it_is_told() -> None:
    clock = MonotonicClock()
    visits: list[float] = []
    done = asyncio.Event()
    start = clock.now()

    def sweep(now: float) -> float | None:
        visits.append(now - start)
        if len(visits) == 2:
            done.set()
            return None
        return start + 0.06

    janitor = Janitor(sweep, clock=clock)
    janitor.expect(None)
    janitor.expect(start + 10)
    janitor.expect(start + 0.02)
    janitor.expect(start + 20)
    await done.wait()
    janitor.expect(start + 30)
    janitor.close()
    # uvloop counts whole milliseconds, from the beginning of its turn.
    assert visits[0] >= 0.018
    assert visits[1] >= 0.058
