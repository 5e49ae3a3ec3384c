"""What this process has in flight on the engines that the operator watches.

A zero that is reported by the table that closed an engine's gate is final, and operations wait for
it. So it is told at once: when the engine is watched, when a table comes, and when its last request
ends. Everything else is for people and may be half a second old.

An engine that goes on being watched is not told again because others come or go: when a whole pool
is paused they do that one by one, and of five hundred engines each change would be five hundred
counts.
"""

from collections.abc import Callable, Collection, Sequence

from steersman.clock import Clock
from steersman_proxy.routing.fleet import Fleet

REPEAT = 0.5
"""Seconds between two reports while anything is in flight, or a report could not be sent."""


class InFlightReporter:
    """Makes the reports. ``send`` takes the counts by engine id, and says whether they went out."""

    def __init__(
        self, fleet: Fleet, *, clock: Clock, send: Callable[[dict[str, int]], bool]
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._send = send
        self._watched: frozenset[str] = frozenset()
        self._idle: set[str] = set()
        self.due: float | None = None
        """When :meth:`tick` has something to do, on the clock."""

    def watch(self, engines: Sequence[str]) -> None:
        """Report on these engines from now on, and on no others."""
        before, self._watched = self._watched, frozenset(engines)
        if not self._watched:
            self.refresh()
        elif added := self._watched - before:
            self._report(added)

    def refresh(self) -> None:
        """Report on all watched engines now: what an earlier report said may not count any more."""
        self._idle.clear()
        self.due = None
        if self._watched:
            self._report(self._watched)

    def idle(self, engine: str) -> bool:
        """The last request of an engine has ended; whether that is to be reported soon.

        Soon, not now: many end in one turn of the loop.
        """
        if engine not in self._watched:
            return False
        self._idle.add(engine)
        self.due = self._clock.now()
        return True

    def tick(self) -> None:
        """Report what is due."""
        if self.due is None or self._clock.now() < self.due:
            return
        self.refresh()

    def _report(self, engines: Collection[str]) -> None:
        counts = self._fleet.in_flight(engines)
        if not self._send(counts) or any(counts.values()):
            again = self._clock.now() + REPEAT
            self.due = again if self.due is None else min(self.due, again)
