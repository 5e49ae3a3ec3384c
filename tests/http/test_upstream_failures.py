"""How attempts fail, what is sent again, and what is known about it afterwards."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from steersman.settings import Timeouts
from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.upstream import AttemptFailed, UpstreamPool
from tests.http.client import TIMEOUTS, ask, read_all, until
from tests.http.fake_engine import OK, FakeEngine, Script, Wire, fake_engine, once

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


async def failure_of(attempt: Awaitable[object]) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        await attempt
    return caught.value


# --- Row 26: the engine dies in the middle ---------------------------------------------------------


@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize(
    "head",
    [CHUNKED, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"],
    ids=["chunked", "length"],
)
async def test_row_26_a_body_cut_short_is_never_a_proper_end(
    pool: UpstreamPool, head: bytes, then: str
) -> None:
    """litellm#33404, #39748."""
    first_part_read = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(
            head + (b"%x\r\n%b\r\n" % (len(EVENT), EVENT) if head is CHUNKED else EVENT)
        )
        await first_part_read.wait()
        if then == "reset":
            wire.reset()
        else:
            await wire.close()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        assert await answer.read() == EVENT
        first_part_read.set()
        failed = await failure_of(answer.read())
        assert failed.failure is Failure.INCOMPLETE
        assert not failed.unsent
        assert not answer.complete
        await until(lambda: pool.open == 0)
        assert len(engine.received) == 1


async def test_row_26_a_reset_is_no_end_of_a_body_that_ends_with_the_connection(
    pool: UpstreamPool,
) -> None:
    part_read = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nsome bytes")
        await part_read.wait()
        wire.reset()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        assert await answer.read() == b"some bytes"
        part_read.set()
        assert (await failure_of(answer.read())).failure is Failure.INCOMPLETE


async def test_what_came_before_the_failure_is_still_read(pool: UpstreamPool) -> None:
    async with fake_engine(once(CHUNKED + b"5\r\nhello\r\n", then="close")) as engine:
        answer = await ask(pool, engine.url)
        await until(lambda: pool.open == 0)
        assert await answer.read() == b"hello"
        assert (await failure_of(answer.read())).failure is Failure.INCOMPLETE


@pytest.mark.parametrize("cut", [1, 12, 17, 30])
async def test_a_head_cut_short(pool: UpstreamPool, cut: int) -> None:
    async with fake_engine(once(OK[:cut], then="close")) as engine:
        failed = await failure_of(ask(pool, engine.url))
        assert failed.failure is Failure.INCOMPLETE
        assert not failed.unsent
        assert engine.connections == 1


# --- Connecting ------------------------------------------------------------------------------------


async def test_nobody_listens(pool: UpstreamPool, free_port: int) -> None:
    failed = await failure_of(ask(pool, f"http://127.0.0.1:{free_port}"))
    assert failed.failure is Failure.CONNECT_REFUSED
    assert failed.unsent
    assert pool.open == 0


async def test_a_name_that_is_nobody(pool: UpstreamPool) -> None:
    failed = await failure_of(ask(pool, "http://engine.invalid:1"))
    assert failed.failure is Failure.CONNECT_REFUSED


