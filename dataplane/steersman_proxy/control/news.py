"""Engines whose own answers named another version than the table does, told to the operator.

The operator looks at every engine now and then; this is to have it look at one at once. So it is
advisory, may be lost, and must never be much: a trainer that changes a hundred engines behind the
operator's back makes thousands of answers say so in the same second.
"""

from collections.abc import Callable

from steersman.clock import Clock
from steersman_proxy.routing.engines import Engine

PAUSE = 0.5
"""Seconds between two batches."""

BATCH = 4
"""Engines that are told of at a time; the socket takes few frames, and tables matter more."""

AGAIN = 1.0
"""Seconds before the same engine is told of again."""


class VersionNews:
    """Makes the reports, of one engine each, the one that has waited longest first.

    ``send`` takes an engine's id and version (``None``: it has none any more) and says whether they went
    out. What is told is what is known by then; what the table says by then is not told at all.
    """

    def __init__(self, *, clock: Clock, send: Callable[[str, str | None], bool]) -> None:
        self._clock = clock
        self._send = send
        self._waiting: dict[str, Engine] = {}
        """By id, in the order in which they came; as many as the table has, at most."""
        self._told: dict[str, float] = {}
        """When, of those that were told of within :data:`AGAIN`."""
        self.due: float | None = None
        """When :meth:`tick` has something to do, on the clock."""
        self._next = float("-inf")

    def note(self, engine: Engine) -> bool:
        """An engine's answer has changed what is known of it; whether that is to be told soon.

        Soon, not now: many answers come in one turn of the loop.
        """
        if not engine.overlaid:
            return False
        self._waiting[engine.id] = engine
        due = self._due_of(engine.id)
        self.due = due if self.due is None else min(self.due, due)
        return True

    def tick(self) -> None:
        """Tell what is due."""
        now = self._clock.now()
        if self.due is None or now < self.due:
            return
        self._told = {name: at for name, at in self._told.items() if now < at + AGAIN}
        left = BATCH
        for name, engine in list(self._waiting.items()):
            if engine.pool is None or not engine.overlaid:
                del self._waiting[name]  # it has gone, or the table has come to say the same
            elif name not in self._told:
                if not left or not self._send(name, engine.version):
                    break
                left -= 1
                del self._waiting[name]
                self._told[name] = now
        self._next = now + PAUSE
        self.due = min(map(self._due_of, self._waiting), default=None)

    def _due_of(self, name: str) -> float:
        told = self._told.get(name)
        due = max(self._clock.now(), self._next)
        return due if told is None else max(due, told + AGAIN)
