"""Messages between processes: late, lost, doubled, out of order, and cut off without a word."""

import random
from collections.abc import Callable
from typing import Any

from tests.fleet.world.scheduler import Process, Scheduler


class Network:
    """A message goes from a place to a process and is handled there by a method."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.blocked: set[tuple[str, str]] = set()
        """From where nothing arrives where. Nobody is told."""
        self.latency = 0.02
        self.loss = 0.0
        self.doubling = 0.0
        self.lateness = 0.0
        """The share of messages that take a hundred times as long."""

    def delay(self) -> float:
        usual = self._rng.expovariate(1 / self.latency)
        return usual * 100 if self._rng.random() < self.lateness else usual

    def send(
        self, source: str, target: str, process: Process, work: Callable[..., None], *args: Any
    ) -> None:
        copies = 2 if self.doubling and self._rng.random() < self.doubling else 1
        for _ in range(copies):
            if (source, target) in self.blocked:
                return
            if self.loss and self._rng.random() < self.loss:
                continue
            process.later(self.delay(), work, *args)

    def block(self, one: str, other: str, *, both: bool) -> None:
        self.blocked.add((one, other))
        if both:
            self.blocked.add((other, one))

    def calm(self) -> None:
        self.blocked.clear()
        self.loss = self.doubling = self.lateness = 0.0
        self.latency = 0.01