async def test_connecting_takes_too_long(pool: UpstreamPool) -> None:
    """A full accept queue: the kernel answers nothing, as a lost host would."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            timeouts = Timeouts(connect=0.05)
            failed = await failure_of(
                ask(pool, f"http://127.0.0.1:{address[1]}", timeouts=timeouts)
            )
        finally:
            for filler in fillers:
                filler.close()
    assert failed.failure is Failure.CONNECT_TIMEOUT
    assert failed.unsent
    assert "0.05 s" in str(failed)


# --- Reused connections ----------------------------------------------------------------------------


async def answer_one(wire: Wire) -> None:
    await wire.request()
    await wire.send(OK)


@asynccontextmanager
async def engine_with_reused(
    pool: UpstreamPool, on_second: Callable[[Wire], Awaitable[None]], *, later: Script
) -> AsyncIterator[FakeEngine]:
    """An engine with one idle connection, on which it does ``on_second`` with the next request."""

    async def script(wire: Wire) -> None:
        if engine.connections > 1:
            await later(wire)
            return
        await answer_one(wire)
        await wire.request()
        await on_second(wire)

    async with fake_engine(script) as engine:
        await read_all(await ask(pool, engine.url, body=[b"first"]))
        assert pool.idle(engine.url) == 1
        yield engine


async def fin(wire: Wire) -> None:
    await wire.close()


async def rst(wire: Wire) -> None:
    wire.reset()


@pytest.mark.parametrize("how", [fin, rst])
async def test_a_reused_connection_that_closes_without_a_byte_is_replaced_once(
    pool: UpstreamPool, how: Callable[[Wire], Awaitable[None]]
) -> None:
    body = [b"second", b" request" * 40_000]
    async with engine_with_reused(pool, how, later=answer_one) as engine:
        assert await read_all(await ask(pool, engine.url, body=body)) == b"ok"
        assert engine.connections == 2
        assert [request.body[:6] for request in engine.received] == [b"first", b"second", b"second"]
        assert engine.received[1] == engine.received[2]


@pytest.mark.parametrize("how", [fin, rst])
async def test_it_is_not_replaced_twice(
    pool: UpstreamPool, how: Callable[[Wire], Awaitable[None]]
) -> None:
    async def later(wire: Wire) -> None:
        await wire.request()
        await how(wire)

    async with engine_with_reused(pool, how, later=later) as engine:
        failed = await failure_of(ask(pool, engine.url))
        assert failed.failure is Failure.CLOSED_BEFORE_ANSWER
        assert not failed.unsent
        assert len(engine.received) == 3


@pytest.mark.parametrize("how", [fin, rst])
async def test_a_fresh_connection_that_closes_without_a_byte_is_a_failure(
    pool: UpstreamPool, how: Callable[[Wire], Awaitable[None]]
) -> None:
    """sglang#19035: the engine may have taken the request, and may do so once only."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await how(wire)

    async with fake_engine(script) as engine:
        failed = await failure_of(ask(pool, engine.url))
        assert failed.failure is Failure.CLOSED_BEFORE_ANSWER
        assert not failed.unsent
        assert len(engine.received) == 1


@pytest.mark.parametrize("some", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("how", [fin, rst])
async def test_a_reused_connection_that_closes_after_some_bytes_is_a_failure(
    pool: UpstreamPool, some: bytes, how: Callable[[Wire], Awaitable[None]]
) -> None:
    sent = asyncio.Event()

    async def on_second(wire: Wire) -> None:
        await wire.send(some)
        # A reset overtakes bytes that were not read yet; these were.
        await until(lambda: any(c._attempt and c._attempt.framing.begun for c in pool._connections))
        await how(wire)
        sent.set()

    async with engine_with_reused(pool, on_second, later=answer_one) as engine:
        failed = await failure_of(ask(pool, engine.url))
        assert failed.failure is Failure.INCOMPLETE
        assert engine.connections == 1
        assert len(engine.received) == 2
        assert sent.is_set()


async def test_a_timeout_on_a_reused_connection_is_a_failure(pool: UpstreamPool) -> None:
    async def on_second(wire: Wire) -> None:
        await wire.gone()

    timeouts = Timeouts(answer_head=0.05)
    async with engine_with_reused(pool, on_second, later=answer_one) as engine:
        failed = await failure_of(ask(pool, engine.url, timeouts=timeouts))
        assert failed.failure is Failure.HEAD_TIMEOUT
        assert len(engine.received) == 2


@pytest.mark.parametrize(
    ("how", "failure"), [(fin, Failure.CLOSED_BEFORE_ANSWER), (rst, Failure.CONNECT_REFUSED)]
)
async def test_an_engine_that_is_gone_when_the_request_is_sent_again(
    pool: UpstreamPool, how: Callable[[Wire], Awaitable[None]], failure: Failure
) -> None:
    """After a FIN the engine may have read the request and died of it, and no other engine must get
    it. After a reset it has not read it."""

    async def on_second(wire: Wire) -> None:
        server = engine._server
        assert server is not None
        server.close()
        await how(wire)

    async with engine_with_reused(pool, on_second, later=answer_one) as engine:
        failed = await failure_of(ask(pool, engine.url))
        assert failed.failure is failure
        assert failed.unsent is (how is rst)


async def test_an_idle_connection_that_the_engine_closes_is_forgotten(pool: UpstreamPool) -> None:
    async def script(wire: Wire) -> None:
        await answer_one(wire)
        await wire.close()

    async with fake_engine(script) as engine:
        for _ in range(3):
            await read_all(await ask(pool, engine.url))
            await until(lambda: pool.open == 0)
            assert pool.idle(engine.url) == 0
        assert len(engine.received) == 3


# --- Timeouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 O"])
async def test_the_head_of_the_answer_is_late(pool: UpstreamPool, interim: bytes) -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(interim)
        await wire.gone()
        closed.set()

    async with fake_engine(script) as engine:
        failed = await failure_of(ask(pool, engine.url, timeouts=Timeouts(answer_head=0.05)))
        assert failed.failure is Failure.HEAD_TIMEOUT
        assert not failed.unsent
        assert "0.05 s" in str(failed)
        await asyncio.wait_for(closed.wait(), 1)


async def test_the_engine_does_not_take_the_request(pool: UpstreamPool) -> None:
    async def script(wire: Wire) -> None:
        await wire.head()
        await until(lambda: pool.open == 0)

    async with fake_engine(script) as engine:
        failed = await failure_of(
            ask(pool, engine.url, body=[bytes(2**25)], timeouts=Timeouts(answer_head=0.1))
        )
        assert failed.failure is Failure.HEAD_TIMEOUT
        assert "took nothing" in str(failed)


async def test_the_body_of_the_answer_stops(pool: UpstreamPool) -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED + b"5\r\nhello\r\n")
        await wire.gone()
        closed.set()

    timeouts = Timeouts(answer_head=20.0, stream_idle=0.05)
    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url, timeouts=timeouts)
        assert await answer.read() == b"hello"
        failed = await failure_of(answer.read())
        assert failed.failure is Failure.IDLE_TIMEOUT
        assert "0.05 s" in str(failed)
        await asyncio.wait_for(closed.wait(), 1)


