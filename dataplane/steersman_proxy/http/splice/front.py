"""A client's connection: where requests begin and end in what comes, and one after the other.

Reading goes on while a request is served, so that a client that leaves is noticed at once; what
comes meanwhile is the next request, and is kept up to ``limits.SURPLUS``. Beyond that reading stops,
and the socket is asked now and then whether the client is still there.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, cast

from steersman.clock import Clock
from steersman_proxy.http import limits
from steersman_proxy.http.client_socket import has_left, set_tail_limit, untaken
from steersman_proxy.http.splice.head import RegularHead, may_become_regular, regular_head
from steersman_proxy.http.splice.lane import Lane
from steersman_proxy.http.splice.ordinary import InFront, Ordinary
from steersman_proxy.http.splice.request import SplicedRequest
from steersman_proxy.http.timer import MovingDeadline
from steersman_proxy.http.write_batch import SMALL, WriteBatch

_log = logging.getLogger("steersman.http")

AT_A_TIME = 16
"""Requests that are begun within one turn of the loop, if their answers need no waiting."""

_JOINED = 64 * 1024
"""Parts of an answer below this are joined into one; a larger body is not copied."""


class Owner(Protocol):
    """The adapter, as its connections know it."""

    lane: Lane
    """The shortest way."""
    upload_stall: float
    """Seconds for which a client may send nothing of its body."""
    writes: WriteBatch
    """What is written at the end of this turn of the loop."""
    tail_limit: float
    """Seconds for which it may take nothing, as the kernel counts."""

    def connected(self, front: "Front") -> None:
        """A connection was made."""
        ...

    def lost(self, front: "Front") -> None:
        """A connection is gone."""
        ...

    def make(self, front: "Front", head: RegularHead) -> SplicedRequest:
        """The request of a head, on the long way."""
        ...

    def begun(self, request: InFront) -> None:
        """A request is being served."""
        ...

    def ended(self, request: InFront) -> None:
        """A request is over."""
        ...

    def hand_over(self, transport: asyncio.Transport, data: bytes, *, late: bool) -> None:
        """Leave the connection to the aiohttp adapter, for good; ``data`` is not served yet.

        ``late`` says that it is the beginning of a head whose time is over.
        """
        ...


class Front(asyncio.Protocol):
    """One client's connection. Serves one request at a time, in the order in which they came."""

    __slots__ = (
        "_advancing",
        "_again",
        "_buffer",
        "_closing",
        "_deadline",
        "_head_begun",
        "_held",
        "_loop",
        "_owner",
        "_reading_paused",
        "_request",
        "_stalling",
        "_unread",
        "_watch",
        "stall",
        "transport",
        "writing_paused",
    )

    def __init__(self, owner: Owner, *, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._owner = owner
        self._loop = loop
        self._deadline = MovingDeadline(loop, clock=clock, expired=self._expired)
        self.transport: asyncio.Transport | None = None
        self.stall = 120.0
        """Seconds for which the client may take nothing."""
        self.writing_paused = False
        """Whether the client takes less than is written to it."""
        self._buffer = b""
        """What has come and belongs to no request yet."""
        self._unread = 0
        """Bytes of the body of the request begun last that have not come yet."""
        self._request: InFront | None = None
        self._head_begun = False
        """Whether a part of a head has come, and its time runs."""
        self._closing = False
        """Whether no other request is served, and what comes is thrown away."""
        self._held = b""
        """An answer that is written at the end of this turn, or before whatever else is done."""
        self._advancing = False
        self._again: asyncio.Handle | None = None
        self._reading_paused = False
        self._stalling: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None

    # --- called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without being of the class.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=limits.WRITE_LIMIT)
        set_tail_limit(transport, seconds=self._owner.tail_limit)
        self._owner.connected(self)
        self._deadline.set(limits.KEEP_ALIVE)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._buffer = self._held = b""
        self._stop_timers()
        self._let_request_go()
        self._owner.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def eof_received(self) -> None:
        # Returning nothing closes the transport. A client that ends its side of the connection
        # cannot be told from one that has left.
        self.write_held()
        self._let_request_go()

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._watch_stall()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None
        if self._request is not None:
            self._request.full().writable()
        self._advance()

    # --- called by the request --------------------------------------------------------------------

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Hand parts of an answer over to the socket."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return  # The request learns of it when the connection is lost, in this turn or the next.
        if self._held:
            self.write_held()
        if len(parts) == 1:
            transport.write(parts[0])
        elif sum(map(len, parts)) < _JOINED:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    def put(self, part: bytes) -> None:
        """Hand a part of an answer over to the socket."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if self._held:
                self.write_held()
            transport.write(part)

    def answer(self, whole: bytes) -> None:
        """Hand a whole answer over to the socket at the end of this turn of the loop, or now."""
        if self._held or len(whole) > SMALL:
            self.put(whole)
        else:
            self._held = whole
            self._owner.writes.add_answer(self)

    def write_held(self) -> None:
        """Write the answer that was held back until the end of this turn of the loop."""
        held, self._held = self._held, b""
        transport = self.transport
        if held and transport is not None and not transport.is_closing():
            transport.write(held)

    def cut(self, *, at_once: bool = False) -> None:
        """End the connection; what was written before still gets there, unless ``at_once``."""
        self._closing = True
        self.write_held()
        if self.transport is not None:
            if at_once:
                self.transport.abort()
            else:
                self.transport.close()

    @property
    def closing(self) -> bool:
        """Whether nothing more can be written."""
        transport = self.transport
        return transport is None or transport.is_closing()

    def finished(self, *, persistent: bool) -> None:
        """The request is over; ``persistent`` says whether its connection may be used again."""
        request, self._request = self._request, None
        if request is not None:
            self._owner.ended(request)
        if not persistent:
            self._end()
            return
        self._deadline.set(limits.LINGER if self._unread else limits.KEEP_ALIVE)
        if self._buffer:
            self._advance()

    # --- called by the adapter --------------------------------------------------------------------

    def grown(self, ordinary: Ordinary, request: SplicedRequest) -> None:
        """The request that is served has left the shortest way."""
        if self._request is ordinary:
            self._request = request

    def close_if_idle(self) -> bool:
        """Close unless a request is being read or answered; whether it is closed now."""
        idle = self._request is None and not self._buffer and not self._unread
        if idle:
            self._close()
        return idle

    def drop(self) -> None:
        """Close now, without waiting for a client to take what it was sent."""
        self.write_held()
        self._let_request_go()
        if self.transport is not None:
            self.transport.abort()

    # --- what has come ----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on with what has come, as far as it goes."""
        if self._advancing:
            return
        self._advancing = True
        try:
            begun = 0
            while self._buffer:
                if self._unread:
                    self._take_body()
                elif self._request is not None or self._closing or self.writing_paused:
                    break
                elif begun == AT_A_TIME:
                    # Others have their turn; a client may send thousands of tiny ones in one read.
                    if self._again is None:
                        self._again = self._loop.call_soon(self._go_on)
                    break
                elif self._take_head():
                    begun += 1
                else:
                    break
        finally:
            self._advancing = False
        request = self._request
        if self._unread and request is not None and request.wants_body:
            self._deadline.set(self._owner.upload_stall)
        self._limit_surplus()

    def _go_on(self) -> None:
        self._again = None
        self._advance()

    def _take_head(self) -> bool:
        """Begin the next request; whether there was one."""
        data = self._buffer
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > limits.MAX_HEAD - 4:
            if len(data) > limits.MAX_HEAD or not may_become_regular(data):
                self._hand_over()
            else:
                self._await_head()
            return False
        head = regular_head(data, end)
        if head is None:
            self._hand_over()
            return False
        end += 4
        length = head.body_length
        here = len(data) - end
        body: bytes | None = None
        if here >= length:
            body = data[end : end + length]
            self._buffer = data[end + length :] if here > length else b""
        else:
            self._buffer = data[end:]
            self._unread = length
        self._head_begun = False
        self._deadline.clear()
        owner = self._owner
        ordinary = None if body is None else owner.lane.begin(self, head, body)
        if ordinary is not None:
            self._request = ordinary
            owner.begun(ordinary)
            return True
        self._request = request = owner.make(self, head)
        owner.begun(request)
        request.start(body)
        return True

    def _await_head(self) -> None:
        """A head has begun and is not whole. Its time counts from its first byte."""
        if not self._head_begun:
            self._head_begun = True
            self._deadline.set(limits.HEAD_LIMIT)

    def _take_body(self) -> None:
        data, unread = self._buffer, self._unread
        if len(data) > unread:
            data, self._buffer = data[:unread], data[unread:]
        else:
            self._buffer = b""
        self._unread = unread = unread - len(data)
        request = self._request
        if request is not None and request.wants_body:
            if not unread:
                self._deadline.clear()
            request.full().feed(data, last=not unread)
        elif request is None and not unread:
            # That was the rest of an upload that was answered already.
            self._deadline.set(limits.KEEP_ALIVE)

    def _hand_over(self, *, late: bool = False) -> None:
        self.write_held()
        transport, data = self.transport, self._buffer
        if transport is None:
            return
        self._buffer = b""
        self._stop_timers()
        self.transport = None
        if self._reading_paused:
            transport.resume_reading()
        self._owner.lost(self)
        self._owner.hand_over(transport, data, late=late)

    def _limit_surplus(self) -> None:
        """Stop reading while too much waits for the request that is served now."""
        transport = self.transport
        if transport is None:
            return
        too_much = len(self._buffer) > limits.SURPLUS
        if too_much == self._reading_paused:
            return
        self._reading_paused = too_much
        if too_much:
            transport.pause_reading()
            self._watch = self._loop.call_later(limits.WATCH, self._look_for_client)
        else:
            transport.resume_reading()
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _look_for_client(self) -> None:
        self._watch = None
        if self.transport is None:
            return
        if has_left(self.transport):
            self._let_request_go()
            self.transport.abort()
        else:
            self._watch = self._loop.call_later(limits.WATCH, self._look_for_client)

    # --- what does not come -----------------------------------------------------------------------

    def _expired(self) -> None:
        request = self._request
        if request is None:
            if self._head_begun and self._buffer:
                self._hand_over(late=True)
            else:
                # Idle for too long, or not done with what nobody wants to hear.
                self._close()
        elif request.wants_body:
            request.full().stalled(f"sent nothing for {self._owner.upload_stall:g} s")

    def _watch_stall(self) -> None:
        """See whether the client takes anything in the time that it has."""
        if self.transport is not None:
            waiting = untaken(self.transport)
            self._stalling = self._loop.call_later(self.stall, self._look_at_stall, waiting)

    def _look_at_stall(self, waiting: int) -> None:
        self._stalling = None
        if not self.writing_paused or self.transport is None:
            return
        # Only time makes a stall: room may also come from the kernel, which grows its buffer as it
        # likes and takes ours over before the client has taken anything.
        if untaken(self.transport) < waiting:
            self._watch_stall()
        elif self._request is not None:
            self._request.full().stalled(f"took nothing for {self.stall:g} s")
        else:
            _log.info("a client took nothing of its answer for %g s; cut", self.stall)
            self.transport.abort()

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Serve no other request. The client may be sending one just now.

        Closing while it sends would reset the connection, and a reset overtakes the answer: so only
        our side is ended, and what comes is read and forgotten until the client has seen that.
        """
        self._closing = True
        self._buffer = b""
        self.write_held()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write_eof()
        self._deadline.set(limits.LINGER)
        self._limit_surplus()

    def _close(self) -> None:
        self._closing = True
        self.write_held()
        if self.transport is not None:
            self.transport.close()

    def _let_request_go(self) -> None:
        """The client has left."""
        self._closing = True
        request, self._request = self._request, None
        if request is not None:
            try:
                request = request.full()
                request.client_left()
            finally:
                self._owner.ended(request)

    def _stop_timers(self) -> None:
        self._deadline.cancel()
        for handle in (self._again, self._stalling, self._watch):
            if handle is not None:
                handle.cancel()
        self._again = self._stalling = self._watch = None
