"""Clients that take their time: with a head, with a body, with nothing at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from steersman.errors import Fault
from steersman.settings import PoolSettings, Timeouts
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http import limits
from tests.http.adapter import Client, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, Watched, Wire, always, fake_engine
from tests.http.refusals import recorded, refused
from tests.http.shapes import chunks, head

pytestmark = pytest.mark.usefixtures("adapter")

SHORT = 0.1
"""Seconds of a limit that is to pass."""

BEGINNINGS = {
    "a method": b"PO",
    "a target": b"POST /gen",
    "a line": b"POST /generate HTTP/1.1\r\n",
    "a half line end": b"POST /generate HTTP/1.1\r",
    "a header": b"POST /generate HTTP/1.1\r\nHost: p\r\nX-Slow: ",
    "all but the end": b"POST /generate HTTP/1.1\r\nHost: p\r\n\r",
    "an irregular one": b"POST /generate HTTP/1.0\r\nX : ".replace(b" :", b":"),
    "an empty line and more": b"\r\nPOST",
}


@asynccontextmanager
async def trickling(client: Client, data: bytes) -> AsyncIterator[None]:
    """Meanwhile a byte is sent every few milliseconds, over and over."""

    async def trickle() -> None:
        while True:
            for byte in data:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.005)  # the pace of the client

    task = asyncio.create_task(trickle())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_a_head_that_does_not_come_whole_is_not_waited_for(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.send(beginning)
        got = await refused(client, status=408)
        assert got.error["code"] == "request_timeout"
        await recorded(rig, fault=Fault.SLOW)


async def test_a_byte_now_and_then_gains_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.send(b"POST /generate HTTP/1.1\r\nHost: p\r\n")
        async with trickling(client, b"X: a\r\n"):
            await refused(client, status=408)
        await recorded(rig, fault=Fault.SLOW)


@pytest.mark.parametrize("first", [post(path=b"/nowhere"), chunks(b"0\r\n\r\n")])
async def test_the_second_head_of_a_connection_has_its_own_time(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for _ in range(3):
            await client.send(first[:20])
            await asyncio.sleep(SHORT / 4)  # well within the limit, of each head alone
            await client.send(first[20:])
            assert (await client.answer()).status in (200, 404)
            await asyncio.sleep(SHORT / 4)
        await asyncio.sleep(2 * SHORT)  # idle: that may take longer than a head
        await client.send(first[:20])
        await refused(client, status=408)
        await recorded(rig, fault=Fault.SLOW, number=4)


@pytest.mark.parametrize("first", [post(), chunks(b"0\r\n\r\n")], ids=["regular", "irregular"])
async def test_a_head_behind_a_running_request_waits_with_it(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is not up before its turn has come; but then it is."""
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await go_on.wait()
        await wire.send(OK)
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(first + b"POST /gene")
        await until(lambda: engine.received)
        await asyncio.sleep(3 * SHORT)  # longer than the limit
        go_on.set()
        assert (await client.answer()).status == 200
        await refused(client, status=408)
        await recorded(rig, fault=Fault.SLOW, number=2)


async def test_a_head_that_was_late_is_not_served_when_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post()[:-6])
        assert (await client.answer()).status == 408
        await client.send(post()[-6:], post())
        assert await client.reader.read() == b""
        assert engine.connections == 0


# --- bodies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked", "a chunk's size", "trailers"])
async def test_an_upload_that_stops_is_not_waited_for(framing: str) -> None:
    sent = {
        "length": post(b"{}")[:-1],
        "chunked": chunks(b"2\r\n{"),
        "a chunk's size": chunks(b"2\r\n{}\r\n0"),
        "trailers": chunks(b"2\r\n{}\r\n0\r\nX: a\r\n"),
    }[framing]
    pool = PoolSettings(timeouts=Timeouts(client_stall=SHORT))
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, pool=pool) as rig,
        client_of(rig) as client,
    ):
        await client.send(sent)
        assert await client.reader.read() == b""
        await until(lambda: rig.recorder.records)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.CLIENT_GONE
        assert engine.connections == 0


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_slow_upload_that_goes_on_is_waited_for(framing: str) -> None:
    pool = PoolSettings(timeouts=Timeouts(client_stall=5 * SHORT))
    body = bytes(20)
    sent = post(body) if framing == "length" else chunks(b"14\r\n%b\r\n0\r\n\r\n" % body)
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, pool=pool) as rig,
        client_of(rig) as client,
    ):
        await client.send(sent[:-20])
        for byte in sent[-20:]:
            await asyncio.sleep(SHORT / 2)  # the pace of the client
            await client.send(bytes([byte]))
        assert (await client.answer()).status == 200
        assert engine.received[0].body == body


async def test_trailers_that_never_end_are_not_waited_for() -> None:
    """They are read while the body is; of each there is a limit."""
    pool = PoolSettings(timeouts=Timeouts(client_stall=SHORT))
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, pool=pool) as rig,
        client_of(rig) as client,
    ):
        await client.send(chunks(b"2\r\n{}\r\n0\r\n"))
        async with trickling(client, b"X: a\r\n"):
            with contextlib.suppress(ConnectionError):  # it is cut, while the client sends
                assert await client.reader.read() == b""
        assert engine.connections == 0


# --- nothing at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b"", b"\r\n", post(path=b"/nowhere"), chunks(b"0\r\n\r\n")])
async def test_an_idle_connection_is_closed_in_the_end(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEEP_ALIVE", SHORT)
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(before)
        if len(before) > 2:
            assert (await client.answer()).status in (200, 404)
        assert await client.reader.read() == b""
        await until(lambda: not [*rig.adapter.connections])
        assert len(rig.recorder.records) == (len(before) > 2)


@pytest.mark.parametrize("first", [post(), chunks(b"0\r\n\r\n")], ids=["regular", "irregular"])
async def test_a_connection_that_waits_for_its_answer_is_not_idle(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEEP_ALIVE", SHORT)
    monkeypatch.setattr(limits, "HEAD_LIMIT", SHORT)
    script = Watched()
    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(first)
        await script.arrived.wait()
        await asyncio.sleep(3 * SHORT)  # longer than the limits
        assert rig.adapter.running == 1
        client.leave()
        await asyncio.wait_for(script.closed.wait(), 5)


async def test_draining_does_not_wait_for_a_head_that_does_not_come() -> None:
    async with adapter_rig() as rig, client_of(rig) as begun, client_of(rig) as lone:
        await begun.send(b"POST /gen")
        await lone.send(head(body=b"")[:-2])
        await until(lambda: len([*rig.adapter.connections]) == 2)
        rig.context.draining = True
        assert await rig.adapter.drained(timeout=20) == 0
