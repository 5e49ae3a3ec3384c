"""A request that may not be started any more when its bytes are to be written: none, or not all, go."""

import asyncio
import socket

import pytest

from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.upstream import UpstreamPool
from tests.http.client import ask, read_all, until
from tests.http.fake_engine import OK, Wire, fake_engine
from tests.http.test_upstream_failures import answer_one, engine_with_reused, failure_of, fin, rst


class Leave:
    """Whether requests may be started; counts how often it was asked."""

    def __init__(self) -> None:
        self.given = True
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.given


async def test_nothing_is_sent_that_was_withheld_while_connecting(pool: UpstreamPool) -> None:
    """The engine takes the connection only after the process has stood still."""
    leave = Leave()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        attempt = asyncio.create_task(ask(pool, url, may_start=leave))
        await asyncio.sleep(0)
        assert leave.asked == 0
        leave.given = False
        failed = await failure_of(attempt)

        listener.settimeout(5)
        engine, _ = listener.accept()
        with engine:
            engine.settimeout(5)
            try:
                received = engine.recv(1)
            except ConnectionResetError:
                received = b""
    assert received == b""
    assert failed.failure is Failure.WITHHELD
    assert failed.unsent


async def test_nothing_is_sent_on_a_reused_connection_either(pool: UpstreamPool) -> None:
    leave = Leave()
    async with engine_with_reused(pool, fin, later=answer_one) as engine:
        leave.given = False
        failed = await failure_of(ask(pool, engine.url, may_start=leave))

        assert failed.failure is Failure.WITHHELD
        await until(lambda: pool.open == 0)
        assert len(engine.received) == 1, "only the first one, that made the connection"


@pytest.mark.parametrize(
    ("how", "failure"), [(fin, Failure.CLOSED_BEFORE_ANSWER), (rst, Failure.WITHHELD)]
)
async def test_nothing_is_sent_again_that_is_withheld_by_then(
    pool: UpstreamPool, how: object, failure: Failure
) -> None:
    """After a FIN the engine may have taken it, so that nobody else may get it."""
    leave = Leave()

    async def on_second(wire: Wire) -> None:
        leave.given = False
        await how(wire)  # type: ignore[operator]

    async with engine_with_reused(pool, on_second, later=answer_one) as engine:
        failed = await failure_of(ask(pool, engine.url, may_start=leave))

        assert failed.failure is failure
        assert failed.unsent is (how is rst)
        assert len(engine.received) == 2


async def test_a_body_is_cut_off_before_it_is_whole(pool: UpstreamPool) -> None:
    leave = Leave()
    size = 2**26
    stalled = asyncio.Event()
    received = 0

    async def script(wire: Wire) -> None:
        nonlocal received
        await stalled.wait()
        leave.given = False
        received = len(await wire.gone())

    async with fake_engine(script) as engine:
        attempt = asyncio.create_task(ask(pool, engine.url, body=[bytes(size)], may_start=leave))
        await until(lambda: leave.asked > 1)
        stalled.set()
        failed = await failure_of(attempt)
        await until(lambda: pool.open == 0)

    assert failed.failure is Failure.WITHHELD
    assert received < size


async def test_an_answer_in_progress_is_not_touched(pool: UpstreamPool) -> None:
    leave = Leave()

    async def script(wire: Wire) -> None:
        await wire.request()
        leave.given = False
        await wire.send(OK)

    async with fake_engine(script) as engine:
        assert await read_all(await ask(pool, engine.url, may_start=leave)) == b"ok"
