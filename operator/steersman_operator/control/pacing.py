"""When a changed table is sent: changes that come together go together, closures go at once."""

from steersman.clock import Clock

INTERVAL = 0.1
"""Seconds between two ordinary tables, at least."""


class Pacing:
    """Decides the moment; whoever holds it sends.

    An ordinary change waits for ``debounce`` seconds, so that those that follow it are in the same
    table, and for :data:`INTERVAL` since the table before. An urgent one (a gate has closed, and an
    operation waits for that to be known everywhere) waits for nothing.
    """

    def __init__(self, clock: Clock, *, debounce: float) -> None:
        self._clock = clock
        self._debounce = debounce
        self._last = float("-inf")
        self.due: float | None = None
        """When to send, on the clock; ``None`` if nothing has changed."""

    def changed(self, *, urgent: bool) -> None:
        """There is a new table."""
        now = self._clock.now()
        if urgent:
            self.due = now
        elif self.due is None:
            self.due = max(now + self._debounce, self._last + INTERVAL)

    def take(self) -> bool:
        """Whether it is time; if so, the table counts as sent."""
        if self.due is None or self._clock.now() < self.due:
            return False
        self._last = self._clock.now()
        self.due = None
        return True
