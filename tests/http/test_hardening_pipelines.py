"""Several requests on one connection: told apart, answered in order, and never one in another."""

import asyncio
import socket
import struct

import pytest

from steersman.errors import Fault
from steersman_proxy.exchange.messages import Outcome
from tests.http.adapter import AdapterRig, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, Watched, Wire, always, fake_engine
from tests.http.refusals import recorded, refused
from tests.http.shapes import CHUNKED, ENDED, SMUGGLED, TWO, chunks, head

pytestmark = pytest.mark.usefixtures("adapter")


async def turns() -> None:
    """Let both ends take what is under way, so that parts arrive as parts."""
    for _ in range(5):
        await asyncio.sleep(0)


async def echo(wire: Wire) -> None:
    """Answers with the body that it got."""
    while True:
        request = await wire.request()
        await wire.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.body), request.body
        )


GOOD = {
    "length": post(b"[1]"),
    "no body": head(body=b"").replace(b"POST /generate", b"GET /liveness"),
    "chunked": chunks(b"3\r\n[1]\r\n0\r\n\r\n"),
    "a trailer": chunks(b"3\r\n[1]\r\n0\r\nX-Smuggled: 1\r\n\r\n"),
    "a trailer that frames": chunks(b"3\r\n[1]\r\n0\r\nContent-Length: 100\r\n\r\n"),
    "a request in a body": post(SMUGGLED),
    "a request in a chunk": chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
    "an upgrade": post(b"[1]", b"Connection: upgrade", b"Upgrade: h2c"),
    "a websocket": post(b"[1]", b"Connection: upgrade", b"Upgrade: websocket"),
    "a chunked websocket": head(
        *(b"Connection: upgrade", b"Upgrade: websocket", CHUNKED), body=b"3\r\n[1]\r\n0\r\n\r\n"
    ),
    "a URL": post(b"[1]", path=b"http://proxy/generate"),
    "an empty line after it": post(b"[1]") + b"\r\n",
    "nowhere": post(b"[1]", path=b"/nowhere"),
}


def answers_to(name: str) -> bytes:
    """What the second of two requests must not be mistaken for."""
    if name == "no body":
        return b'"ok"'
    return SMUGGLED if name.startswith("a request in") else b"[1]"


@pytest.mark.parametrize("first", GOOD)
@pytest.mark.parametrize("cut", [None, -8, -4, 0, 10], ids=str)
async def test_two_requests_are_two(first: str, cut: int | None) -> None:
    """However what is sent is cut: not at all, or so many bytes from the end of the first."""
    one, two = GOOD[first], post(b"[2]", b"X-Mine: 2")
    at = 0 if cut is None else len(one) + cut
    async with (
        fake_engine(echo) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send((one + two)[:at])
        await turns()
        await client.send((one + two)[at:])
        got = await client.answer()
        if first == "nowhere":
            assert got.status == 404
        else:
            assert (got.status, got.body) == (200, answers_to(first))
        got = await client.answer()
        assert (got.status, got.body) == (200, b"[2]")
        assert engine.received[-1].values(b"x-smuggled") == []
        assert engine.received[-1].values(b"x-mine") == [b"2"]
        assert engine.received[-1].values(b"content-length") == [b"3"]
        assert len(engine.received) == (1 if first in ("no body", "nowhere") else 2)
        assert rig.adapter.running == 0
        assert len(rig.recorder.records) == 2


async def test_a_hundred_requests_in_one_write_are_answered_in_order() -> None:
    async with (
        fake_engine(echo) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        bodies = [b"[%d]" % index for index in range(100)]
        await client.send(
            b"".join(
                chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (len(b), b)) if b[1] % 3 else post(b)
                for b in bodies
            )
        )
        assert [(await client.answer()).body for _ in bodies] == bodies
        assert [request.body for request in engine.received] == bodies


@pytest.mark.parametrize("first", ["length", "chunked"])
async def test_requests_come_while_another_one_is_answered(first: str) -> None:
    """They wait for its end; the engine sees one after the other."""
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await go_on.wait()
            await wire.send(OK)

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(GOOD[first])
        await until(lambda: engine.received)
        for byte in post(b"[2]"):
            await client.send(bytes([byte]))
        assert len(engine.received) == 1
        go_on.set()
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
        assert [request.body for request in engine.received] == [b"[1]", b"[2]"]


@pytest.mark.parametrize("first", [b"", b"Expect: 100-continue"], ids=["regular", "irregular"])
async def test_a_client_cannot_pile_requests_up(first: bytes) -> None:
    """What it sends ahead waits in its own kernel; it is served once its turn comes."""
    script = Watched()
    ahead = post(b"x" * 1000, path=b"/nowhere") * 8000
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
            (connection,) = await connected(rig)
            connection.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14
            )
            await client.send(post(b"{}", first))
            await script.arrived.wait()
            client.writer.write(ahead)
            await until(lambda: not connection.is_reading())
            assert client.writer.transport.get_write_buffer_size() > len(ahead) // 2
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.leave()
            # Not read, the client is looked for all the same.
            await asyncio.wait_for(script.closed.wait(), 3)
        await until(lambda: rig.recorder.records)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.CLIENT_GONE


@pytest.mark.parametrize("first", ["length", "chunked"])
async def test_what_waited_for_its_turn_is_served(first: str) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await go_on.wait()
        await wire.send(OK)
        await wire.gone()

    ahead = 300
    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(GOOD[first])
        await until(lambda: engine.received)
        (connection,) = await connected(rig)
        client.writer.write(post(b"x" * 1000, path=b"/nowhere") * ahead)
        await until(lambda: not connection.is_reading())
        go_on.set()
        assert (await client.answer()).status == 200
        for _ in range(ahead):
            assert (await client.answer()).status == 404
        assert connection.is_reading()


