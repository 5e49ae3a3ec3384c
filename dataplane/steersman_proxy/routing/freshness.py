"""Whether the table can still be taken for the newest one, and what may be done if not.

A proxy that is out of contact keeps its last table. Requests that take any version go on by it.
What insists on a version cannot be proven any more, and is refused. A *fenced* pool starts nothing at
all: its operator may count a silent proxy out and change engines, trusting that the proxy has
stopped by itself.
"""

from steersman.clock import Clock


class Freshness:
    """Until when the table is fresh; for ever if it does not come from an operator."""

    __slots__ = ("_clock", "leased", "until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.until = float("inf")
        self.leased = False
        """Whether there is an end at all; most checks need to know no more."""

    @property
    def stale(self) -> bool:
        """Whether the time is over.

        The clock is asked, and not a timer that sets a flag: after a stall of the process the first
        request may be served before the timer is.
        """
        return self.leased and self._clock.now() >= self.until

    def set(self, *, until: float) -> None:
        """Fresh until a moment on the clock; a past one is stale now."""
        self.until = until
        self.leased = until != float("inf")
