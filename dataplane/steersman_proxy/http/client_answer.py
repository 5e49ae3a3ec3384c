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
from steersman_proxy.http.answer_frame import AnswerFrame
from steersman_proxy.http.client_connection import ClientConnection
from steersman_proxy.http.request import pieces


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
        self._frame = AnswerFrame(
            http11=request.version >= (1, 1),
            to_head=request.method == "HEAD",
            persistent=request.keep_alive,
        )
        self.stall = 120.0
        self.started = False
        """Whether anything of the answer was sent."""

    def continue_100(self) -> None:
        """Tell a client that waits for it to send its body."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def close_after(self) -> None:
        """Do not use the connection for another request."""
        self._frame.persistent = False

    def start(
        self, status: int, reason: bytes, headers: Sequence[Header], *, length: int | None = None
    ) -> bytes:
        """The head's bytes, to be written with the first part of the body; forgets an unsent head.

        ``length`` is that of the body in bytes if it is known and not among ``headers`` yet.
        """
        if self._draining():
            self._frame.persistent = False
        return self._frame.start(status, reason, headers, length=length)

    async def send(self, parts: Sequence[bytes], *, head: bytes = b"") -> None:
        """Write parts of the body (after ``head``) and wait while too much is waiting already.

        :raises ConnectionResetError: if the client has left.
        :raises ClientStalled: if it took nothing for ``stall`` seconds.
        :raises RuntimeError: if the body is longer than its head says.
        """
        await self._write(head, self._frame.framed(parts))

    async def finish(self, parts: Sequence[bytes] = (), *, head: bytes = b"") -> None:
        """Write the last parts and end the answer properly; raises as :meth:`send` does."""
        await self._write(head, self._frame.last(parts))

    def cut(self, *, at_once: bool = False) -> None:
        """End the connection so that the client's HTTP layer sees a broken answer.

        What was written before still gets there, unless ``at_once``. An answer whose end is the end
        of the connection can only be broken by a reset, which may overtake what was written.
        """
        self._frame.persistent = False
        if self._transport.is_closing():
            return
        if self._frame.unframed:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if at_once or self._frame.unframed:
            self._transport.abort()
        else:
            self._transport.close()

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
        return self._frame.persistent

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing: the head was written already."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: the end was written already."""
