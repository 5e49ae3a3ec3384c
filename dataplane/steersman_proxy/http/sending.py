"""One request on its way to one engine, told by callbacks: no task, no future.

The twin of :meth:`UpstreamPool.exchange` for an adapter that has no coroutine to wait in.
"""

import asyncio
from collections.abc import Callable

from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.connection import Connection
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.request import pieces
from steersman_proxy.http.upstream import UpstreamPool, UpstreamRequest, of_second_try


class _Told(Attempt):
    """An attempt whose reader is called instead of waiting."""

    __slots__ = ("_sending",)

    def tell(self, sending: "Sending") -> None:
        self._sending: Sending | None = sending

    def wake(self) -> None:
        if self._sending is not None:
            self._sending.changed()

    def leave(self) -> None:
        """Tell nobody any more, and close the connection if it is still ours."""
        self._sending = None
        self.close()


class Sending:
    """Sends a request when :meth:`start` is called, and reads its answer.

    ``changed`` is called whenever more of the answer has come, its end, or a failure; also within
    :meth:`start`. What it finds is in ``framing`` and ``failure``.
    """

    __slots__ = (
        "_attempt",
        "_changed",
        "_connecting",
        "_first",
        "_pool",
        "_request",
        "_reused",
        "failure",
        "framing",
    )

    def __init__(
        self, pool: UpstreamPool, request: UpstreamRequest, *, changed: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._request = request
        self._changed: Callable[[], None] | None = changed
        self._attempt: _Told | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reused = False
        self._first: AttemptFailed | None = None
        self.framing: AnswerFraming | None = None
        """The answer as far as it has come; ``None`` before anything was sent."""
        self.failure: AttemptFailed | None = None
        """How it ended, if not well. What came before that is in ``framing``."""

    def start(self) -> None:
        """Send the request, at once if there is an idle connection."""
        connection = self._pool.take_idle(self._request.endpoint)
        if connection is None:
            self._connect()
        else:
            self._reused = True
            self._begin(connection)

    def take(self) -> bytes:
        """What of the body has come and was not taken; the engine is read on."""
        attempt = self._attempt
        assert attempt is not None, "nothing was sent"
        data = attempt.framing.take()
        if attempt.resume is not None:
            attempt.resume()
        return data

    def close(self) -> None:
        """Close the connection unless the answer is whole; nothing is told any more. Idempotent."""
        self._changed = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._attempt is not None:
            self._attempt.leave()

    def changed(self) -> None:
        """Something happened on the connection."""
        attempt = self._attempt
        assert attempt is not None, "nothing was sent"
        failure = attempt.failure
        if failure is not None:
            if self._reused and failure.failure is Failure.CLOSED_BEFORE_ANSWER:
                # Engines close idle connections, and that may cross with our request. A second idle
                # one could be closed just as well.
                self._reused = False
                self._first = failure
                attempt.leave()
                self._connect()
                return
            self._fail(failure)
        elif self._changed is not None:
            self._changed()

    def _connect(self) -> None:
        self._connecting = self._pool.tasks.start(self._begin_on_new())

    async def _begin_on_new(self) -> None:
        try:
            connection = await self._pool.connect(self._request)
        except AttemptFailed as error:
            self._connecting = None
            self._fail(error)
            return
        self._connecting = None
        self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        request = self._request
        self._attempt = attempt = _Told(
            framing=self._pool.framing(request.method),
            unwritten=pieces(request.head, request.body),
            timeouts=request.timeouts,
            may_start=request.may_start,
        )
        self.framing = attempt.framing
        attempt.tell(self)
        connection.start(attempt)

    def _fail(self, failure: AttemptFailed) -> None:
        if self._first is not None and (self.framing is None or not self.framing.head_done):
            failure = of_second_try(self._first, failure)
        self.failure = failure
        if self._changed is not None:
            self._changed()
