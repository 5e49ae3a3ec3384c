"""The client side of the proxy: sends a request to an engine and reads its answer.

Never follows redirects, never decompresses, never retries but in one case: a *reused* connection
that the engine closed before any byte of the answer. Engines close idle connections (after 5 s,
most of them), and that may cross with our request.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from steersman.clock import Clock
from steersman.settings import Timeouts
from steersman_proxy.exchange.messages import Failure, Header
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.connection import Connection, Scratch
from steersman_proxy.http.endpoint import Endpoint, base_url
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.pool import IdleConnections
from steersman_proxy.http.request import pieces, request_head
from steersman_proxy.http.tasks import TaskSet
from steersman_proxy.http.write_batch import WriteBatch

__all__ = ["Answer", "AttemptFailed", "UpstreamPool"]

# A connection that fails by these tells nothing of the engine.
_EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)


class Answer:
    """An engine's answer whose body is still coming. Read it to its end, or :meth:`abort` it.

    An answer that is dropped is aborted, so that its engine stops working for nobody.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        framing = attempt.framing
        self.status: int = framing.status
        self.reason: bytes = framing.reason
        self.headers: list[Header] = framing.headers
        """As they came, hop-by-hop ones included."""
        self.content_length: int | None = framing.content_length
        """Bytes of the body, if the head tells. After HEAD and in a 304: of the body that is not
        here."""

    async def read(self) -> bytes | None:
        """The next part of the body, ``None`` at its proper end; one reader at a time.

        The part is without chunk framing and in its content encoding. Parts that came while nobody
        read are joined. Raises :class:`AttemptFailed` if the end is not proper, after all that came.
        """
        return await self._attempt.read()

    @property
    def complete(self) -> bool:
        """Whether the whole answer is here, though perhaps not read yet."""
        return self._attempt.framing.complete

    @property
    def ready(self) -> bool:
        """Whether :meth:`read` would return, or raise, at once."""
        attempt = self._attempt
        framing = attempt.framing
        return bool(framing.parts) or framing.complete or attempt.failure is not None

    def abort(self) -> None:
        """Close the connection now, unless the answer is whole; the engine sees that. Idempotent."""
        self._attempt.close()

    def __del__(self) -> None:
        # The event loop may be gone already, and its sockets with it.
        with suppress(RuntimeError):
            self.abort()


def of_second_try(first: AttemptFailed, second: AttemptFailed) -> AttemptFailed:
    """What is told when a request could not be sent again after ``first`` on a reused connection."""
    if first.discarded or not second.unsent:
        return second
    # The engine may have died of the very request; another one must not get it.
    detail = f"{first}; then it could not be sent again: {second}"
    return AttemptFailed(first.failure, detail)


class UpstreamRequest(NamedTuple):
    """A request to an engine as bytes; can be sent any number of times."""

    endpoint: Endpoint
    method: str
    head: bytes
    body: Sequence[bytes]
    timeouts: Timeouts
    may_start: Callable[[], bool] | None = None


