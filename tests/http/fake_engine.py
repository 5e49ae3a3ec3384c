"""An engine made of one coroutine per connection, which says what goes over the wire, byte by byte.

It shares no code with the proxy: requests are read by hand.
"""

import asyncio
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from typing import NamedTuple

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Received(NamedTuple):
    """A request as it arrived."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]
        pairs = [line.partition(b": ") for line in lines]
        return [(name, value) for name, _, value in pairs]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


class Wire:
    """The engine's end of one connection."""

    def __init__(
        self, engine: "FakeEngine", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._writer = writer

    async def head(self) -> bytes:
        """The head of the next request."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def request(self) -> Received:
        """The whole next request."""
        received = Received(await self.head(), b"")
        lengths = received.values(b"content-length")
        if lengths:
            received = received._replace(body=await self._reader.readexactly(int(lengths[0])))
        self._engine.received.append(received)
        return received

    async def read(self, most: int) -> bytes:
        """Some bytes of a body; ``most`` at most.

        :raises ConnectionResetError: if the peer has closed.
        """
        part = await self._reader.read(most)
        if not part:
            raise ConnectionResetError("the peer has closed")
        return part

    async def send(self, *parts: bytes) -> None:
        """Each part in a write of its own, in the socket's buffer when this returns."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    def written(self) -> int:
        """Bytes that wait here because the peer does not read."""
        return self._writer.transport.get_write_buffer_size()

    async def cut(self, *parts: bytes) -> None:
        """Each part in a write that the peer reads on its own. The peer must be of this process.

        Two writes in a row would be one read: both ends share a loop, which has not turned between.
        """
        for part in parts:
            await self.send(part)
            try:
                peer = peer_of(self.socket)
                while self.written() or unread(peer):  # noqa: ASYNC110 (state of the kernel)
                    await asyncio.sleep(0)
            except OSError as error:
                raise ConnectionResetError("the peer has closed") from error

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    async def close(self) -> None:
        """FIN."""
        self._writer.close()
        await self._writer.wait_closed()

    def reset(self) -> None:
        """RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self) -> bytes:
        """Wait until the peer has closed, in whatever way. Returns what it still sent."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""


def peer_of(end: socket.socket) -> int:
    """The descriptor of the other end of a connection within this process.

    :raises OSError: if it is closed.
    """
    here, there = end.getsockname(), end.getpeername()
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):
            if entry.is_socket():
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    if one.getsockname() == there and one.getpeername() == here:
                        return int(entry.name)
    raise OSError(errno.ENOTCONN, "the other end is closed")


def unread(descriptor: int) -> int:
    """Bytes that have come to a socket and that nobody has read yet.

    What was written to its other end is among them at once: the loopback device delivers within the
    write. (The sender's count of unacknowledged bytes would be stricter, and 40 ms behind.)
    """
    return int.from_bytes(ioctl(descriptor, FIONREAD, bytes(4)), sys.byteorder)


Script = Callable[[Wire], Awaitable[None]]


class FakeEngine:
    """Listens; runs the script for each connection; remembers what came."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closed = False
        self.received: list[Received] = []
        self.connections = 0
        self.errors: list[BaseException] = []
        self.url = ""
        self.port = 0

    async def open(self, *, host: str, tls: ssl.SSLContext | None, port: int = 0) -> None:
        self._server = await asyncio.start_server(
            self._connected, host, port, ssl=tls, limit=2**17, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{self.port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.errors == []

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:  # accepted in the last moment
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._run(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Not by the task itself: one that is cancelled before its first step does nothing.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._script(Wire(self, reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # noqa: BLE001 (raised again by `close`)
            self.errors.append(error)


@asynccontextmanager
async def fake_engine(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[FakeEngine]:
    """A fake engine for the time of the block."""
    engine = FakeEngine(script)
    await engine.open(host=host, tls=tls, port=port)
    try:
        yield engine
    finally:
        await engine.close()


def always(answer: bytes) -> Script:
    """Answers every request of a connection in the same way."""

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(answer)

    return script


def once(*parts: bytes, then: str = "wait") -> Script:
    """Answers the first request in these parts; then waits for the peer, closes or resets."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(*parts)
        if then == "close":
            await wire.close()
        elif then == "reset":
            wire.reset()
        else:
            await wire.gone()

    return script


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


class Watched:
    """Sends the beginning of an answer; says when the request is here and when the proxy closed."""

    def __init__(self, *answer: bytes) -> None:
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self._answer = answer

    async def __call__(self, wire: Wire) -> None:
        await wire.request()
        await wire.send(*self._answer)
        self.arrived.set()
        await wire.gone()
        self.closed.set()
