"""The clock and the loop of the hold queue: wakes it when something changed, and when time is up."""

import asyncio

from steersman.clock import Clock
from steersman_proxy.routing.hold import HoldQueue


class HoldDriver:
    """Runs a :class:`~steersman_proxy.routing.hold.HoldQueue` on the running event loop.

    The queue asks for a turn through ``on_wake``; each turn releases at most one slice, so that
    thousands of waiting requests do not stop the loop.
    """

    def __init__(self, queue: HoldQueue, *, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        queue.on_wake = self.wake

    def wake(self) -> None:
        """Give the queue a turn soon; cheap if one is due already."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._turn = None
        if self._queue.pump():
            self.wake()
        self._set_timer()

    def _set_timer(self) -> None:
        at = self._queue.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._queue.expire()
        self._set_timer()

    def close(self) -> None:
        """Stop; the requests that still wait are their adapters' business."""
        self._queue.on_wake = None
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
