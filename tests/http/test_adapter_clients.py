"""Clients that leave, stall, wait and are shut down on."""

import asyncio
import socket

import pytest

from steersman.settings import HoldSettings, PoolSettings, Timeouts
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import Outcome, Serve
from steersman_proxy.http.limits import WRITE_LIMIT
from steersman_proxy.own.answer import OwnAnswer, json_answer
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import JSON, OK, STREAM, Watched, Wire, always, fake_engine

pytestmark = pytest.mark.usefixtures("adapter")


@pytest.mark.parametrize(
    ("answer", "reads"),
    [
        ([], False),
        ([STREAM], True),
        ([STREAM, b"5\r\nhello\r\n"], True),
        ([JSON], False),
        ([JSON, b'{"a":'], False),
    ],
    ids=["no head", "head of a stream", "part of a stream", "head of JSON", "part of JSON"],
)
async def test_row_25_the_engine_sees_a_client_leave_within_a_second(
    answer: list[bytes], reads: bool
) -> None:
    """smg#2136, sglang#19524: also before the first byte, streamed and buffered."""
    script = Watched(*answer)
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(post(b'{"stream":true}'))
            await script.arrived.wait()
            if reads:
                await client.head()
                if len(answer) > 1:
                    assert await client.chunk() == b"hello"
            assert rig.in_flight == 1
            client.leave()
            await asyncio.wait_for(script.closed.wait(), 1)
        await until(lambda: rig.in_flight == 0)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.CLIENT_GONE
        assert rig.recorder.failures == []
        assert rig.recorder.unreachable == []
        await until(lambda: rig.upstream.open == 0)


async def test_a_client_that_leaves_in_its_upload_reaches_no_engine() -> None:
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(post(bytes(1000))[:-1])
            await until(lambda: rig.adapter.running)
            client.leave()
            await until(lambda: not rig.adapter.running)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.CLIENT_GONE
        assert engine.connections == 0


async def test_a_client_that_leaves_ends_what_our_own_route_asks() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(action: Serve) -> OwnAnswer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return json_answer("never")

    async with adapter_rig() as rig, client_of(rig) as client:
        rig.own.serve_with = serve
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n")
        await asked.wait()
        client.leave()
        await asyncio.wait_for(ended.wait(), 1)
        await until(lambda: rig.recorder.records)


# --- Holding ----------------------------------------------------------------------------------------


async def test_a_held_request_is_sent_when_the_gate_opens() -> None:
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url) as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client:
            await client.send(post())
            await until(lambda: rig.hold.depth("p") == 1)
            assert engine.connections == 0
            rig.apply(gates_open=True)
            assert (await client.answer()).status == 200
        (record,) = rig.recorder.records
        assert record.held > 0


async def test_a_held_request_fails_when_its_time_is_up() -> None:
    pool = PoolSettings(hold=HoldSettings(timeout=0.05))
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url, pool=pool) as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client:
            got = await client.post()
            assert got.status == 503
            assert got.error["code"] == "hold_timeout"
            assert got.values(b"retry-after")
        assert engine.connections == 0


async def test_a_client_that_leaves_leaves_the_queue() -> None:
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url) as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client, client_of(rig) as other:
            await client.send(post(b'"first"'))
            await until(lambda: rig.hold.depth("p") == 1)
            await other.send(post(b'"second"'))
            await until(lambda: rig.hold.depth("p") == 2)
            client.leave()
            await until(lambda: rig.hold.depth("p") == 1)
            rig.apply(gates_open=True)
            assert (await other.answer()).status == 200
        assert [request.body for request in engine.received] == [b'"second"']


# --- Stalling ---------------------------------------------------------------------------------------


async def endless(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        await wire.send(bytes(2**16))


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    pool = PoolSettings(timeouts=Timeouts(client_stall=0.2))
    async with fake_engine(endless) as engine, adapter_rig(engine.url, pool=pool) as rig:
        async with client_of(rig) as client:
            await client.send(post())
            await until(lambda: rig.recorder.records)
            assert rig.recorder.records[0].outcome is Outcome.CLIENT_GONE
            assert not (await client.reader.read()).endswith(b"0\r\n\r\n")
        await until(lambda: rig.upstream.open == 0)
        assert rig.in_flight == 0


async def test_a_slow_client_is_not_cut_off() -> None:
    """It takes longer than the limit to take what waits, but it takes something all the time."""
    size, stall = 2**24, 0.5
    pool = PoolSettings(timeouts=Timeouts(client_stall=stall))

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, bytes(size))
        await wire.gone()

    loop = asyncio.get_running_loop()
    async with fake_engine(script) as engine, adapter_rig(engine.url, pool=pool) as rig:
        with socket.socket() as sock:
            # Little room in the client's kernel, so that what it takes is what it reads.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", rig.port))
            await loop.sock_sendall(sock, post())
            head = await loop.sock_recv(sock, 2**12)
            got = len(head) - head.index(b"\r\n\r\n") - 4
            (connection,) = rig.adapter.connections
            await until(lambda: connection.writing_paused)
            end = loop.time() + 3 * stall
            while loop.time() < end:
                got += len(await loop.sock_recv(sock, 2**13))
                await asyncio.sleep(0.05)  # the pace of a slow client
            assert rig.recorder.records == []
            while got < size:
                got += len(await loop.sock_recv(sock, 2**20))
            assert got == size


