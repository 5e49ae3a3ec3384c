"""The clockwork of the health tracker: calls it when an ejection ends."""

import asyncio

from steersman.clock import Clock
from steersman_proxy.health.tracker import HealthTracker


class EjectionTimer:
    """Calls :meth:`HealthTracker.expire` in time, from :meth:`start` until :meth:`close`."""

    def __init__(self, tracker: HealthTracker, *, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin; needs the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._tracker.on_wake = self._arm
        self._arm()

    def close(self) -> None:
        """Stop; ejections then last until somebody else calls ``expire()``."""
        self._loop = None
        self._tracker.on_wake = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        deadline = self._tracker.next_deadline
        # The deadlines come in order, so that a timer that is set is set for the first one.
        if deadline is None or self._handle is not None or self._loop is None:
            return
        delay = max(0.0, deadline - self._clock.now())
        self._handle = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._tracker.expire()
        self._arm()
