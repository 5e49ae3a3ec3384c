"""One request on its way to one engine, told by callbacks: no task, no future.

The twin of :meth:`UpstreamPool.exchange` for an adapter that has no coroutine to wait in.
"""

import asyncio
from collections.abc import Callable

from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.request import pieces
from steersman_proxy.http.upstream import UpstreamPool, UpstreamRequest, of_second_try

# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_CLOSED_BEFORE_ANSWER = Failure.CLOSED_BEFORE_ANSWER


class Sending(Attempt):
    """An attempt that connects by itself, sends when :meth:`start` is called, and tries a second time
    where that is allowed.

    ``changed`` is called whenever more of the answer has come, its end, or a failure; also within
    :meth:`start`. What it finds is in ``framing`` and ``failure``.
    """

    __slots__ = ("_changed", "_connecting", "_first", "_pool", "_request", "_reused")

    def __init__(
        self, pool: UpstreamPool, request: UpstreamRequest, *, changed: Callable[[], None]
    ) -> None:
        super().__init__(
            framing=pool.framing(request.method),
            unwritten=pieces(request.head, request.body),
            timeouts=request.timeouts,
            may_start=request.may_start,
        )
        self._pool = pool
        self._request = request
        self._changed: Callable[[], None] | None = changed
        self._connecting: asyncio.Task[None] | None = None
        self._reused = False
        self._first: AttemptFailed | None = None

    def start(self) -> None:
        """Send the request, at once if there is an idle connection."""
        connection = self._pool.take_idle(self._request.endpoint)
        if connection is None:
            self.connect()
        else:
            self._reused = True
            connection.start(self)

    def take(self) -> bytes:
        """What of the body has come and was not taken; the engine is read on."""
        data = self.framing.take()
        if self.resume is not None:
            self.resume()
        return data

    def forget_request(self) -> None:
        """The engine has answered, so that the request will not be sent again."""
        self._request = self._request._replace(head=b"", body=())

    def close(self) -> None:
        """Close the connection unless the answer is whole; nothing is told any more. Idempotent."""
        self._changed = self.relay = None
        if self._connecting is not None:
            # Let go of: a cancelled task refers back to this by its traceback.
            task, self._connecting = self._connecting, None
            task.cancel()
        super().close()

    def wake(self) -> None:
        """Called by the connection: something happened."""
        failure = self.failure
        if failure is not None and not self.framing.head_done:
            if self._reused and failure.failure is _CLOSED_BEFORE_ANSWER:
                # Engines close idle connections, and that may cross with our request. A second idle
                # one could be closed just as well.
                self._reused = False
                self._first = failure
                self.connect()
                return
            if self._first is not None:
                self.failure = of_second_try(self._first, failure)
        if self._changed is not None:
            self._changed()

    def connect(self) -> None:
        """Send the request on a new connection."""
        self._connecting = self._pool.tasks.start(self._start_on_new())

    async def _start_on_new(self) -> None:
        try:
            connection = await self._pool.connect(self._request)
        except AttemptFailed as error:
            self._connecting = None
            self.failure = error
            self.wake()
            return
        self._connecting = None
        if self.failure is not None:
            self.begin_again()
        connection.start(self)

    def begin_again(self) -> None:
        """Have nothing written and nothing read yet."""
        request = self._request
        self.failure = None
        self.framing = self._pool.framing(request.method)
        self.unwritten = pieces(request.head, request.body)
