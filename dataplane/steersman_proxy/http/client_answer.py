"""An answer on a client's connection: its head exactly as told, its framing, and its broken end.

aiohttp's own responses add Date, Server and Content-Type, and read values as UTF-8. An answer that
is passed on must not change, so the bytes are written here; aiohttp keeps the connection and parses
the requests.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from steersman_proxy.exchange.messages import Header

WRITE_LIMIT = 256 * 1024
"""Bytes that may wait for a slow client, per connection; then the engine is not read any more."""

_JOINED = 64 * 1024
"""Up to so many bytes are copied into one write; larger parts are handed over as they are."""

_WITHOUT_BODY = frozenset({204, 304})


class ClientStalled(Exception):
    """The client took nothing for too long."""


class ClientAnswer(web.StreamResponse):
    """One answer. ``stall`` is how many seconds the client may take nothing."""

    def __init__(self, request: web.BaseRequest, *, closing: bool) -> None:
        super().__init__()
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        transport.set_write_buffer_limits(high=WRITE_LIMIT)
        self._request = request
        self._transport = transport
        self._persistent = request.keep_alive and not closing
        self._has_body = request.method != "HEAD"
        self._chunked_body = False
        self._unframed = False
        self.stall = 120.0
        self.started = False
        """Whether the head has been sent."""
        self.finished = False
        """Whether the answer has ended, properly or not."""

    def continue_100(self) -> None:
        """Tell a client that waits for it to send its body."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def close_after(self) -> None:
        """Do not use the connection for another request."""
        self._persistent = False

    def start(
        self, status: int, reason: bytes, headers: Sequence[Header], *, length: int | None
    ) -> bytes:
        """The head's bytes, to be written with the first part of the body.

        ``length`` is that of the body in bytes if it is known and not among ``headers`` yet.
        """
        self.started = True
        version = self._request.version
        framing: list[Header] = []
        if status in _WITHOUT_BODY or 100 <= status < 200:
            self._has_body = False
        elif length is not None:
            framing.append((b"Content-Length", b"%d" % length))
        elif self._has_body and not any(
            len(name) == 14 and name.lower() == b"content-length" for name, _ in headers
        ):
            if version >= (1, 1):
                self._chunked_body = True
                framing.append((b"Transfer-Encoding", b"chunked"))
            else:
                self._unframed = True
                self._persistent = False
        if not self._persistent:
            framing.append((b"Connection", b"close"))
        elif version < (1, 1):
            framing.append((b"Connection", b"keep-alive"))
        lines = [b"HTTP/1.1 %d %b" % (status, reason)]
        lines += [b"%b: %b" % header for header in (*headers, *framing)]
        lines += (b"", b"")
        return b"\r\n".join(lines)

    async def send(self, parts: Sequence[bytes], *, head: bytes = b"") -> None:
        """Write parts of the body (after ``head``) and wait while too much is waiting already.

        :raises ConnectionResetError: if the client has left.
        :raises ClientStalled: if it took nothing for ``stall`` seconds.
        """
        self._write(head, parts if self._has_body else (), b"")
        if self._request.protocol.writing_paused:
            try:
                async with asyncio.timeout(self.stall):
                    await self._request.writer.drain()
            except TimeoutError:
                raise ClientStalled from None

    async def finish(self, parts: Sequence[bytes] = (), *, head: bytes = b"") -> None:
        """Write the last parts and end the answer properly; raises as :meth:`send` does."""
        if self._chunked_body:
            self._write(head, parts, b"0\r\n\r\n")
            head, parts = b"", ()
        await self.send(parts, head=head)
        self.finished = True

    def cut(self, *, at_once: bool = False) -> None:
        """End the connection so that the client's HTTP layer sees a broken answer.

        What was written before still gets there, unless ``at_once``. An answer whose end is the end
        of the connection can only be broken by a reset.
        """
        self.finished = True
        self._persistent = False
        if at_once or self._unframed:
            self._transport.abort()
        else:
            self._transport.close()

    def _write(self, head: bytes, parts: Sequence[bytes], tail: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        pieces = [head] if head else []
        for part in parts:
            if not part:
                continue
            if self._chunked_body:
                pieces += (b"%x\r\n" % len(part), part, b"\r\n")
            else:
                pieces.append(part)
        if tail:
            pieces.append(tail)
        if not pieces:
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif sum(map(len, pieces)) <= _JOINED:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

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
