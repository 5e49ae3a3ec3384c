"""The shortest way of a request is left at any moment, and nobody sees that."""

import asyncio
import socket

import pytest

from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http.splice.lane import Lane
from tests.http.adapter import AdapterRig, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import STREAM, Wire, fake_engine

pytestmark = pytest.mark.usefixtures("adapter")

BODY = b'{"metadata":{"weight_version":"7"}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
WHOLE = HEAD % len(BODY) + BODY

ANSWERS = {
    "whole": ([WHOLE], BODY),
    "in parts": ([WHOLE[:-10], WHOLE[-10:]], BODY),
    "stream": ([STREAM + b"5\r\nhello\r\n", b"0\r\n\r\n"], b"hello"),
    "another version": ([WHOLE.replace(b'"7"', b'"8"')], BODY.replace(b'"7"', b'"8"')),
    "broken": ([WHOLE[:-10]], b""),
}


def remove(rig: AdapterRig) -> None:
    """A table that knows the engine no more."""
    rig.urls = ()
    rig.apply()


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_engine_that_leaves_the_table_meanwhile_still_answers(kind: str) -> None:
    parts, body = ANSWERS[kind]
    arrived, go_on = asyncio.Event(), asyncio.Event()
    first = True

    async def script(wire: Wire) -> None:
        nonlocal first
        await wire.request()
        if first:
            first = False
            await wire.send(WHOLE)
            await wire.request()
        arrived.set()
        await go_on.wait()
        for part in parts:
            await wire.send(part)
        if kind != "broken":
            await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        assert (await client.post()).status == 200  # so that a connection is idle
        await client.send(post())
        await arrived.wait()
        (state,) = rig.fleet.engines()
        remove(rig)
        go_on.set()
        answer = await client.answer()
        assert answer.status == (502 if kind == "broken" else 200)
        if kind != "broken":
            assert (answer.body, answer.whole) == (body, True)
            expected = b"8" if kind == "another version" else b"7"
            assert answer.values(b"x-smg-weight-version") == [expected]
        await until(lambda: len(rig.recorder.records) == 2)
        assert state.load.requests == 0
        assert rig.adapter.running == 0


@pytest.mark.parametrize("how", ["cut", "stale", "leave"])
async def test_a_request_of_an_engine_that_left_can_be_ended(how: str) -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()
    first = True

    async def script(wire: Wire) -> None:
        nonlocal first
        await wire.request()
        if first:
            first = False
            await wire.send(WHOLE)
            await wire.request()
        arrived.set()
        await wire.gone()
        closed.set()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        assert (await client.post()).status == 200
        await client.send(post())
        await arrived.wait()
        (state,) = rig.fleet.engines()
        remove(rig)
        if how == "cut":
            rig.adapter.cut(state.id, "a test")
            assert (await client.answer()).status == 503
        elif how == "stale":
            rig.adapter.sweep(rig.context.clock.now() + 1e6)
            assert (await client.answer()).status == 504
        else:
            client.leave()
        await closed.wait()
        await until(lambda: state.load.requests == 0 and rig.adapter.running == 0)


async def test_an_answer_is_not_over_before_its_client_has_it() -> None:
    body = b'{"text":"%b","metadata":{"weight_version":"7"}}' % (b"x" * 2**22)

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(HEAD % len(body) + body)

    loop = asyncio.get_running_loop()
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", rig.port))
            await loop.sock_sendall(sock, post())
            await until(lambda: any(client.writing_paused for client in rig.adapter.connections))
            assert rig.adapter.running == 1
            assert rig.in_flight == 1
            drained = asyncio.create_task(rig.adapter.drained(timeout=30))
            got = b""
            while len(got) < len(body) or not got.endswith(body[-40:]):
                part = await loop.sock_recv(sock, 2**20)
                assert part
                got += part
            assert await drained == 0
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.OK
        assert record.answer_bytes == len(body)


async def test_a_client_that_leaves_within_an_answer_that_is_collected_has_seen_nothing() -> None:
    arrived = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(WHOLE)
        await wire.request()
        await wire.send(WHOLE[:-10])
        arrived.set()
        await wire.gone()

    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.post()
            await client.send(post())
            await arrived.wait()
            (connection,) = rig.upstream._connections
            await until(
                lambda: connection._attempt is not None and connection._attempt.framing.begun
            )
            client.leave()
        await until(lambda: len(rig.recorder.records) == 2)
        record = rig.recorder.records[1]
        assert (record.outcome, record.status) == (Outcome.CLIENT_GONE, None)


@pytest.mark.parametrize("parts", [[WHOLE], [WHOLE[:-10], WHOLE[-10:]]], ids=["whole", "in parts"])
@pytest.mark.parametrize("where", ["answer", "answer_whole", "_expected", "_stamped", "_close"])
async def test_a_fault_of_ours_sends_nothing_again(
    parts: list[bytes], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = True

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            for part in [WHOLE] if first else parts:
                await wire.send(part)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a test")

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post()
        first = False
        monkeypatch.setattr(Lane, where, fail)
        answer = await client.post()
        assert (answer.status, answer.body) == (200, BODY)
        assert len(engine.received) == 2
        await until(lambda: rig.in_flight == 0 and rig.adapter.running == 0)
        monkeypatch.undo()
        assert (await client.post()).status == 200
