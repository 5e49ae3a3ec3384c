"""An answer on a client's connection: its head exactly as told, its framing, and its broken end.

aiohttp's own responses add Date, Server and Content-Type, and read values as UTF-8. An answer that
is passed on must not change, so the bytes are written here; aiohttp keeps the connection and parses
the requests.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from steersman_proxy.exchange.messages import Header
from steersman_proxy.http.client_connection import ClientConnection
from steersman_proxy.http.headers import answer_head
from steersman_proxy.http.request import pieces

_WITHOUT_BODY = frozenset({204, 304})


class ClientAnswer(web.StreamResponse):
    """One answer. ``stall`` is how many seconds the client may take nothing.

    ``draining`` is asked when the answer begins: if so, its connection is not used again.
    """

    def __init__(
        self, request: web.BaseRequest, *, draining: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        self._request = request
        self._connection = cast("ClientConnection", request.protocol)
        self._transport = transport
        self._draining = draining
        self._persistent = request.keep_alive
        self._has_body = request.method != "HEAD"
        self._chunked_body = False
        self._unframed = False
        self._left: int | None = None
        """Bytes of the body that are still to come, if the head tells."""
        self.stall = 120.0
        self.started = False
        """Whether anything of the answer was sent."""

    def continue_100(self) -> None:
        """Tell a client that waits for it to send its body."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def close_after(self) -> None:
        """Do not use the connection for another request."""
        self._persistent = False

    def start(
        self, status: int, reason: bytes, headers: Sequence[Header], *, length: int | None = None
    ) -> bytes:
        """The head's bytes, to be written with the first part of the body; forgets an unsent head.

        ``length`` is that of the body in bytes if it is known and not among ``headers`` yet.
        """
        if self._draining():
            self._persistent = False
        self._chunked_body = self._unframed = False
        self._left = None
        framing: list[Header] = []
        if status in _WITHOUT_BODY or status < 200:
            self._has_body = False
            if status != 304:
                headers = [header for header in headers if header[0].lower() != b"content-length"]
        elif length is not None:
            framing.append((b"Content-Length", b"%d" % length))
            self._left = length
        elif self._has_body:
            self._left = _declared(headers)
            if self._left is None:
                framing += self._unknown_length()
        if not self._persistent:
            framing.append((b"Connection", b"close"))
        elif self._request.version < (1, 1):
            framing.append((b"Connection", b"keep-alive"))
        return answer_head(status, reason, (*headers, *framing))

    async def send(self, parts: Sequence[bytes], *, head: bytes = b"") -> None:
        """Write parts of the body (after ``head``) and wait while too much is waiting already.

        :raises ConnectionResetError: if the client has left.
        :raises ClientStalled: if it took nothing for ``stall`` seconds.
        :raises RuntimeError: if the body is longer than its head says.
        """
        await self._write(head, self._framed(parts))

    async def finish(self, parts: Sequence[bytes] = (), *, head: bytes = b"") -> None:
        """Write the last parts and end the answer properly; raises as :meth:`send` does."""
        framed = self._framed(parts)
        if self._has_body and self._left:
            raise RuntimeError("the body is shorter than its head says")
        if self._chunked_body:
            framed.append(b"0\r\n\r\n")
        await self._write(head, framed)

    def cut(self, *, at_once: bool = False) -> None:
        """End the connection so that the client's HTTP layer sees a broken answer.

        What was written before still gets there, unless ``at_once``. An answer whose end is the end
        of the connection can only be broken by a reset, which may overtake what was written.
        """
        self._persistent = False
        if self._transport.is_closing():
            return
        if self._unframed:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if at_once or self._unframed:
            self._transport.abort()
        else:
            self._transport.close()

    def _unknown_length(self) -> list[Header]:
        if self._request.version >= (1, 1):
            self._chunked_body = True
            return [(b"Transfer-Encoding", b"chunked")]
        self._unframed = True
        self._persistent = False
        return []

    def _framed(self, parts: Sequence[bytes]) -> list[bytes]:
        size = sum(map(len, parts)) if self._has_body else 0
        if not size:
            return []
        if self._chunked_body:
            return [b"%x\r\n" % size, *parts, b"\r\n"]
        if self._left is not None:
            if size > self._left:
                # The client would take the rest for its next answer.
                raise RuntimeError("the body is longer than its head says")
            self._left -= size
        return [*parts]

    async def _write(self, head: bytes, framed: list[bytes]) -> None:
        for piece in pieces(head, framed):
            if self._transport.is_closing():
                raise ConnectionResetError("the client has left")
            self.started = True
            self._transport.write(piece)
            if self._connection.writing_paused:
                await self._connection.room(stall=self.stall)

    # --- what aiohttp calls -----------------------------------------------------------------------

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes another request after this answer."""
        return self._persistent

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing: the head was written already."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: the end was written already."""


def _declared(headers: Sequence[Header]) -> int | None:
    for name, value in headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return int(value)
    return None