async def connected(rig: AdapterRig) -> list[asyncio.Transport]:
    """The transports of all clients."""
    await until(lambda: list(rig.adapter.connections))
    return [connection.transport for connection in rig.adapter.connections]


# --- one request hidden in another one ----------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        # Each has a reading by which SMUGGLED is a request of its own, and one by which it is not.
        head(b"Content-Length: %d" % (5 + len(SMUGGLED)), CHUNKED, body=ENDED + SMUGGLED),
        head(CHUNKED, b"Content-Length: %d" % (5 + len(SMUGGLED)), body=ENDED + SMUGGLED),
        head(
            b"Content-Length: 4", CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
        ),
        head(CHUNKED, b"Transfer-Encoding: x", body=ENDED + SMUGGLED),
        head(b"Transfer-Encoding: x", CHUNKED, b"Content-Length: 4", body=ENDED + SMUGGLED),
        head(b"Transfer-Encoding: \x0bchunked", b"Content-Length: 4", body=ENDED + SMUGGLED),
        head(b"X: x\nTransfer-Encoding: chunked", b"Content-Length: 4", body=ENDED + SMUGGLED),
        head(b"Transfer-Encoding\r\n : chunked", b"Content-Length: 4", body=ENDED + SMUGGLED),
        head(b"Content-Length: 0", b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
        head(b"Content-Length: 0, %d" % len(SMUGGLED), body=SMUGGLED),
        head(b"X: a\rContent-Length: 0", b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
        head(CHUNKED, line=b"POST /generate HTTP/1.0\r\n", body=ENDED + SMUGGLED),
        chunks(b"2;\n0\r\n%b\r\n0\r\n\r\n" % SMUGGLED),
        chunks(b"1;a\n2\r\nx\r\n0\r\n\r\n%b" % SMUGGLED),
        chunks(b"2\r\n{}0\r\n\r\n%b" % SMUGGLED),
        chunks(b"0\n\n%b" % SMUGGLED),
        chunks(b"0x2\r\n{}\r\n0\r\n\r\n%b" % SMUGGLED),
        chunks(b"100000000\r\n{}\r\n0\r\n\r\n%b" % SMUGGLED).replace(
            b"100000000", b"1" + b"0" * 16
        ),
    ],
)
async def test_a_hidden_request_reaches_nobody(sent: bytes) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(sent)
        await refused(client)
        assert engine.connections == 0
        assert len(rig.recorder.records) == 1


# --- a connection that goes wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("first", ["length", "chunked", "nowhere", "no body"])
@pytest.mark.parametrize("garbage", [b"GARBAGE\r\n\r\n", b"\0", b"}", b"\x16\x03\x01"])
async def test_garbage_after_a_request_ends_the_connection_after_its_answer(
    first: str, garbage: bytes
) -> None:
    async with (
        fake_engine(echo) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(GOOD[first] + garbage + SMUGGLED)
        assert (await client.answer()).status in (200, 404)
        await refused(client)
        assert len(rig.recorder.records) == 2
        assert SMUGGLED not in [request.body for request in engine.received]
        assert len(engine.received) == (1 if first in ("length", "chunked") else 0)


async def test_a_body_longer_than_its_length_is_no_request() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(head(TWO, body=b"{}{}"))
        assert (await client.answer()).status == 200
        # It might be a method that has only begun, so it is waited for.
        await client.send(b"\r\n\r\n")
        await refused(client)
        await recorded(rig, fault=Fault.REQUEST_LINE, number=2)
        assert [request.body for request in engine.received] == [b"{}"]


@pytest.mark.parametrize(
    "first",
    [
        post(b"{}", b"Connection: close"),
        post(b"{}", b"Connection: keep-alive, close"),
        post(b"{}").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
async def test_nothing_is_served_after_the_last_answer(first: bytes) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(first + post(b"later"))
        got = await client.answer()
        assert (got.status, got.values(b"connection")) == (200, [b"close"])
        assert await client.reader.read() == b""
        assert [request.body for request in engine.received] == [b"{}"]


async def test_http_1_0_is_kept_alive_for_those_who_ask() -> None:
    async with (
        fake_engine(echo) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        asking = post(b"[1]", b"Connection: Keep-Alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        for _ in range(2):
            await client.send(asking)
            got = await client.answer()
            assert (got.body, got.values(b"connection")) == (b"[1]", [b"keep-alive"])
        await client.send(asking.replace(b"Connection: Keep-Alive\r\n", b""))
        got = await client.answer()
        assert (got.body, got.values(b"connection")) == (b"[1]", [b"close"])
        assert await client.reader.read() == b""
        assert len(engine.received) == 3


@pytest.mark.parametrize("adds", [b"", b"Connection: close\r\n"])
async def test_proxy_connection_means_nothing(adds: bytes) -> None:
    """RFC 9112, C.2.2: a mistake of old clients; in HTTP/1.0 it kept connections that were closed."""
    async with fake_engine(echo) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            sent = post(b"[1]", b"proxy-connection: Keep-Alive").replace(b"HTTP/1.1", b"HTTP/1.0")
            await client.send(sent.replace(b"Host", adds + b"Host"))
            got = await client.answer()
            assert (got.body, got.values(b"connection")) == (b"[1]", [b"close"])
            assert await client.reader.read() == b""
        async with client_of(rig) as client:
            for framing in (post(b"[1]", b"Proxy-Connection: close"), GOOD["chunked"]) * 2:
                closing = framing.replace(b"Transfer", b"Proxy-Connection: close\r\nTransfer")
                await client.send(closing)
                got = await client.answer()
                assert (got.body, got.values(b"connection")) == (b"[1]", [])
        assert all(request.values(b"proxy-connection") == [] for request in engine.received)
