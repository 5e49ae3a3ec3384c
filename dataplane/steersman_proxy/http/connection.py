"""One connection to an engine: writes a request, reads the answer, and is idle in between."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from steersman.clock import Clock
from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.endpoint import Endpoint
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.framing import InvalidAnswer
from steersman_proxy.http.timer import MovingDeadline
from steersman_proxy.http.write_batch import SMALL, WriteBatch

READ_SIZE = 80 * 1024
"""At most so many bytes are read at a time; size of the buffer that a pool's connections share."""

MAX_BUFFERED = 96 * 1024
"""An answer's bytes that nobody has taken yet; reading stops before a read could exceed it."""

# A host that vanished without a word is noticed after about a minute, rather than when the answer
# is overdue after half an hour.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_CLOSED_BEFORE_ANSWER = Failure.CLOSED_BEFORE_ANSWER


class WholeReader(Attempt):
    """An attempt that may be done with its answer in one look."""

    __slots__ = ()

    def take_whole(self, connection: "Connection", data: bytes) -> bool:
        """Take what was read first, if it is a whole answer; whether it was.

        If so, :meth:`Connection.keep` was called. If not, nothing was.
        """
        raise NotImplementedError

    def may_be_sent(self) -> bool:
        """Whether its request may still be written; asked right before."""
        raise NotImplementedError


class Scratch:
    """Where reads land."""

    __slots__ = ("get_buffer", "memory")

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(READ_SIZE))
        # `getattr(self, "memory", size)`, which is never anything but the memory: asked before every
        # read, it had better not be a function of ours.
        self.get_buffer: Callable[[int], memoryview] = partial(getattr, self, "memory")


