"""SGLang's tokenizer gate: a pause flag behind a condition, and a readers-writer lock.

Every request for tokens waits until the engine is not paused, then holds the lock as a reader until
it ends. A weight update on an engine that is not paused takes the lock as a writer: it waits for
all requests in flight, and new ones queue behind it. A weight update on a paused engine holds the
condition instead, so that a ``continue_generation`` waits for it (SGLang 0.5.23).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class ReadersWriterLock:
    """Many readers or one writer; waiting writers go before new readers."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self.readers = 0
        self._writing = False
        self._writers_waiting = 0

    @property
    def locked(self) -> bool:
        """Whether anybody holds it."""
        return self.readers > 0 or self._writing

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Hold the lock as a reader."""
        if self._writing or self._writers_waiting:
            async with self._condition:
                await self._condition.wait_for(
                    lambda: not self._writing and not self._writers_waiting
                )
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            if self._writers_waiting:
                await self._tell()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold the lock as the writer, after all readers have left."""
        self._writers_waiting += 1
        try:
            async with self._condition:
                await self._condition.wait_for(lambda: not self._writing and self.readers == 0)
                self._writing = True
        finally:
            self._writers_waiting -= 1
            if not self._writing:
                await self._tell()
        try:
            yield
        finally:
            self._writing = False
            await self._tell()

    async def _tell(self) -> None:
        async with self._condition:
            self._condition.notify_all()


class Gate:
    """The pause flag and the lock, together as a request meets them."""

    def __init__(self, *, changed: Callable[[], None]) -> None:
        """``changed`` is called when a request begins or ends to wait here."""
        self.paused = False
        self._changed = changed
        self.condition = asyncio.Condition()
        self.lock = ReadersWriterLock()
        self.waiting = 0
        """Requests that wait because of the pause or of a writer."""

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait until requests are let through; hold the lock as a reader."""
        self.waiting += 1
        self._changed()
        try:
            if self.paused or self.condition.locked():
                async with self.condition:
                    await self.condition.wait_for(lambda: not self.paused)
            reading = self.lock.reading()
            await reading.__aenter__()
        finally:
            self.waiting -= 1
            self._changed()
        try:
            yield
        finally:
            await reading.__aexit__(None, None, None)

    @asynccontextmanager
    async def exclusive(self, *, hold_condition: bool) -> AsyncIterator[None]:
        """Enter as a weight update does.

        Paused: at once, keeping ``continue_generation`` out only with ``hold_condition`` (an update
        from disk does not hold it, and can race with a continue). Not paused: as the writer.
        """
        async with self.condition:
            paused = self.paused
            if paused and hold_condition:
                yield
                return
        if paused:
            yield
        else:
            async with self.lock.writing():
                yield
