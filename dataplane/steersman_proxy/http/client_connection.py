"""A client's connection as aiohttp keeps it, with the limits that aiohttp does not have."""

import asyncio
import socket
import sys
from contextlib import suppress
from fcntl import ioctl
from functools import partial
from termios import TIOCOUTQ

from aiohttp.web_protocol import RequestHandler

WRITE_LIMIT = 256 * 1024
"""Bytes that may wait for a slow client, per connection; then the engine is not read any more."""

HEAD_LIMIT = 60.0
"""Seconds within which a head must come whole, once it has begun."""

TAIL_LIMIT = 600.0
"""Seconds after which the kernel gives up a client that takes nothing, whatever we are doing.

A longer ``client_stall`` makes it longer. It is for the end of an answer, which waits in the
socket's buffer when nobody here waits for it any more.
"""


class ClientStalled(Exception):
    """The client took or sent nothing for too long."""


class ClientConnection(RequestHandler):
    """One connection; also the way to wait for room in its write buffer."""

    __slots__ = ("_head_timer", "_room", "tail_limit")

    tail_limit: float
    """Seconds; set by whoever makes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._room: asyncio.Future[bool] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=WRITE_LIMIT)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock = self.transport.get_extra_info("socket")
            milliseconds = int(self.tail_limit * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wake()
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_head:
            self._stop_head_timer()
        elif data and self._head_timer is None:
            # Something came, and it is not a whole head yet.
            self._head_timer = self._loop.call_later(HEAD_LIMIT, self._head_is_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wake()

    async def room(self, *, stall: float) -> None:
        """Wait while the write buffer is over its limit.

        :raises ClientStalled: if nothing was taken out of it for ``stall`` seconds.
        :raises ConnectionResetError: if the client has left.
        """
        while self.writing_paused:
            if self.transport is None or self.transport.is_closing():
                raise ConnectionResetError("the client has left")
            waiting = self._untaken()
            self._room = self._loop.create_future()
            timer = self._loop.call_later(stall, partial(self._wake, overdue=True))
            try:
                overdue = await self._room
            finally:
                timer.cancel()
                self._room = None
            # Only time makes a stall: room may also come from the kernel, which grows its buffer
            # as it likes and takes ours over before the client has taken anything.
            if overdue and self._untaken() >= waiting:
                raise ClientStalled(f"took nothing for {stall:g} s")

    def close_if_idle(self) -> None:
        """Close unless a request is being read or answered."""
        if self._awaits_head and self._head_timer is None:
            self.force_close()

    @property
    def _awaits_head(self) -> bool:
        """Whether aiohttp's loop over the requests waits for the next one."""
        return self._waiter is not None and not self._waiter.done()

    def _untaken(self) -> int:
        """Bytes that the client has not taken, here and in the kernel.

        The kernel's count matters: it asks for more only once a third of its megabytes is gone,
        which takes a slow client a while.
        """
        if self.transport is None:
            return 0
        size = self.transport.get_write_buffer_size()
        with suppress(OSError):
            queued = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
            size += int.from_bytes(queued, sys.byteorder)
        return size

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._awaits_head:
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _wake(self, *, overdue: bool = False) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(overdue)
