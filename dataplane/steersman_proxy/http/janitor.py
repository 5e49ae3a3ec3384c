"""The janitor: wakes when the first request in flight has become stale.

Every other timeout is about one thing that does not happen. A request may be kept alive by things
that do happen, such as an engine that sends a byte a minute, or by a fault of ours; its place in the
engine's count would be gone for good. The janitor looks at what is in flight, whatever it does.
"""

import asyncio
from collections.abc import Callable

from steersman.clock import Clock


class Janitor:
    """Calls ``sweep`` at the earliest moment that it was told to expect.

    ``sweep`` ends what is stale by the given moment, and returns when to come again, if at all. It
    may be called early, since requests that ended by themselves are not taken back.
    """

    def __init__(self, sweep: Callable[[float], float | None], *, clock: Clock) -> None:
        self._sweep = sweep
        self._clock = clock
        self._at: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def expect(self, at: float | None) -> None:
        """Something will be stale at ``at``, on the clock. Costs a comparison, nearly always."""
        if at is None or (self._at is not None and self._at <= at):
            return
        self.close()
        self._at = at
        delay = max(0.0, at - self._clock.now())
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def close(self) -> None:
        """Sweep no more, until something is expected again."""
        self._at = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._at = self._handle = None
        self.expect(self._sweep(self._clock.now()))
