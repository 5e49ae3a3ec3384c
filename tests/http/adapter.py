"""A downstream adapter between a raw client and fake engines, and that client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from steersman.clock import MonotonicClock
from steersman.settings import PoolSettings
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.messages import RequestHead, Serve
from steersman_proxy.holding import HoldDriver
from steersman_proxy.http.adapter import make_adapter
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.answer import OwnAnswer, json_answer
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.settings import AdapterKind, ProxySettings
from tests.exchange.support import Recorder, row, table

KINDS: tuple[AdapterKind, ...] = ("splice", "aiohttp")
"""Every adapter that there is."""

kind: AdapterKind = KINDS[0]
"""The adapter of the rigs made from now on; the fixture ``adapter`` sets it."""


class FakeOwn:
    """Stands for the proxy's own routes: answers ``ok``, or does what it is told."""

    def __init__(self) -> None:
        self.serve_with: Callable[[Serve], Awaitable[OwnAnswer]] | None = None

    async def serve(self, action: Serve, head: RequestHead) -> OwnAnswer:
        if self.serve_with is not None:
            return await self.serve_with(action)
        return json_answer("ok")


class AdapterRig:
    """One listening adapter and what is around it."""

    def __init__(
        self, urls: tuple[str, ...], pool: PoolSettings | None, settings: dict[str, Any]
    ) -> None:
        clock = MonotonicClock()
        self.urls = urls
        self.recorder = Recorder()
        self.own = FakeOwn()
        settings = {"adapter": kind, **settings}
        self.settings = ProxySettings(defaults=pool or PoolSettings(), **settings)
        self.fleet = Fleet(
            clock=clock,
            defaults=self.settings.defaults,
            pool_settings={},
            rl_enabled=self.settings.rl_enabled,
        )
        self.hold = HoldQueue(self.fleet, clock=clock)
        self.hold_driver = HoldDriver(self.hold, clock=clock)
        self.upstream = UpstreamPool(clock=clock)
        ids = iter(range(1, 1_000_000))
        self.context = Context(
            fleet=self.fleet,
            settings=self.settings,
            observer=self.recorder,
            health=self.recorder,
            clock=clock,
            new_request_id=lambda: f"id-{next(ids)}",
        )
        self.adapter = make_adapter(
            self.context,
            upstream=self.upstream,
            hold=self.hold,
            own=self.own,  # type: ignore[arg-type]
        )
        self.port = 0
        self._seq = 0
        self.apply()

    def apply(self, *, gates_open: bool = True) -> None:
        """Put the engines into a table."""
        self._seq += 1
        rows = [
            msgspec.structs.replace(row(f"e{index}", open=gates_open), url=url)
            for index, url in enumerate(self.urls)
        ]
        self.fleet.apply(table(*rows, seq=self._seq))

    @property
    def in_flight(self) -> int:
        return sum(engine.load.requests for engine in self.fleet.engines())


@asynccontextmanager
async def adapter_rig(
    *urls: str, pool: PoolSettings | None = None, **settings: Any
) -> AsyncIterator[AdapterRig]:
    """An adapter over the engines at these URLs. Afterwards nothing may be in flight."""
    rig = AdapterRig(urls, pool, settings)
    server = await asyncio.get_running_loop().create_server(
        rig.adapter.protocol, "127.0.0.1", 0, backlog=1024
    )
    rig.port = server.sockets[0].getsockname()[1]
    try:
        yield rig
    finally:
        server.close()
        await rig.adapter.close()
        await rig.upstream.close()
        rig.hold_driver.close()
    assert rig.in_flight == 0
    assert rig.hold.depth("p") == 0


class Answered(NamedTuple):
    """An answer as a client reads it."""

    status: int
    head: bytes
    body: bytes
    whole: bool
    """Whether it came to its proper end."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def error(self) -> dict[str, Any]:
        """The error envelope."""
        assert self.values(b"content-type") == [b"application/json"]
        error: dict[str, Any] = msgspec.json.decode(self.body)["error"]
        assert self.values(b"x-smg-error-code") == [error["code"].encode()]
        return error


class Client:
    """A client that writes bytes, and reads HTTP/1 by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def post(
        self, body: bytes = b"{}", *headers: bytes, path: bytes = b"/generate"
    ) -> Answered:
        """One POST and its whole answer."""
        await self.send(post(body, *headers, path=path))
        return await self.answer()

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self, *, method: str = "POST") -> Answered:
        """Read one answer as far as it comes."""
        head = await self.head()
        answer = Answered(int(head.split(b" ", 2)[1]), head, b"", True)
        if method == "HEAD" or answer.status in (204, 304) or answer.status < 200:
            return answer
        if answer.values(b"transfer-encoding") == [b"chunked"]:
            body, whole = await self._chunks()
        elif lengths := answer.values(b"content-length"):
            (length,) = lengths
            try:
                body, whole = await self.reader.readexactly(int(length)), True
            except asyncio.IncompleteReadError as error:
                body, whole = error.partial, False
        else:
            body, whole = await self.reader.read(), True
        return answer._replace(body=body, whole=whole)

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        try:
            while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            assert await self.reader.readexactly(2) == b"\r\n"
        except (asyncio.IncompleteReadError, ConnectionError):
            return body, False
        return body, True

    async def chunk(self) -> bytes:
        """One chunk of a chunked body."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    def leave(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()


def post(body: bytes = b"{}", *headers: bytes, path: bytes = b"/generate") -> bytes:
    """A POST as bytes."""
    lines = [b"POST %b HTTP/1.1" % path, b"Host: proxy", b"Content-Length: %d" % len(body)]
    return b"\r\n".join((*lines, *headers, b"", body))


@asynccontextmanager
async def client_of(rig: AdapterRig) -> AsyncIterator[Client]:
    """A connection to the adapter."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, limit=2**20)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
