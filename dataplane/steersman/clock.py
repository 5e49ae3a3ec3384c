"""Time, injected: every deadline and every age is counted on one monotonic clock.

Wall-clock time never decides anything; it is only ever printed. Tests drive a :class:`FakeClock`.
"""

import time
from typing import Protocol, Self

import msgspec


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Seconds since an arbitrary fixed moment; never goes back."""
        ...


class MonotonicClock:
    """The clock of a running process."""

    # Not a method around it: every request asks several times.
    now = staticmethod(time.monotonic)
    """Seconds on the system's monotonic clock."""


class FakeClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def now(self) -> float:
        """The moment set so far, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``, which must not be negative."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self._now += seconds


class Deadline(msgspec.Struct, frozen=True):
    """A moment on a :class:`Clock`; ``at`` is in that clock's seconds."""

    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Self:
        """The moment ``seconds`` from now."""
        return cls(clock.now() + seconds)

    def remaining(self, clock: Clock) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - clock.now())

    def passed(self, clock: Clock) -> bool:
        """Whether the moment has come."""
        return clock.now() >= self.at