async def test_a_slow_reader_is_not_the_engines_fault(pool: UpstreamPool) -> None:
    """While we do not read, the engine cannot send."""
    size = 2**22
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    timeouts = Timeouts(answer_head=20.0, stream_idle=0.2)
    async with fake_engine(once(head, bytes(size))) as engine:
        answer = await ask(pool, engine.url, timeouts=timeouts)
        await until(lambda: answer._attempt.resume is not None)
        await asyncio.sleep(0.5)  # longer than the timeout: it must not count here
        assert len(await read_all(answer)) == size


# --- What cannot be sent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        ("GET", "/a b", (b"X", b"1")),
        ("GET", "/a\r\nX: 1", (b"X", b"1")),
        ("GET", "a", (b"X", b"1")),
        ("GET", "http://other/", (b"X", b"1")),
        ("G T", "/", (b"X", b"1")),
        ("", "/", (b"X", b"1")),
        ("CONNECT", "/", (b"X", b"1")),
        ("GET", "/", (b"X", b"1\r\nY: 2")),
        ("GET", "/", (b"X", b"1\n")),
        ("GET", "/", (b"X", b"1\r")),
        ("GET", "/", (b"X", b"1\0")),
        ("GET", "/", (b"X:", b"1")),
        ("GET", "/", (b"X\r\nY", b"1")),
        ("GET", "/", (b"X\n", b"1")),
        ("GET", "/", (b"", b"1")),
        ("GET", "/", (b"X ", b"1")),
    ],
)
async def test_a_head_that_could_be_read_differently_is_not_sent(
    pool: UpstreamPool, method: str, target: str, header: tuple[bytes, bytes]
) -> None:
    async with fake_engine(once(OK)) as engine:
        with pytest.raises(ValueError, match=r"not|line break"):
            await ask(pool, engine.url, method=method, target=target, headers=[header])
        assert engine.connections == 0


async def test_a_bad_url_is_an_error_of_the_caller(pool: UpstreamPool) -> None:
    with pytest.raises(ValueError, match="ftp"):
        await pool.exchange(
            "ftp://x", method="GET", target="/", headers=[], body=[], timeouts=TIMEOUTS
        )