class Connection(asyncio.BufferedProtocol):
    """Serves one :class:`Attempt` at a time.

    ``scratch`` is where reads land; connections of one event loop may share it, because it is
    parsed before the next read. ``released`` is called when an answer ended and the connection can
    serve again, ``lost`` once when the connection is gone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        scratch: "Scratch",
        idle_limit: float,
        writes: WriteBatch,
        endpoint: Endpoint,
        released: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self._scratch = scratch.memory
        self.get_buffer = scratch.get_buffer  # type: ignore[method-assign, assignment]
        self._idle_limit = idle_limit
        self._writes = writes
        self.endpoint = endpoint
        """What it is connected to."""
        self._released = released
        self._lost = lost
        self._now = clock.now
        self._deadline = MovingDeadline(loop, clock=clock, expired=self._expired)
        self._transport: asyncio.Transport | None = None
        self._attempt: Attempt | None = None
        self._whole: WholeReader | None = None
        """The attempt, while it may take its answer whole."""
        self._held: tuple[bytes, bytes] | None = None
        """Its request, until the end of the turn in which it was started."""
        self._write_paused = False
        self._read_paused = False
        self._idle_since = clock.now()

    # --- Called by the pool ---

    @property
    def open(self) -> bool:
        """Whether neither end has closed it yet, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def usable(self) -> bool:
        """Whether an idle connection may still be used: open, and not idle for too long."""
        transport = self._transport
        return (
            transport is not None
            and not transport.is_closing()
            and self._now() - self._idle_since < self._idle_limit
        )

    def start(self, attempt: Attempt) -> None:
        """Write the request and read its answer into ``attempt``."""
        assert self._attempt is None
        self._attempt = attempt
        attempt.drop = self.abort
        if self.open:
            self._write()
        else:
            self._close_attempt(None)

    def start_at_once(self, attempt: "WholeReader", head: bytes, body: bytes) -> None:
        """As :meth:`start`, on an idle connection and for a small request, which is written whole, at
        the end of this turn of the loop if the attempt still may be sent then.

        The first read is offered to the attempt as it is.
        """
        assert self._transport is not None and self._attempt is None
        self._attempt = attempt
        self._whole = attempt
        attempt.drop = self.abort
        self._deadline.set(attempt.timeouts.answer_head)
        self._held = (head, body)
        if len(body) > SMALL:
            self.write_held()
        else:
            self._writes.add_request(self)

    def write_held(self) -> None:
        """Write the request that :meth:`start_at_once` left, if it is still wanted and allowed."""
        request, self._held = self._held, None
        attempt, transport = self._whole, self._transport
        if request is None or attempt is None or transport is None or transport.is_closing():
            return
        if attempt.may_be_sent():
            transport.writelines(request)
        else:
            self._withhold()

    def keep(self) -> bool:
        """The answer that was offered whole is whole: be idle again, unless that cannot be."""
        attempt, transport = self._attempt, self._transport
        if attempt is None or transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size():
            return False
        self._attempt = None
        attempt.drop = None
        self._idle_since = self._now()
        self._deadline.set(self._idle_limit)
        self._released(self)
        return True

    def abort(self) -> None:
        """Close at once; what was not written is thrown away. The attempt, if any, fails."""
        self._give_up(Failure.INCOMPLETE, "the answer was given up")

    # --- Called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without being of the class.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_attempt(exc)
        self._deadline.cancel()
        self._transport = None
        self._lost(self)

    def buffer_updated(self, nbytes: int) -> None:
        attempt = self._attempt
        if attempt is None:
            # An engine that speaks without being asked; the bytes would pass for the next answer.
            self.abort()
            return
        data = bytes(self._scratch[:nbytes])
        relay = attempt.relay
        if relay is not None and attempt.framing.between_chunks:
            now = self._now()
            if relay(data, now):
                # It was set when the head came.
                self._deadline.at = now + attempt.timeouts.stream_idle
                return
        if self._whole is not None:
            if self._held is not None:
                self._give_up(_CLOSED_BEFORE_ANSWER, "the engine spoke before it was asked")
                return
            whole, self._whole = self._whole, None
            if whole.take_whole(self, data):
                return
        framing = attempt.framing
        try:
            framing.feed(data)
        except InvalidAnswer as error:
            self._give_up(Failure.PROTOCOL, str(error))
            return
        if framing.complete:
            self._finish(attempt)
        elif framing.head_done:
            if attempt.unwritten is not None and framing.status >= 300:
                # Answered early, and not with what was asked for: the rest is not wanted.
                attempt.unwritten = iter(())
            self._deadline.set(attempt.timeouts.stream_idle)
        attempt.wake()
        if framing.size > MAX_BUFFERED - READ_SIZE and self._attempt is attempt:
            self._pause(attempt)

    def eof_received(self) -> None:
        # Returning nothing closes the transport; an engine has no business half-closing.
        self._close_attempt(None)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._attempt is not None and self._attempt.unwritten is not None:
            self._write()

    # --- States ---

    def _write(self) -> None:
        """Hand over what the transport takes now; :meth:`resume_writing` goes on."""
        attempt, transport = self._attempt, self._transport
        assert attempt is not None
        assert transport is not None
        if not attempt.framing.head_done:
            # Counts from the last moment at which the engine took something.
            self._deadline.set(attempt.timeouts.answer_head)
        while attempt.unwritten is not None and not self._write_paused:
            piece = next(attempt.unwritten, None)
            if piece is None:
                attempt.unwritten = None
            elif transport.is_closing():
                return
            elif attempt.may_start is not None and not attempt.may_start():
                # Also in the middle of it: a request that is not whole begins nothing.
                self._withhold()
                return
            else:
                transport.write(piece)

    def _withhold(self) -> None:
        self._give_up(Failure.WITHHELD, "the request may not be started any more")

    def _pause(self, attempt: Attempt) -> None:
        """Stop reading until the reader has emptied the attempt; the engine is not to blame."""
        assert self._transport is not None
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
            self._deadline.clear()
            attempt.resume = self._resume

    def _resume(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.resume = None
            self._deadline.set(attempt.timeouts.stream_idle)
        self._read_paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def _finish(self, attempt: Attempt) -> None:
        """The answer is whole. Keep the connection only if both ends are surely done with it."""
        transport = self._transport
        assert transport is not None
        written = attempt.unwritten is None and transport.get_write_buffer_size() == 0
        self._attempt = None
        attempt.drop = attempt.resume = attempt.unwritten = None
        framing = attempt.framing
        if written and framing.keep_alive and not framing.surplus and not transport.is_closing():
            if self._read_paused:
                self._resume()
            self._idle_since = self._now()
            self._deadline.set(self._idle_limit)
            self._released(self)
        else:
            self.abort()

    def _close_attempt(self, error: Exception | None) -> None:
        """The engine's end is closed: in an orderly way, or with ``error``."""
        attempt = self._attempt
        if attempt is None:
            return
        framing = attempt.framing
        if error is None and framing.head_done and framing.eof():
            self._finish(attempt)
            attempt.wake()
            return
        how = "closed the connection" if error is None else f"broke the connection ({error})"
        if framing.begun:
            self._give_up(Failure.INCOMPLETE, f"the engine {how} before its answer was whole")
        else:
            self._give_up(
                Failure.CLOSED_BEFORE_ANSWER,
                f"the engine {how} without an answer",
                # A reset: the engine had closed, or died with the request unread.
                discarded=isinstance(error, (ConnectionResetError, BrokenPipeError)),
            )

    def _expired(self) -> None:
        attempt = self._attempt
        if attempt is None:
            self.abort()
            return
        timeouts = attempt.timeouts
        if attempt.framing.head_done:
            self._give_up(
                Failure.IDLE_TIMEOUT,
                f"the engine sent nothing of its answer's body for {timeouts.stream_idle:g} s",
            )
        elif attempt.unwritten is not None:
            self._give_up(
                Failure.HEAD_TIMEOUT,
                f"the engine took nothing of the request for {timeouts.answer_head:g} s",
            )
        else:
            self._give_up(
                Failure.HEAD_TIMEOUT,
                f"the engine sent no head of an answer for {timeouts.answer_head:g} s",
            )

    def _give_up(self, failure: Failure, detail: str, *, discarded: bool = False) -> None:
        attempt, self._attempt = self._attempt, None
        self._whole = self._held = None
        if attempt is not None:
            attempt.failure = AttemptFailed(failure, detail, discarded=discarded)
            attempt.drop = attempt.resume = attempt.unwritten = None
            attempt.wake()
        self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()
