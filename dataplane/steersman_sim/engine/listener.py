"""The listening socket: accepting, dispatching, journaling, and the ways in which it can end."""

import asyncio
import itertools
import os
import socket
import struct
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

_BODY_LIMIT = 1 << 30
"""Bytes of the largest request body."""

_BACKLOG = 4096

Dispatch = Callable[[web.BaseRequest, int], Awaitable[web.StreamResponse]]


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection so that the peer sees a reset, not an orderly end."""
    if transport is None or transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        # The option belongs to the connection, not to the descriptor, so a duplicate will do; the
        # transport's own socket object offers no setsockopt on every loop.
        duplicate = socket.socket(fileno=os.dup(sock.fileno()))
        try:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            duplicate.close()
    assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "abort")
    transport.abort()


class _Server(web.Server):
    """aiohttp's low-level server, numbering its connections."""

    def __init__(
        self, dispatch: Dispatch, *, numbers: "itertools.count[int]", keep_alive_s: float
    ) -> None:
        super().__init__(
            self._serve,
            request_factory=self._request,
            # A client that goes away cancels its handler, which aborts its sequences.
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=keep_alive_s,
            read_bufsize=1 << 18,
            max_line_size=1 << 16,
            max_field_size=1 << 16,
        )
        self._dispatch = dispatch
        self._numbers = numbers
        self.transports: dict[RequestHandler, tuple[int, asyncio.Transport]] = {}
        self.deserted = asyncio.Event()
        """Set while no connection is open."""
        self.deserted.set()
        self.ended = False
        """Whether a connection that the system has accepted before the end comes too late."""

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        number, _ = self.transports.get(request.protocol, (0, None))
        return await self._dispatch(request, number)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=_BODY_LIMIT
        )

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """A client connected."""
        self.transports[handler] = (next(self._numbers), transport)
        self.deserted.clear()
        super().connection_made(handler, transport)
        if self.ended:
            reset(transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """A connection ended."""
        self.transports.pop(handler, None)
        if not self.transports:
            self.deserted.set()
        super().connection_lost(handler, exc)


class Listener:
    """One address that can be opened, closed and opened again; the port stays ours in between."""

    def __init__(self, host: str, *, port: int, keep_alive_s: float) -> None:
        self.host = host
        self._keep_alive_s = keep_alive_s
        self.port = port
        self._numbers = itertools.count(1)
        self._reserved: socket.socket | None = None
        self._server: _Server | None = None
        self._accepting: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """Connections open now."""
        return 0 if self._server is None else len(self._server.transports)

    async def open(self, dispatch: Dispatch) -> None:
        """Accept connections.

        Raises:
            OSError: the address cannot be bound.
        """
        if self._reserved is None:
            # Bound, never listening: it refuses connections and keeps the port over restarts.
            self._reserved = self._bind()
            self.port = self._reserved.getsockname()[1]
        listening = self._bind()
        self._server = _Server(dispatch, numbers=self._numbers, keep_alive_s=self._keep_alive_s)
        self._accepting = await asyncio.get_running_loop().create_server(
            self._server, sock=listening, backlog=_BACKLOG
        )

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
        except OSError:
            sock.close()
            raise
        return sock

    async def close(self, *, abruptly: bool, grace_s: float = 0.0) -> None:
        """Refuse new connections and end the open ones.

        ``abruptly`` with a reset; else answers under way get ``grace_s`` wall seconds.
        """
        accepting, server = self._accepting, self._server
        self._accepting = self._server = None
        if accepting is None or server is None:
            return
        accepting.close()
        server.ended = True
        if abruptly:
            for _, transport in list(server.transports.values()):
                reset(transport)
            await server.deserted.wait()
        server.pre_shutdown()
        # aiohttp takes 0 for "without limit".
        await server.shutdown(timeout=max(grace_s, 0.01))
        await accepting.wait_closed()

    def release(self) -> None:
        """Give the port back."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
