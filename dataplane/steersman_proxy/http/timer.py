"""One deadline that moves often and passes seldom."""

import asyncio
from collections.abc import Callable

from steersman.clock import Clock


class MovingDeadline:
    """Calls ``expired`` once the clock has reached the deadline set last.

    Moving a deadline further away costs two attribute writes: the event loop's timer stays where it
    is, and when it fires early it looks again. A connection that is used a thousand times a second
    so touches the loop's heap once in its idle limit, instead of twice a request.
    """

    __slots__ = ("_expired", "_fires_at", "_handle", "_loop", "_now", "at")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, clock: Clock, expired: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._now = clock.now
        self._expired = expired
        self.at: float | None = None
        """The moment on the clock; may be moved further away directly once it was set."""
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def set(self, seconds: float) -> None:
        """Expire ``seconds`` from now, and not at any moment set before."""
        deadline = self._now() + seconds
        self.at = deadline
        if self._handle is None:
            self._arm(seconds, deadline)
        elif self._fires_at > deadline:
            self._handle.cancel()
            self._arm(seconds, deadline)

    def clear(self) -> None:
        """Do not expire."""
        self.at = None

    def cancel(self) -> None:
        """Do not expire, and let go of the event loop."""
        self.at = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float, deadline: float) -> None:
        self._fires_at = deadline
        self._handle = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self.at is None:
            return
        remaining = self.at - self._now()
        if remaining > 0:
            self._arm(remaining, self.at)
        else:
            self.at = None
            self._expired()
