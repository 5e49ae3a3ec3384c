"""Connections: how long they live, what closes them, and how much they hold."""

import asyncio
import gc
import socket
import tracemalloc

import pytest

from steersman.clock import FakeClock, MonotonicClock
from steersman.settings import Timeouts
from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.connection import MAX_BUFFERED, READ_SIZE
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.upstream import Answer, AttemptFailed, UpstreamPool
from tests.http.client import ask, read_all, until
from tests.http.fake_engine import OK, Wire, always, fake_engine, once

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class Watched:
    """A script's two moments: the request is here, and the proxy has closed."""

    def __init__(self, *answer: bytes) -> None:
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self._answer = answer

    async def __call__(self, wire: Wire) -> None:
        await wire.head()
        await wire.send(*self._answer)
        self.arrived.set()
        await wire.gone()
        self.closed.set()

    async def closes_within_a_second(self) -> None:
        await asyncio.wait_for(self.closed.wait(), 1)


# --- Closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_cancelling_before_the_head_closes(pool: UpstreamPool, before: bytes) -> None:
    script = Watched(before)
    async with fake_engine(script) as engine:
        task = asyncio.create_task(ask(pool, engine.url))
        await script.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await script.closes_within_a_second()
        await until(lambda: pool.open == 0)


async def test_cancelling_while_the_request_is_written_closes(pool: UpstreamPool) -> None:
    script = Watched()
    async with fake_engine(script) as engine:
        task = asyncio.create_task(ask(pool, engine.url, body=[bytes(2**26)]))
        await script.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await script.closes_within_a_second()


async def test_cancelling_while_connecting_leaves_nothing(pool: UpstreamPool) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            task = asyncio.create_task(ask(pool, f"http://127.0.0.1:{address[1]}"))
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            for filler in fillers:
                filler.close()
    assert pool.open == 0


@pytest.mark.parametrize("body", [b"", b"some"])
async def test_giving_an_answer_up_closes(pool: UpstreamPool, body: bytes) -> None:
    script = Watched(HEAD % 1000 + body)
    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        answer.abort()
        await script.closes_within_a_second()
        if body:
            assert await answer.read() in (body, None)
        with pytest.raises(AttemptFailed):
            await answer.read()


async def test_giving_an_answer_up_wakes_its_reader(pool: UpstreamPool) -> None:
    script = Watched(HEAD % 1000)
    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        reader = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        answer.abort()
        with pytest.raises(AttemptFailed):
            await reader
        await script.closes_within_a_second()


async def test_dropping_an_answer_closes(pool: UpstreamPool) -> None:
    script = Watched(HEAD % 1000)
    async with fake_engine(script) as engine:
        answer: Answer | None = await ask(pool, engine.url)
        assert answer is not None
        assert pool.open == 1
        del answer
        await script.closes_within_a_second()


async def test_a_reader_may_be_cancelled_and_read_on(pool: UpstreamPool) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(HEAD % 4)
        await go_on.wait()
        await wire.send(b"body")
        await wire.gone()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        reader = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        go_on.set()
        assert await read_all(answer) == b"body"


async def test_an_answer_has_one_reader(pool: UpstreamPool) -> None:
    async with fake_engine(Watched(HEAD % 4)) as engine:
        answer = await ask(pool, engine.url)
        reader = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await answer.read()
        answer.abort()
        with pytest.raises(AttemptFailed):
            await reader


async def test_closing_the_pool_closes_everything() -> None:
    pool = UpstreamPool(clock=MonotonicClock())
    busy = Watched(HEAD % 1000)
    async with fake_engine(always(OK)) as idle_engine, fake_engine(busy) as busy_engine:
        await read_all(await ask(pool, idle_engine.url))
        answer = await ask(pool, busy_engine.url)
        assert pool.open == 2
        await pool.close()
        assert pool.open == 0
        assert pool.idle(idle_engine.url) == 0
        with pytest.raises(AttemptFailed) as caught:
            await answer.read()
        assert caught.value.failure is Failure.INCOMPLETE
        await busy.closes_within_a_second()
        with pytest.raises(AttemptFailed) as caught:
            await ask(pool, idle_engine.url)
        assert caught.value.unsent
        await pool.close()


# --- Idle connections ------------------------------------------------------------------------------


async def test_an_idle_connection_is_used_below_its_limit_and_not_above() -> None:
    clock = FakeClock()
    pool = UpstreamPool(clock=clock, idle_limit=4.0)
    async with fake_engine(always(OK)) as engine:
        for age, connections in [(0.0, 1), (3.9, 1), (3.9, 1), (4.0, 2), (3.9, 2), (100.0, 3)]:
            clock.advance(age)
            await read_all(await ask(pool, engine.url))
            assert engine.connections == connections
        await until(lambda: pool.open == 1)
    await pool.close()


async def test_an_idle_connection_is_closed_at_its_limit() -> None:
    pool = UpstreamPool(clock=MonotonicClock(), idle_limit=0.05)

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await wire.gone()
        closed.set()

    closed = asyncio.Event()
    async with fake_engine(script) as engine:
        await read_all(await ask(pool, engine.url))
        await asyncio.wait_for(closed.wait(), 5)
        await until(lambda: pool.open == 0)
        assert pool.idle(engine.url) == 0
    await pool.close()


