"""A client's connection as aiohttp keeps it, behind a gate that is stricter than aiohttp's parser.

aiohttp gets one request at a time, and only what :mod:`~steersman_proxy.http.request_framing` has
found to be one. So requests are answered in their order, a fault ends the connection after the
answers before it, and what is refused never reaches the parser.
"""

import asyncio
from functools import partial

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from steersman.errors import Fault, InvalidRequest, RequestTimeout
from steersman_proxy.http import limits
from steersman_proxy.http.client_socket import has_left, set_tail_limit, untaken
from steersman_proxy.http.request_framing import RequestFraming
from steersman_proxy.http.request_rules import method_and_path


class ClientStalled(Exception):
    """The client took or sent nothing for too long."""


class BrokenBody(web.RequestPayloadError):
    """What reading a request's body raises when the body is not framed as it should be."""

    def __init__(self, error: InvalidRequest) -> None:
        super().__init__(str(error).partition(": ")[2])
        self.error = error


class ClientConnection(RequestHandler):
    """One connection; also the way to wait for room in its write buffer."""

    __slots__ = (
        "_answered",
        "_deaf",
        "_framing",
        "_head_timer",
        "_payload",
        "_room",
        "_surplus_paused",
        "_unheard",
        "_watch",
        "refused",
        "tail_limit",
    )

    tail_limit: float
    """Seconds; set by whoever makes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._framing = RequestFraming()
        self._payload: StreamReader = EMPTY_PAYLOAD
        """The body of the request that was begun last."""
        self._answered = True
        """Whether the request that was begun last was answered."""
        self._deaf = False
        """Whether what comes is thrown away, because nobody knows what it is, or wants it."""
        self.refused = ("-", "-")
        """Method and target of the head that was refused, as far as they could be read."""
        self._unheard: InvalidRequest | None = None
        """The error of the head that was refused, until aiohttp asks for its answer."""
        self._room: asyncio.Future[bool] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._surplus_paused = False
        self._watch: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=limits.WRITE_LIMIT)
        set_tail_limit(transport, seconds=self.tail_limit)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._deaf = True
        if self._unheard is not None:
            self.left_refused(self._unheard)
        self._wake()
        self._stop_timers()
        super().connection_lost(exc)

    # --- what comes -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not data:
            # So aiohttp lets its parser go on with what it held back.
            super().data_received(data)
            try:
                self._parsed(begins=False)
            except InvalidRequest as error:
                self._refuse(error)
        elif not self._deaf:
            self._framing.receive(data)
            self._pass_on()

    def _pass_on(self) -> None:
        """Give aiohttp what has come of the request, as far as it goes."""
        framing = self._framing
        try:
            while True:
                begins = framing.at_head
                piece = framing.take()
                if not piece:
                    break
                super().data_received(piece)
                self._parsed(begins=begins)
        except InvalidRequest as error:
            self._refuse(error)
        self._watch_head()
        self._limit_surplus()

    def _parsed(self, *, begins: bool) -> None:
        """aiohttp's parser had a piece; it should have found what the gate found."""
        if not self._messages:
            return
        message, payload = self._messages[-1]
        if begins:
            self._answered = False
            self._payload = payload
            self._deaf = not isinstance(message, RawRequestMessage)
        elif not isinstance(message, RawRequestMessage):
            self._messages.pop()
            raise InvalidRequest(
                f"the body is not framed as HTTP/1.1 says: {message.message}", fault=Fault.BODY
            )

    def _refuse(self, error: InvalidRequest) -> None:
        """Answer with an error in the request's turn, and read no more."""
        self._deaf = True
        if not self._framing.at_head:
            if self._answered:
                # aiohttp is reading the rest to throw it away; that is over now.
                self._payload.feed_eof()
                self.close()
            else:
                self._payload.set_exception(BrokenBody(error))
            return
        self.refused = method_and_path(self._framing.waiting)
        self._unheard = error
        self._framing = RequestFraming()
        self._answered = False
        self._payload = EMPTY_PAYLOAD
        self._request_count += 1
        self._messages.append((_ErrInfo(error.status, error, str(error)), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def answer_refused(self, error: InvalidRequest, request: web.BaseRequest) -> web.StreamResponse:
        """Make the answer to a head that was refused."""
        raise NotImplementedError

    def left_refused(self, error: InvalidRequest) -> None:
        """Take note that a client whose head was refused left before it was told."""
        raise NotImplementedError

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp calls for the answer to what is no HTTP request."""
        self._unheard = None
        if isinstance(exc, InvalidRequest):
            return self.answer_refused(exc, request)
        # The gate let through what aiohttp's parser refuses.
        text = " ".join((message or "it cannot be parsed").split())[:200]
        error = InvalidRequest(f"this is not an HTTP/1.1 request: {text}", fault=Fault.OTHER)
        return self.answer_refused(error, request)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """What aiohttp calls once a request was handled; it writes an answer that was not yet."""
        done = await super().finish_response(request, resp, start_time)
        self._answered = True
        if self._deaf or not resp.keep_alive:
            await self._end_politely()
        elif self._payload.is_eof():
            self._follow()
        else:
            # aiohttp reads the rest of the body now. Its parser is not to be called from within.
            self._payload.on_eof(self._follow_soon)
        return done

    def _follow_soon(self) -> None:
        self._loop.call_soon(self._follow)

    def _follow(self) -> None:
        """Go on with the next request."""
        if not self._deaf and self._framing.ended:
            self._framing.following()
            self._pass_on()

    async def _end_politely(self) -> None:
        """Let the client see the answer before the connection ends, though it may still send.

        Closing on bytes that nobody read resets the connection, and a reset overtakes the answer.
        So the client sees its end at once, and is listened to for a while.
        """
        whole = self._framing.ended and not self._framing.waiting
        refused, self._deaf = self._deaf, True
        self._limit_surplus()
        if not self._payload.is_eof():
            # There is nobody who reads it; aiohttp would wait for the rest.
            self._payload.feed_eof()
        if whole and not refused:
            return
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()
            await asyncio.sleep(limits.LINGER)

    def _limit_surplus(self) -> None:
        """Read no further ahead of the answers than a little."""
        framing = self._framing
        too_much = framing.ended and not self._deaf and len(framing.waiting) > limits.SURPLUS
        if too_much == self._surplus_paused:
            return
        self._surplus_paused = too_much
        if too_much:
            self._pause_transport_reading()
            self._look_for_client()
        else:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            if not self._reading_paused and not self._buffer_paused:
                self._resume_transport_reading()

    def _look_for_client(self) -> None:
        """A client that leaves while it is not read is not noticed by itself."""
        if self.transport is None:
            return
        if has_left(self.transport):
            self.transport.abort()
        else:
            self._watch = self._loop.call_later(limits.WATCH, self._look_for_client)

    # --- heads that do not come -------------------------------------------------------------------

    def _watch_head(self) -> None:
        """See to it that a head that has begun comes whole in time."""
        begun = self._framing.in_head and not self._deaf
        if begun and self._head_timer is None:
            self._head_timer = self._loop.call_later(limits.HEAD_LIMIT, self._look_at_head)
        elif not begun and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_at_head(self) -> None:
        self._head_timer = None
        self.head_is_late()

    def head_is_late(self) -> None:
        """The time of a head that is not whole is over."""
        if not self._deaf and self._framing.in_head:
            self._refuse(
                RequestTimeout(
                    f"the head of the request did not come within {limits.HEAD_LIMIT:g} s",
                    fault=Fault.SLOW,
                )
            )

    def close_if_idle(self) -> bool:
        """Close unless a request is being read or answered; whether it is closed now."""
        idle = self._awaits_head and not self._framing.in_head
        if idle:
            self.force_close()
        return idle

    @property
    def _awaits_head(self) -> bool:
        """Whether aiohttp's loop over the requests waits for the next one."""
        return self._waiter is not None and not self._waiter.done()

    # --- what is taken ----------------------------------------------------------------------------

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wake()

    async def room(self, *, stall: float) -> None:
        """Wait while the write buffer is over its limit.

        :raises ClientStalled: if nothing was taken out of it for ``stall`` seconds.
        :raises ConnectionResetError: if the client has left.
        """
        while self.writing_paused:
            transport = self.transport
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the client has left")
            waiting = untaken(transport)
            self._room = self._loop.create_future()
            timer = self._loop.call_later(stall, partial(self._wake, overdue=True))
            try:
                overdue = await self._room
            finally:
                timer.cancel()
                self._room = None
            # Only time makes a stall: room may also come from the kernel, which grows its buffer
            # as it likes and takes ours over before the client has taken anything.
            if overdue and untaken(transport) >= waiting:
                raise ClientStalled(f"took nothing for {stall:g} s")

    def _wake(self, *, overdue: bool = False) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(overdue)

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._watch = None
