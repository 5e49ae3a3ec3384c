"""Pause, resume, sleep and wake under traffic, and what the engines themselves say of it."""

import asyncio

import pytest

from tests.real_engine.conftest import PROMPT, Checkpoints
from tests.real_engine.engines import RealEngine
from tests.real_engine.fleet import POOL, done, fleet_of, traffic

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

TOKENS = 60
"""Of a request; so that some are in flight whenever something is changed."""

WORK = "/v1/completions"


async def state(engine: RealEngine) -> tuple[bool, str | None]:
    """Whether it is paused, and its memory; asked beside the traffic, which has this loop."""
    return await asyncio.to_thread(lambda: (engine.paused, engine.sleep_state))


def trespasses(engine: RealEngine, since: int) -> list[str]:
    """Requests that ended on an engine while it was paused or asleep."""
    found, out = [], False
    for received in engine.received(since):
        path = received.target.partition("?")[0]
        if path in ("/pause", "/sleep"):
            out = True
        elif path in ("/resume", "/wake_up"):
            out = False
        elif path == WORK and out:
            found.append(str(received))
    return found


async def test_one_engine_after_the_other_is_taken_out_and_back_under_traffic(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    expected = await asyncio.to_thread(lambda: engines[0].greedy(PROMPT, tokens=TOKENS))
    marks = [engine.mark() for engine in engines]
    async with fleet_of(engines) as fleet, traffic(fleet, PROMPT, tokens=TOKENS) as clients:
        await clients.until(4)
        for number, engine in enumerate(engines):
            name = f"e{number}"
            await done(fleet, "pause", POOL, "--engine", name)
            assert await state(engine) == (True, "awake")
            await clients.until(2)
            await done(fleet, "resume", POOL, "--engine", name)
            assert await state(engine) == (False, "awake")

            await done(fleet, "sleep", POOL, "--engine", name)
            assert await state(engine) == (True, "weights_offloaded")
            await clients.until(2)
            await done(fleet, "wake", POOL, "--engine", name)
            assert await state(engine) == (False, "awake")
        await clients.until(4)

    assert clients.broken == []
    # The other engine served all the while: nobody was refused anything.
    assert {answer.status for answer in clients.answers} == {200}
    assert {(one.text, one.finish, one.version) for one in clients.answers} == {
        (expected, "length", "1")
    }
    assert {one.engine for one in clients.answers} == {engine.url for engine in engines}
    for engine, mark in zip(engines, marks, strict=True):
        assert trespasses(engine, mark) == []


async def test_the_whole_pool_is_taken_out_and_back_under_traffic(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    marks = [engine.mark() for engine in engines]
    async with fleet_of(engines) as fleet, traffic(fleet, PROMPT, tokens=TOKENS) as clients:
        await clients.until(4)
        await done(fleet, "pause", POOL)
        assert [await state(engine) for engine in engines] == [(True, "awake")] * 2
        answered = len(clients.answers)
        await done(fleet, "resume", POOL)
        await clients.until(4)
        # What came meanwhile was held, and neither sent nor refused.
        assert {one.status for one in clients.answers} == {200}
        assert len(clients.answers) > answered

        await done(fleet, "sleep", POOL)
        assert [await state(engine) for engine in engines] == [(True, "weights_offloaded")] * 2
        await done(fleet, "wake", POOL)
        assert [await state(engine) for engine in engines] == [(False, "awake")] * 2
        await clients.until(4)

    assert clients.broken == []
    assert not clients.undocumented
    assert {one.code for one in clients.answers} <= {None, "no_available_workers"}
    assert {one.finish for one in clients.good} == {"length"}
    for engine, mark in zip(engines, marks, strict=True):
        assert trespasses(engine, mark) == []


async def test_what_somebody_else_pauses_gets_no_requests(engines: list[RealEngine]) -> None:
    async with fleet_of(engines) as fleet:
        await asyncio.to_thread(engines[0].good, "POST", "/pause?mode=abort")
        status = await fleet.until(lambda now: now["pools"][0]["engines"][0]["external"])
        assert status["pools"][0]["engines"][0]["gate"] == "closed"
        async with traffic(fleet, PROMPT, tokens=4) as clients:
            await clients.until(10)
        assert {one.engine for one in clients.answers} == {engines[1].url}
        # Taken back by being asked for both.
        await done(fleet, "pause", POOL, "--engine", "e0")
        await done(fleet, "resume", POOL, "--engine", "e0")
        assert await state(engines[0]) == (False, "awake")