async def test_last_in_first_out_and_never_more_than_the_limit() -> None:
    pool = UpstreamPool(clock=MonotonicClock(), max_idle_per_engine=2)
    answered: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]

    async def script(wire: Wire) -> None:
        mine = engine.connections - 1
        while True:
            await wire.request()
            await gates[mine].wait()
            answered.append(mine)
            await wire.send(OK)

    async with fake_engine(script) as engine:
        tasks = []
        for number in range(3):
            tasks.append(asyncio.create_task(ask(pool, engine.url)))
            await until(lambda wanted=number + 1: len(engine.received) == wanted)
        for number in (0, 2, 1):
            gates[number].set()
            await read_all(await tasks[number])
        assert pool.idle(engine.url) == 2
        await until(lambda: pool.open == 2)
        for _ in range(2):
            await read_all(await ask(pool, engine.url))
        assert answered == [0, 2, 1, 1, 1]
        one, two = await asyncio.gather(ask(pool, engine.url), ask(pool, engine.url))
        assert sorted(answered[5:]) == [1, 2]
        assert (await read_all(one), await read_all(two)) == (b"ok", b"ok")
    await pool.close()


async def test_small_writes_are_not_delayed(pool: UpstreamPool) -> None:
    async with fake_engine(once(HEAD % 2)) as engine:
        answer = await ask(pool, engine.url)
        (connection,) = pool._connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        answer.abort()


# --- Big bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["one part", "parts"])
async def test_a_big_request_arrives_whole(pool: UpstreamPool, shape: str) -> None:
    unit = bytes(range(256)) * 256
    body = [unit * 128] if shape == "one part" else [unit[: 100 + n] for n in range(3000)]
    async with fake_engine(always(OK)) as engine:
        for _ in range(2):
            assert await read_all(await ask(pool, engine.url, body=body)) == b"ok"
        assert engine.connections == 1
        assert all(request.body == b"".join(body) for request in engine.received)


async def test_row_28_a_big_request_is_not_copied(pool: UpstreamPool) -> None:
    """sglang#38714: the body is in memory once."""
    size = 100 * 2**20

    async def script(wire: Wire) -> None:
        await wire.head()
        left = size
        while left:
            left -= len(await wire._reader.read(2**16))
        await wire.send(OK)

    body = [bytes(size)]
    async with fake_engine(script) as engine:
        tracemalloc.start()
        try:
            assert await read_all(await ask(pool, engine.url, body=body)) == b"ok"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize("status", [b"413 Content Too Large", b"400 Bad Request"])
async def test_an_early_refusal_is_delivered_and_the_rest_not_sent(
    pool: UpstreamPool, status: bytes
) -> None:
    size = 2**26
    rest = asyncio.get_running_loop().create_future()

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: 4\r\n\r\nstop")
        rest.set_result(len(await wire.gone()))

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url, body=[bytes(size)])
        assert answer.status == int(status[:3])
        assert await read_all(answer) == b"stop"
        assert await asyncio.wait_for(rest, 5) < size
        assert pool.idle(engine.url) == 0


async def test_an_early_good_answer_does_not_stop_the_request(pool: UpstreamPool) -> None:
    """An engine may answer while it reads."""
    size = 2**25

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(HEAD % 8)
        total = len(await wire._reader.readexactly(size))
        await wire.send(b"%08d" % total)
        await wire.gone()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url, body=[bytes(size)])
        assert await read_all(answer) == b"%08d" % size
        assert pool.idle(engine.url) == 1


async def test_an_answer_that_nobody_reads_stops_the_engine(pool: UpstreamPool) -> None:
    """At most 96 KiB wait here; the rest waits in the engine and the kernel."""
    unit = bytes(range(256)) * 256
    count = 1024
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.request()
        await wire.send(HEAD % (count * len(unit)))
        for _ in range(count):
            await wire.send(unit)
            sent += 1
        await wire.gone()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        framing = answer._attempt.framing
        await until(lambda: answer._attempt.resume is not None)
        before = -1
        while before != sent:
            before = sent
            for _ in range(20):
                await asyncio.sleep(0.002)
        assert sent < count
        assert MAX_BUFFERED - READ_SIZE < framing.size <= MAX_BUFFERED
        biggest = 0
        total = 0
        while (part := await answer.read()) is not None:
            start = total % 256
            assert part == (unit * (len(part) // len(unit) + 2))[start : start + len(part)]
            total += len(part)
            biggest = max(biggest, len(part))
        assert total == count * len(unit)
        assert biggest <= MAX_BUFFERED
        assert pool.idle(engine.url) == 1
        # It is read from again: the next answer arrives, and so would the engine's closing.
        assert not next(iter(pool._connections))._read_paused


# --- Nothing is left behind ------------------------------------------------------------------------


async def test_exchanges_leave_nothing_for_the_garbage_collector(pool: UpstreamPool) -> None:
    def left() -> int:
        return sum(
            isinstance(thing, Attempt | AnswerFraming | Answer) for thing in gc.get_objects()
        )

    async with fake_engine(always(OK)) as engine:
        await read_all(await ask(pool, engine.url))
        gc.collect()
        gc.disable()
        try:
            before = left()
            for _ in range(50):
                await read_all(await ask(pool, engine.url))
            assert left() == before
        finally:
            gc.enable()


async def test_a_closed_connection_leaves_no_timer(pool: UpstreamPool) -> None:
    """One that waits half an hour would keep the connection in memory for as long."""
    script = Watched(HEAD % 1000)
    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url, timeouts=Timeouts())
        (connection,) = pool._connections
        assert connection._deadline._handle is not None
        answer.abort()
        assert connection._deadline._handle is None
        await until(lambda: pool.open == 0)
