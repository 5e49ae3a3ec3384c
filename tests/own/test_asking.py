"""A question of our own obeys the rule of every request: counted while the gate is open."""

import asyncio

import pytest

from steersman.clock import MonotonicClock
from steersman.settings import PoolSettings, RoutingPolicy
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.asking import AskFailed, EngineAsker, NotAsked
from steersman_proxy.own.fanout import CONCURRENCY, fan_out
from steersman_proxy.routing.request import RouteRequest, Selected
from tests.observation.support import CLOSED, engine_of, fake_engine, fleet_of, row, table
from tests.own.support import own_routes


@pytest.fixture
async def upstream():
    pool = UpstreamPool(clock=MonotonicClock())
    yield pool
    await pool.close()


def gate_of_fan_out():
    """An engine's reply that waits until told, and how to tell it."""
    go_on = asyncio.Event()

    async def reply(seen):
        await go_on.wait()
        return 200, "Cache flushed."

    return reply, go_on


async def test_a_fan_out_counts_in_flight_until_its_answer_is_here():
    reply, go_on = gate_of_fan_out()
    async with fake_engine(flush_cache=reply) as engine:
        fleet = fleet_of(row("e1", url=engine.url))
        load = engine_of(fleet, "e1").load
        async with own_routes(fleet) as own:
            flushing = asyncio.create_task(own("/flush_cache"))
            await engine.got(1)
            assert load.requests == 1
            go_on.set()
            assert (await flushing).status == 200
            assert load.requests == 0


async def test_a_client_that_leaves_takes_the_questions_along():
    reply, _ = gate_of_fan_out()
    async with fake_engine(flush_cache=reply) as one, fake_engine(flush_cache=reply) as two:
        fleet = fleet_of(row("e1", url=one.url), row("e2", url=two.url))
        async with own_routes(fleet) as own:
            flushing = asyncio.create_task(own("/flush_cache"))
            await one.got(1)
            await two.got(1)
            flushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flushing
            assert [engine.load.requests for engine in fleet.engines()] == [0, 0]


async def test_a_gate_that_closes_while_the_question_waits_its_turn_stays_closed_to_it():
    """With more engines than may be asked at a time, the last ones are judged when it is theirs."""
    reply, go_on = gate_of_fan_out()
    async with fake_engine(flush_cache=reply) as engine:
        names = [f"e{i}" for i in range(CONCURRENCY + 1)]
        fleet = fleet_of(*(row(name, url=engine.url) for name in names))
        async with own_routes(fleet) as own:
            flushing = asyncio.create_task(own("/flush_cache"))
            await engine.got(CONCURRENCY)
            rows = [row(name, url=engine.url) for name in names[:-1]]
            fleet.apply(table(*rows, row(names[-1], url=engine.url, gate=CLOSED), seq=2))
            go_on.set()
            assert (await flushing).status == 200
        assert len(engine.seen) == CONCURRENCY


async def test_engines_that_must_not_be_asked(upstream):
    fleet = fleet_of(
        row("closed", gate=CLOSED), row("asleep", released=("weights",)), row("failed", failed=True)
    )
    asker = EngineAsker(upstream, engine_keys={})
    for engine in list(fleet.engines()):
        with pytest.raises(NotAsked):
            await asker.ask(engine, target="/x", timeout=1)
    gone = engine_of(fleet, "closed")
    fleet.apply(table(seq=2))
    with pytest.raises(NotAsked, match="gone"):
        await asker.ask(gone, target="/x", timeout=1)


async def test_with_rl_off_the_table_s_columns_do_not_count(upstream):
    async with fake_engine(ping=(200, "")) as server:
        fleet = fleet_of(row("e1", url=server.url, gate=CLOSED, paused=True), rl_enabled=False)
        asker = EngineAsker(upstream, engine_keys={}, rl_enabled=False)
        answer = await asker.ask(engine_of(fleet, "e1"), target="/ping", timeout=5)
        assert answer.ok


async def test_a_silent_engine_costs_the_timeout_and_says_so(upstream):
    reply, _ = gate_of_fan_out()
    async with fake_engine(ping=reply) as server:
        fleet = fleet_of(row("e1", url=server.url))
        asker = EngineAsker(upstream, engine_keys={})
        with pytest.raises(AskFailed, match=r"within 0\.05 s") as failed:
            await asker.ask(engine_of(fleet, "e1"), target="/ping", timeout=0.05)
        assert failed.value.timeout
        assert engine_of(fleet, "e1").load.requests == 0


async def test_a_url_that_cannot_be_dialled_is_a_failure_and_not_a_crash(upstream):
    fleet = fleet_of(row("e1", url="ftp://nowhere"))
    asker = EngineAsker(upstream, engine_keys={})
    with pytest.raises(AskFailed):
        await asker.ask(engine_of(fleet, "e1"), target="/ping", timeout=1)
    assert engine_of(fleet, "e1").load.requests == 0


async def test_row_51_a_key_that_cannot_be_sent_is_not_shown(upstream):
    async with fake_engine(ping=(200, "")) as server:
        fleet = fleet_of(row("e1", url=server.url))
        asker = EngineAsker(upstream, engine_keys={"main": "sec\r\nret"})
        with pytest.raises(AskFailed) as failed:
            await asker.ask(engine_of(fleet, "e1"), target="/ping", timeout=1)
        assert "ret" not in str(failed.value)
        assert server.seen == []


async def test_questions_keep_the_order_of_loads_true(upstream):
    """``load_only`` finds the least loaded engine in an index that questions must move too."""
    reply, go_on = gate_of_fan_out()
    async with fake_engine(ping=reply) as server:
        settings = PoolSettings(policy=RoutingPolicy.LOAD_ONLY)
        rows = (row("e1", url=server.url), row("e2"))
        fleet = fleet_of(*rows, settings=settings)
        asker = EngineAsker(upstream, engine_keys={})
        asking = asyncio.create_task(asker.ask(engine_of(fleet, "e1"), target="/ping", timeout=30))
        await server.got(1)
        chosen = []
        for _ in range(3):
            selected = fleet.select(RouteRequest(pool="main"))
            assert isinstance(selected, Selected)
            chosen.append(selected.engine.id)
        assert chosen[0] == "e2"
        assert sorted(chosen) == ["e1", "e2", "e2"]
        go_on.set()
        await asking


async def test_a_fan_out_is_bounded():
    running = most = 0

    async def ask(engine):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return engine.id

    fleet = fleet_of(*(row(f"e{i}") for i in range(100)))
    result = await fan_out(fleet.engines(), ask)
    assert [told for _, told in result.answered] == [engine.id for engine in fleet.engines()]
    assert most == CONCURRENCY
