"""Engine time on the wall clock: scaled, instant, or moved by hand."""

import asyncio

from steersman_sim.engine.config import INSTANT

_CATCH_UP_S = 0.05
"""How far behind its due time a rank may be before the lag is forgiven (wall seconds)."""


class Pace:
    """Turns engine seconds into waiting. ``speed`` is engine seconds per wall second."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def wall(self, seconds: float) -> float:
        """The wall seconds that engine seconds take."""
        return 0.0 if self.speed == INSTANT else seconds / self.speed

    async def sleep(self, seconds: float) -> None:
        """Let engine seconds pass. Always gives the event loop a turn."""
        await asyncio.sleep(self.wall(seconds))


class Metronome:
    """Waits for step after step without adding the timer's rounding to each of them."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._due = 0.0

    async def tick(self, seconds: float) -> None:
        """Wait until ``seconds`` of engine time after the last tick, if that is still to come."""
        wall = self._pace.wall(seconds)
        if wall == 0.0:
            await asyncio.sleep(0)
            return
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - _CATCH_UP_S) + wall
        await asyncio.sleep(max(0.0, self._due - now))

    def rest(self) -> None:
        """Forget the last tick: the next one counts from now."""
        self._due = asyncio.get_running_loop().time()
