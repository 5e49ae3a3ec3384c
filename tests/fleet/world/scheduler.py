"""One virtual clock and one order of events for everything in a world."""

import heapq
from collections.abc import Callable
from typing import Any


class Scheduler:
    """Runs what is due, in the order of time; what is due at once in the order it was asked for."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def now(self) -> float:
        """The clock, as the proxies' code takes it."""
        return self.time

    def at(self, time: float, work: Callable[..., None], *args: Any) -> None:
        self._asked += 1
        heapq.heappush(self._heap, (time, self._asked, work, args))

    def after(self, delay: float, work: Callable[..., None], *args: Any) -> None:
        self.at(self.time + delay, work, *args)

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            time, _, work, args = heapq.heappop(heap)
            # No two events happen at the very same time: clocks of machines are finer than that.
            self.time = time if time > self.time else self.time + 1e-6
            self.events += 1
            work(*args)
        self.time = max(self.time, end)


class Process:
    """Something that can stall and die. What it has planned happens after the stall, or never."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.alive = True
        self.stalled_until = 0.0

    def later(self, delay: float, work: Callable[..., None], *args: Any) -> None:
        self.scheduler.at(self.scheduler.time + delay, self._fire, work, args)

    def every(self, period: float, work: Callable[[], None]) -> None:
        work()
        self.later(period, self.every, period, work)

    def _fire(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.scheduler.time < self.stalled_until:
            self.scheduler.at(self.stalled_until, self._fire, work, args)
            return
        work(*args)

    def stall(self, seconds: float) -> None:
        self.stalled_until = max(self.stalled_until, self.scheduler.time + seconds)

    @property
    def stalled(self) -> bool:
        return self.scheduler.time < self.stalled_until
