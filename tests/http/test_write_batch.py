"""What is held back until the end of a turn of the loop: its order, and what happens meanwhile."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http.connection import Connection
from steersman_proxy.http.write_batch import WriteBatch
from tests.http.adapter import AdapterRig, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import Wire, fake_engine

BODY = b'{"metadata":{"weight_version":"7"}}'
WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    + BODY
)


async def answering(wire: Wire) -> None:
    while True:
        await wire.request()
        await wire.send(WHOLE)


def at_the_end_of_the_turn(rig: AdapterRig, do: Callable[[Connection], None]) -> None:
    """Do something once, between the choice of an engine and the write of the request."""
    add = rig.upstream.writes.add_request

    def and_do(connection: Connection) -> None:
        rig.upstream.writes.add_request = add  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(do, connection)
        add(connection)

    rig.upstream.writes.add_request = and_do  # type: ignore[method-assign, assignment]


class _Batch(WriteBatch):
    """One that can be listened to."""

    __slots__ = ("__dict__",)


@pytest.fixture(autouse=True)
def _batches_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steersman_proxy.http.upstream.WriteBatch", _Batch)


async def test_a_request_whose_engine_is_fenced_meanwhile_is_not_written() -> None:
    async with (
        fake_engine(answering) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post()
        fenced = True
        asked = 0

        def fenced_out(_: object) -> bool:
            nonlocal asked
            asked += 1
            return fenced

        rig.fleet.fenced_out = fenced_out  # type: ignore[method-assign, assignment]
        await client.send(post())
        await until(lambda: asked)
        assert len(engine.received) == 1
        fenced = False
        rig.apply()
        assert (await client.answer()).status == 200
        assert len(engine.received) == 2


async def test_a_client_that_leaves_meanwhile_costs_its_engine_nothing() -> None:
    async with fake_engine(answering) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.post()
            (front,) = rig.adapter.connections
            at_the_end_of_the_turn(rig, lambda _: front.drop())  # type: ignore[attr-defined]
            await client.send(post())
            await until(lambda: len(rig.recorder.records) == 2)
        assert rig.recorder.records[1].outcome is Outcome.CLIENT_GONE
        async with client_of(rig) as client:
            assert (await client.post()).status == 200
        assert len(engine.received) == 2


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_connection_that_is_lost_meanwhile_is_replaced(how: str) -> None:
    async with (
        fake_engine(answering) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post()

        def lose(connection: Connection) -> None:
            if how == "reset":
                connection.connection_lost(ConnectionResetError())
            else:
                connection.eof_received()

        at_the_end_of_the_turn(rig, lose)
        answer = await client.post()
        assert (answer.status, answer.body) == (200, BODY)
        assert len(engine.received) == 2


async def test_an_engine_that_speaks_before_it_is_asked_is_not_believed() -> None:
    async with (
        fake_engine(answering) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post()

        def speak(connection: Connection) -> None:
            false = WHOLE.replace(b"weight", b"Weight")
            memoryview(connection.get_buffer(-1))[: len(false)] = false
            connection.buffer_updated(len(false))

        at_the_end_of_the_turn(rig, speak)
        answer = await client.post()
        assert (answer.status, answer.body) == (200, BODY)
        assert len(engine.received) == 2


async def test_pipelined_answers_of_one_turn_keep_their_order() -> None:
    async def counting(wire: Wire) -> None:
        while True:
            request = await wire.request()
            body = BODY[:-1] + b',"n":%b}' % request.body
            head = WHOLE[: -len(BODY)].replace(b"%d" % len(BODY), b"%d" % len(body))
            await wire.send(head + body)

    async with (
        fake_engine(counting) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post(b"0")
        requests = [post(b"%d" % number) for number in range(1, 30)]
        # A refusal of our own is written at once, and must not overtake an answer that is held.
        await client.send(b"".join(requests) + post(path=b"/nowhere"))
        for number in range(1, 30):
            answer = await client.answer()
            assert answer.body.endswith(b'"n":%d}' % number)
        assert (await client.answer()).status == 404


async def test_an_answer_is_written_before_its_connection_is_closed() -> None:
    async with (
        fake_engine(answering) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.post()
        (front,) = rig.adapter.connections
        batch = rig.upstream.writes
        add = batch.add_answer

        def and_close(held: object) -> None:
            add(held)  # type: ignore[arg-type]
            assert front._held  # type: ignore[attr-defined]
            batch.add_answer = add  # type: ignore[method-assign]
            front._close()  # type: ignore[attr-defined]

        batch.add_answer = and_close  # type: ignore[method-assign, assignment]
        answer = await client.post()
        assert (answer.status, answer.body) == (200, BODY)
        assert await client.reader.read() == b""


async def test_a_write_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = []

    class Held:
        def __init__(self, name: str) -> None:
            self.name = name

        def write_held(self) -> None:
            if self.name == "bad":
                raise ZeroDivisionError("a test")
            written.append(self.name)

    batch = WriteBatch()
    batch.add_answer(Held("answer"))
    batch.add_request(Held("bad"))
    batch.add_request(Held("request"))
    with caplog.at_level(logging.ERROR, logger="steersman.http"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert written == ["request", "answer"]
    assert "a fault of the proxy at a write" in caplog.text
    batch.add_answer(Held("again"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written == ["request", "answer", "again"]
