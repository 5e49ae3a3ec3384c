"""Who reads slowly makes those before it slow: the proxy keeps little of what flows through it."""

import asyncio
import fcntl
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from termios import FIONREAD, TIOCOUTQ

import pytest

from steersman_proxy.exchange.messages import Outcome
from tests.http.adapter import AdapterRig, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, STREAM, Wire, fake_engine
from tests.http.shapes import CHUNKED, head

pytestmark = pytest.mark.usefixtures("adapter")

MOST = 256 * 1024
"""Bytes of one stream that may be in the proxy."""

PIECE = bytes(range(256)) * 64


def queued(sock: socket.socket, which: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock.fileno(), which, bytes(4)), sys.byteorder)


async def settled(amount: Callable[[], int]) -> int:
    """Wait until an amount has not changed for a while; nothing tells that it never will."""
    last, same = amount(), 0
    while same < 100:
        await asyncio.sleep(0.002)
        now = amount()
        same = same + 1 if now == last else 0
        last = now
    return last


class Flood:
    """An engine that sends as fast as anybody takes it, and counts."""

    def __init__(self, head: bytes, size: int, *, chunked: bool) -> None:
        self.head = head
        self.size = size
        self.chunked = chunked
        self.sent = 0
        self.wire: Wire | None = None

    async def __call__(self, wire: Wire) -> None:
        await wire.request()
        self.wire = wire
        await wire.send(self.head)
        while self.sent < self.size:
            self.sent += len(PIECE)
            await wire.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if self.chunked else PIECE)
        if self.chunked:
            await wire.send(b"0\r\n\r\n")
        elif b"Content-Length" not in self.head:
            await wire.close()
        await wire.gone()

    def gone_out(self) -> int:
        """Bytes of the body that the peer's kernel has, or anybody behind it."""
        if self.wire is None:
            return 0
        return self.sent - self.wire.written() - queued(self.wire.socket, TIOCOUTQ)


class DeafClient:
    """A client that reads only when it is told to, and as much as it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.taken = 0

    async def take(self, size: int) -> bytes:
        """Read so many bytes."""
        loop, parts = asyncio.get_running_loop(), []
        while size:
            part = await loop.sock_recv(self.socket, min(size, 2**20))
            if not part:
                break
            parts.append(part)
            size -= len(part)
            self.taken += len(part)
        return b"".join(parts)

    async def read(self) -> bytes:
        """Read to the end."""
        return await self.take(2**40)


@asynccontextmanager
async def deaf_client(rig: AdapterRig, sent: bytes) -> AsyncIterator[DeafClient]:
    """A client that has sent a request."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", rig.port))
        await loop.sock_sendall(sock, sent)
        yield DeafClient(sock)


class Stream:
    """An answer on its way: from an engine through the proxy to a client."""

    def __init__(self, rig: AdapterRig, flood: Flood, client: DeafClient) -> None:
        (connection,) = rig.adapter.connections
        (upstream,) = rig.upstream._connections
        assert connection.transport is not None
        assert upstream._transport is not None
        self._flood = flood
        self._client = client
        self._to_client: socket.socket = connection.transport.get_extra_info("socket")
        self._to_engine: socket.socket = upstream._transport.get_extra_info("socket")

    def inside(self) -> int:
        """Bytes that the proxy has, neither before it in its kernel nor behind it."""
        before = queued(self._to_engine, FIONREAD)
        behind = queued(self._to_client, TIOCOUTQ) + queued(self._client.socket, FIONREAD)
        return self._flood.gone_out() - before - behind - self._client.taken


ANSWERS = {
    "chunked": (STREAM, True),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", False),
    "until the end": (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", False),
}
REQUESTS = {
    "regular": post(b"{}", b"Connection: close"),
    "irregular": head(b"Connection: close", CHUNKED, body=b"2\r\n{}\r\n0\r\n\r\n"),
}
SIZE = 24 * 2**20


def unchunked(framed: bytes) -> bytes:
    """A whole chunked body without its framing."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = framed.index(b"\r\n", at)
        size = int(framed[at:end], 16)
        if not size:
            assert framed[at:] == b"0\r\n\r\n"
            return b"".join(parts)
        parts.append(framed[end + 2 : end + 2 + size])
        at = end + size + 4


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("sent", REQUESTS.values(), ids=REQUESTS)
async def test_a_client_that_reads_nothing_stops_its_engine(kind: str, sent: bytes) -> None:
    """However often it goes on for a while; and in the end it has all of it."""
    begins, framed = ANSWERS[kind]
    flood = Flood(begins % SIZE if b"%" in begins else begins, SIZE, chunked=framed)
    async with (
        fake_engine(flood) as engine,
        adapter_rig(engine.url) as rig,
        deaf_client(rig, sent) as client,
    ):
        await until(lambda: flood.sent and rig.upstream.open)
        stream = Stream(rig, flood, client)
        got = []
        for take in (2**12, 2**20, 2**16, 2**21):
            await settled(flood.gone_out)
            assert 0 < stream.inside() <= MOST
            assert flood.gone_out() < SIZE
            got.append(await client.take(take))
        assert rig.in_flight == 1
        got.append(await client.read())
        _, _, body = b"".join(got).partition(b"\r\n\r\n")
        chunked = b"Transfer-Encoding: chunked" in got[0]
        whole = unchunked(body) if chunked else body
        assert len(whole) == SIZE
        assert whole == PIECE * (SIZE // len(PIECE))
        await until(lambda: rig.recorder.records)
        assert rig.recorder.records[0].outcome is Outcome.OK
        assert rig.in_flight == 0


async def test_one_client_that_reads_nothing_slows_nobody_else() -> None:
    begins, _ = ANSWERS["length"]
    flood = Flood(begins % SIZE, SIZE, chunked=False)
    async with (
        fake_engine(flood) as engine,
        adapter_rig(engine.url) as rig,
        deaf_client(rig, REQUESTS["regular"]),
    ):
        await until(lambda: flood.sent)
        await settled(flood.gone_out)
        async with client_of(rig) as other:
            for _ in range(20):
                assert (await other.post(path=b"/nowhere")).status == 404


# --- the other way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_engine_that_reads_slowly_gets_a_large_upload_whole(framing: str) -> None:
    """The body is in the proxy as a whole, by design; but not a second time in its buffers."""
    size = 16 * 2**20
    body = PIECE * (size // len(PIECE))
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.head()
        await go_on.wait()
        taken = 0
        while taken < size:
            part = await wire._reader.read(2**16)
            assert part == (PIECE * 6)[taken % len(PIECE) :][: len(part)]
            taken += len(part)
            if taken < 2**20:
                await asyncio.sleep(0.001)  # the pace of the engine
        await wire.send(OK)
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        if framing == "length":
            await client.send(post(body))
        else:
            await client.send(head(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)))
        await until(lambda: rig.upstream.open and rig.in_flight)
        (upstream,) = rig.upstream._connections
        await until(lambda: upstream._write_paused)
        assert upstream._transport is not None
        assert upstream._transport.get_write_buffer_size() <= 2 * MOST
        go_on.set()
        assert (await client.answer()).status == 200