async def test_a_client_is_not_cut_off_because_the_kernel_made_room() -> None:
    """The kernel grows the socket's buffer, and takes over ours, while the client takes nothing."""
    size = WRITE_LIMIT + 2**14
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % size
    loop = asyncio.get_running_loop()
    async with (
        fake_engine(always(answer + bytes(size))) as engine,
        adapter_rig(engine.url) as rig,
    ):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", rig.port))
            await until(lambda: rig.adapter.connections)
            (connection,) = rig.adapter.connections
            assert connection.transport is not None
            served = connection.transport.get_extra_info("socket")
            served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**12)
            await loop.sock_sendall(sock, post())
            await until(lambda: connection.writing_paused)
            served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
            await until(lambda: not connection.writing_paused or rig.recorder.records)
            got = await loop.sock_recv(sock, 2**12)
            size += got.index(b"\r\n\r\n") + 4
            taken = len(got)
            while taken < size and (got := await loop.sock_recv(sock, 2**20)):
                taken += len(got)
            assert taken == size
            await until(lambda: rig.recorder.records)
        assert rig.recorder.records[0].outcome is Outcome.OK


async def test_the_kernel_gives_up_a_client_that_takes_nothing_after_the_end() -> None:
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.post(path=b"/nowhere")
        (connection,) = rig.adapter.connections
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 600_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# --- Faults of ours ---------------------------------------------------------------------------------


async def test_a_fault_of_ours_is_500_in_our_own_words(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(action: Serve) -> OwnAnswer:
        raise LookupError("a bug")

    async with adapter_rig() as rig, client_of(rig) as client:
        rig.own.serve_with = serve
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n")
        got = await client.answer()
        assert got.status == 500
        assert b"a bug" not in got.body
        assert got.error["type"] == "server_error"
        assert got.values(b"connection") == [b"close"]
    assert "a bug" in caplog.text


async def test_a_fault_of_ours_within_an_answer_breaks_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(exchange: Exchange) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(Exchange, "answer_end", fail)
    answer = STREAM + b"5\r\nhello\r\n0\r\n\r\n"
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert got.body == b"hello"
        assert not got.whole
    assert "a bug" in caplog.text


# --- Shutting down ----------------------------------------------------------------------------------


async def test_draining_waits_for_what_runs_and_closes_what_is_idle() -> None:
    script = Watched(STREAM)

    async def finish(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM)
        script.arrived.set()
        await go_on.wait()
        await wire.send(b"5\r\nhello\r\n0\r\n\r\n")
        await wire.gone()

    go_on = asyncio.Event()
    async with (
        fake_engine(finish) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as idle,
        client_of(rig) as busy,
        client_of(rig) as uploading,
    ):
        await idle.post(path=b"/nowhere")
        await busy.send(post())
        await script.arrived.wait()
        await uploading.send(post(bytes(1000), path=b"/abort_request")[:-500])
        await until(lambda: rig.adapter.running == 2)

        rig.context.draining = True
        drained = asyncio.create_task(rig.adapter.drained(timeout=20))
        assert await idle.reader.read() == b""
        assert not drained.done()
        await uploading.send(bytes(500))
        got = await uploading.answer()
        assert got.status == 200
        assert got.values(b"connection") == [b"close"]
        assert not drained.done()
        go_on.set()
        assert (await busy.answer()).body == b"hello"
        assert await drained == 0


async def test_draining_ends_at_its_limit_and_closing_cuts() -> None:
    script = Watched(STREAM)
    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        await script.arrived.wait()
        await client.head()
        assert await rig.adapter.drained(timeout=0.05) == 1
        await rig.adapter.close()
        assert await client.reader.read() == b""
        await asyncio.wait_for(script.closed.wait(), 1)
        assert rig.in_flight == 0


async def test_closing_does_not_wait_for_a_client_that_takes_nothing() -> None:
    async with (
        fake_engine(endless) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        connections = rig.adapter.connections
        await until(lambda: any(connection.writing_paused for connection in connections))
        await asyncio.wait_for(rig.adapter.close(), 2)
        assert rig.in_flight == 0
