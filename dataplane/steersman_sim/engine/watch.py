"""Waiting for a state of the engine instead of for a time."""

import asyncio
from collections.abc import Callable


class Watch:
    """Wakes those who wait for a predicate; costs nothing when nobody waits."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def notify(self) -> None:
        """Something changed."""
        if not self._waiting:
            return
        left: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        for predicate, future in self._waiting:
            if future.done():
                continue
            if predicate():
                future.set_result(None)
            else:
                left.append((predicate, future))
        self._waiting = left

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Return as soon as the predicate holds."""
        if predicate():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((predicate, future))
        await future
