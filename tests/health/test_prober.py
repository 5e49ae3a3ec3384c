"""Probes at real sockets: which route, with which key, and nobody waits for anybody."""

import asyncio
import random
from contextlib import asynccontextmanager

from steersman.clock import MonotonicClock
from steersman.engine import Runtime
from steersman_proxy.health.prober import Prober
from steersman_proxy.health.timer import EjectionTimer
from steersman_proxy.health.tracker import Condition, HealthTracker
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.asking import EngineAsker
from steersman_proxy.settings import PassiveHealth, ProbeSettings
from tests.observation.support import CLOSED, engine_of, fake_engine, fleet_of, row, table

FAST = ProbeSettings(enabled=True, interval=0.02, timeout=0.1, failures=2, successes=1)


@asynccontextmanager
async def probing(fleet, *, settings=FAST, keys=None):
    """A prober at work on ``fleet``; the tracker."""
    clock = MonotonicClock()
    upstream = UpstreamPool(clock=clock)
    tracker = HealthTracker(fleet, clock=clock, passive=PassiveHealth(), probe=settings)
    asker = EngineAsker(upstream, engine_keys=keys or {})
    prober = Prober(fleet, tracker=tracker, asker=asker, settings=settings, random=random.Random(1))
    prober.start()
    try:
        yield tracker
    finally:
        await prober.close()
        await upstream.close()


async def until(fleet, condition):
    """Wait until a change of the fleet makes ``condition`` true."""
    changed = asyncio.Event()
    fleet.on_change.append(changed.set)
    while not condition():
        await changed.wait()
        changed.clear()


async def test_each_runtime_is_asked_by_its_safe_route():
    async with (
        fake_engine(ping=(200, "")) as sglang,
        fake_engine(health=(200, "")) as vllm,
        fake_engine(ping=(200, "")) as unknown,
    ):
        fleet = fleet_of(
            row("s", url=sglang.url),
            row("v", url=vllm.url, runtime=Runtime.VLLM),
            row("u", url=unknown.url, runtime=Runtime.UNKNOWN),
        )
        async with probing(fleet):
            for engine in (sglang, vllm, unknown):
                await engine.got(2)
        assert set(sglang.targets()) == {"GET /ping"}
        assert set(vllm.targets()) == {"GET /health"}
        assert set(unknown.targets()) == {"GET /ping"}
    assert all(engine.healthy for engine in fleet.engines())


async def test_row_51_probes_carry_the_engine_s_key():
    """vllm router#159: the router's own calls had no key, so that nobody ever became ready."""
    async with fake_engine(ping=(200, "")) as engine:
        engine.key = "k1"
        fleet = fleet_of(row("e1", url=engine.url))
        async with probing(fleet, keys={"main": "k1"}) as tracker:
            await engine.got(5)
            assert tracker.conditions(engine_of(fleet, "e1")) == []
        assert {seen.headers["authorization"] for seen in engine.seen} == {"Bearer k1"}


async def test_row_51_a_refused_key_shows_as_auth_failed_and_the_engine_stays_in():
    async with fake_engine(ping=(200, "")) as engine:
        engine.key = "k1"
        fleet = fleet_of(row("e1", url=engine.url))
        async with probing(fleet, keys={"main": "wrong"}) as tracker:
            await engine.got(6)
            assert tracker.conditions(engine_of(fleet, "e1")) == [Condition.AUTH_FAILED]
            assert engine_of(fleet, "e1").healthy


async def test_an_engine_without_the_route_is_alive():
    async with fake_engine() as engine:
        fleet = fleet_of(row("e1", url=engine.url))
        async with probing(fleet):
            await engine.got(4)
            assert engine_of(fleet, "e1").healthy


async def test_an_engine_that_is_gone_is_out_and_comes_back(free_port):
    fleet = fleet_of(row("e1", url=f"http://127.0.0.1:{free_port}"))
    engine = engine_of(fleet, "e1")
    async with probing(fleet) as tracker:
        await until(fleet, lambda: not engine.healthy)
        assert tracker.conditions(engine) == [Condition.PROBES_FAILED]
        server = await asyncio.start_server(_say_ok, "127.0.0.1", free_port)
        async with server:
            await until(fleet, lambda: engine.healthy)


async def _say_ok(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_row_52_e_an_engine_that_never_answers_delays_nobody():
    """And it goes out by itself: idle, it has no excuse."""

    async def never(seen):
        await asyncio.Event().wait()

    async with fake_engine(ping=never) as dead, fake_engine(ping=(200, "")) as good:
        fleet = fleet_of(row("dead", url=dead.url), row("good", url=good.url))
        settings = ProbeSettings(enabled=True, interval=0.02, timeout=0.5, failures=2)
        async with probing(fleet, settings=settings):
            await dead.got(1)
            before = len(good.seen)
            assert engine_of(fleet, "dead").load.requests == 1, "a probe counts in flight"
            await good.got(before + 5)
            assert len(dead.seen) == 1, "five probes of one within one probe of the other"
            await until(fleet, lambda: not engine_of(fleet, "dead").healthy)
        assert engine_of(fleet, "good").healthy
        assert engine_of(fleet, "dead").load.requests == 0


async def test_closed_and_sleeping_engines_are_not_asked():
    async with fake_engine(ping=(200, "")) as engine, fake_engine(ping=(200, "")) as other:
        fleet = fleet_of(
            row("closed", url=engine.url, gate=CLOSED),
            row("asleep", url=engine.url, released=("weights",)),
            row("open", url=other.url),
        )
        async with probing(fleet):
            await other.got(10)
            assert engine.seen == []
            fleet.apply(table(row("closed", url=engine.url), row("open", url=other.url), seq=2))
            await engine.got(1)


async def test_engines_come_and_go_with_the_table():
    async with fake_engine(ping=(200, "")) as first, fake_engine(ping=(200, "")) as second:
        fleet = fleet_of(row("e1", url=first.url))
        async with probing(fleet):
            await first.got(1)
            fleet.apply(table(row("e2", url=second.url), seq=2))
            await second.got(1)
            count = len(first.seen)
            await second.got(10)
            assert len(first.seen) <= count + 1
            assert [task.get_name() for task in _probes()] == ["probe e2"]


def _probes():
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]


async def test_switched_off_it_asks_nobody():
    fleet = fleet_of(row("e1"))
    async with probing(fleet, settings=ProbeSettings(enabled=False)):
        assert _probes() == []
        assert not any("Prober" in repr(hook) for hook in fleet.on_change)


async def test_the_timer_lets_engines_in_again():
    clock = MonotonicClock()
    fleet = fleet_of(row("e1"), row("e2"), clock=clock)
    passive = PassiveHealth(failures=1, eject_for=0.02)
    tracker = HealthTracker(fleet, clock=clock, passive=passive, probe=ProbeSettings())
    timer = EjectionTimer(tracker, clock=clock)
    timer.start()
    for engine in fleet.engines():
        tracker.connect_failed(engine)
        assert not engine.healthy
    await until(fleet, lambda: all(engine.healthy for engine in fleet.engines()))
    tracker.connect_failed(engine_of(fleet, "e1"))
    timer.close()
    assert tracker.next_deadline is not None