class UpstreamPool:
    """All connections to engines of one event loop.

    ``idle_limit`` is in seconds and below the engines' own. ``max_head_bytes`` bounds the head of an
    answer. ``tls`` replaces the default context of ``https`` engines.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        idle_limit: float = 4.0,
        max_idle_per_engine: int = 1024,
        max_head_bytes: int = 65536,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._idle_limit = idle_limit
        self._max_head_bytes = max_head_bytes
        self._tls = tls
        self._scratch = Scratch()
        self._idle = IdleConnections(max_per_endpoint=max_idle_per_engine)
        self._connections: set[Connection] = set()
        self.writes = WriteBatch()
        """What is written at the end of this turn of the loop, to engines and to clients."""
        self.tasks = TaskSet()
        """Of those that connect without being waited for."""
        self._closing = False
        self._all_lost: asyncio.Future[None] | None = None

    async def exchange(
        self,
        url: str,
        *,
        method: str,
        target: str,
        headers: Sequence[Header],
        body: Sequence[bytes],
        timeouts: Timeouts,
        may_start: Callable[[], bool] | None = None,
    ) -> Answer:
        """Send a request to the engine at ``url``; returns when the head of its answer is here.

        ``headers`` go out as they are (see :func:`~steersman_proxy.http.headers.request_headers`).
        ``may_start`` is asked at each write, in the same turn of the loop; once it says no, nothing
        more is written, and what was is cut off before it is a whole request.
        Raises :class:`AttemptFailed`, or ``ValueError`` for what cannot be sent to anybody. Cancelling
        closes the connection.
        """
        base = base_url(url)
        head = request_head(method=method, target=base.path + target, headers=headers)
        request = UpstreamRequest(base.endpoint, method, head, body, timeouts, may_start)
        connection = self.take_idle(base.endpoint)
        if connection is None:
            return await self._send(request, await self.connect(request))
        try:
            return await self._send(request, connection)
        except AttemptFailed as error:
            if error.failure is not Failure.CLOSED_BEFORE_ANSWER:
                raise
            first = error
        return await self._send_again(request, first)

    async def close(self) -> None:
        """Close all connections and wait until they are gone; answers still read then fail."""
        self._closing = True
        self._idle.close()
        await self.tasks.close()
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost

    def idle(self, url: str) -> int:
        """How many connections to the engine are idle."""
        return self._idle.count(base_url(url).endpoint)

    @property
    def open(self) -> int:
        """How many connections there are, idle or not."""
        return len(self._connections)

    def take_idle(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection that is still usable, if there is one."""
        return self._idle.take(endpoint)

    def framing(self, method: str) -> AnswerFraming:
        """The reader of an answer to a request of that method."""
        return AnswerFraming(method=method, max_head_bytes=self._max_head_bytes)

    async def _send(self, request: UpstreamRequest, connection: Connection) -> Answer:
        attempt = Attempt(
            framing=self.framing(request.method),
            unwritten=pieces(request.head, request.body),
            timeouts=request.timeouts,
            may_start=request.may_start,
        )
        try:
            connection.start(attempt)
            await attempt.head()
        except BaseException:
            attempt.close()
            raise
        return Answer(attempt)

    async def _send_again(self, request: UpstreamRequest, first: AttemptFailed) -> Answer:
        """On a fresh connection: a second idle one could be closed just as well."""
        try:
            return await self._send(request, await self.connect(request))
        except AttemptFailed as error:
            raise of_second_try(first, error) from None

    async def connect(self, request: UpstreamRequest) -> Connection:
        """A new connection to the request's engine.

        :raises AttemptFailed: if none comes about in time.
        """
        self._check_open()
        endpoint = request.endpoint
        loop = asyncio.get_running_loop()
        connection = Connection(
            loop,
            clock=self._clock,
            scratch=self._scratch,
            idle_limit=self._idle_limit,
            writes=self.writes,
            endpoint=endpoint,
            released=self._released,
            lost=self._lost,
        )
        seconds = request.timeouts.connect
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=self._context(endpoint)
                )
            self._check_open()
        except TimeoutError:
            connection.abort()
            detail = f"no connection came about within {seconds:g} s"
            raise AttemptFailed(Failure.CONNECT_TIMEOUT, detail) from None
        except OSError as error:
            connection.abort()
            detail = f"no connection came about: {error}"
            exhausted = error.errno in _EXHAUSTED
            failure = Failure.EXHAUSTED if exhausted else Failure.CONNECT_REFUSED
            raise AttemptFailed(failure, detail) from None
        except BaseException:
            connection.abort()
            raise
        if connection.open:
            self._connections.add(connection)
        return connection

    def _check_open(self) -> None:
        if self._closing:
            raise AttemptFailed(Failure.CONNECT_REFUSED, "the proxy is shutting down")

    def _context(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        if endpoint.scheme != "https":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _released(self, connection: Connection) -> None:
        self._idle.put(connection.endpoint, connection)

    def _lost(self, connection: Connection) -> None:
        self._idle.discard(connection.endpoint, connection)
        self._connections.discard(connection)
        if not self._connections and self._all_lost is not None and not self._all_lost.done():
            self._all_lost.set_result(None)
