"""Watching a table file: a changed file becomes a table, a bad one changes nothing.

The file is polled, because notifications are lost on network file systems, in mounted ConfigMaps
(whose files are symbolic links that get another target) and through editors that write by rename.
Whoever writes the file should write another one beside it and rename it into place; half a file
that happens to be valid cannot be told from a whole one.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from steersman.clock import Clock, MonotonicClock
from steersman.documents.load import parse_document, read_content
from steersman.errors import DocumentError
from steersman.table import Epoch, Table
from steersman_proxy.tablefile.load import read_table_file
from steersman_proxy.tablefile.reader import Step, TableReader

Signature = tuple[int, int, int, int] | None
"""Device, inode, size and modification time of what the path leads to; ``None`` is no file."""

BREATH = 0.0002
"""Seconds that reading pauses for now and then, so that the event loop gets the interpreter."""


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What ``/status`` says of the table file."""

    path: str
    epoch: Epoch | None
    """Of the table in force; ``None`` before the first good file."""
    loaded_at: float | None
    """When that was read, on the watcher's clock."""
    loads: int
    """How many good contents were read."""
    failures: int
    """How many bad ones, a file that went away included."""
    problems: tuple[str, ...]
    """What is wrong with the file now; empty if the table in force is that of the file."""


class TableWatcher:
    """Reads a table file again whenever it changes.

    ``on_table`` gets each table that differs from the one before, ``on_error`` each error once for
    each bad content, ``on_recovered`` is called when the file is good again, after ``on_table`` if
    that is called too. All are called in the event loop; what they raise ends :meth:`run`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        on_table: Callable[[Table], None],
        on_error: Callable[[DocumentError], None] = lambda _: None,
        on_recovered: Callable[[], None] = lambda: None,
        poll: float = 0.2,
        clock: Clock | None = None,
    ) -> None:
        self._path = Path(path)
        self._poll = poll
        self._on_table = on_table
        self._on_error = on_error
        self._on_recovered = on_recovered
        self._clock = clock or MonotonicClock()
        self._reader = TableReader()
        self._signature: Signature = None
        self._settled = False
        self._digest: bytes | None = None
        self._error: DocumentError | None = None
        self._loaded_at: float | None = None
        self._loads = 0
        self._failures = 0

    @property
    def status(self) -> WatchStatus:
        """How the file and the table in force stand to each other now."""
        table = self._reader.table
        return WatchStatus(
            path=str(self._path),
            epoch=table.epoch if table else None,
            loaded_at=self._loaded_at,
            loads=self._loads,
            failures=self._failures,
            problems=tuple(self._error.problems) if self._error else (),
        )

    @property
    def error(self) -> DocumentError | None:
        """What is wrong with the file now; ``None`` if the table in force is that of the file."""
        return self._error

    @property
    def table(self) -> Table | None:
        """The table in force: that of the last good file."""
        return self._reader.table

    async def first(self) -> Table:
        """Read the file at start, when there is no last good one to keep.

        :raises DocumentError: if it is bad or not there. :meth:`run` may still be used after that,
            to wait for a better one.
        """
        await self.check()
        table = self._reader.table
        if table is None:
            assert self._error is not None, "a check ends in a table or in an error"
            raise self._error
        return table

    async def run(self) -> None:
        """Look at the file every ``poll`` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._poll)
            await self.check()

    async def check(self) -> None:
        """Look at the file once; read it if it may have changed."""
        signature = _signature(self._path)
        if signature == self._signature and self._settled:
            return
        digest, outcome = await self._look()
        # Nothing was remembered before this line: a cancelled look is as if it had not been.
        #
        # A write right after our reading can leave size and time as they were, if the file system's
        # clock is coarse. So a file is read once more at the next look after a change.
        self._settled = signature == self._signature
        self._signature = signature
        if digest == self._digest:
            return
        self._digest = digest
        if isinstance(outcome, DocumentError):
            self._failed(outcome)
        elif outcome is not None:
            self._good(outcome)

    async def _look(self) -> tuple[bytes, Step | DocumentError | None]:
        """A digest of the content, and what it makes of the table unless it is known already."""
        try:
            content = await asyncio.to_thread(read_content, self._path)
        except DocumentError as error:
            # An unreadable file has no content; its error stands for it, so that it is told once.
            return _digest(str(error).encode()), error
        digest = _digest(content)
        if digest == self._digest:
            return digest, None
        try:
            return digest, await asyncio.to_thread(self._prepare, content)
        except DocumentError as error:
            return digest, error

    def _prepare(self, content: bytes) -> Step:
        """Runs in a thread, as a thousand engines take some hundred milliseconds."""
        document = parse_document(str(self._path), content, breathe=_breathe)
        return self._reader.prepare(read_table_file(document))

    def _failed(self, error: DocumentError) -> None:
        self._error = error
        self._failures += 1
        self._on_error(error)

    def _good(self, step: Step) -> None:
        before = self._reader.table
        was_bad = self._error is not None
        table = self._reader.commit(step)
        self._error = None
        self._loads += 1
        self._loaded_at = self._clock.now()
        if table is not before:
            self._on_table(table)
        if was_bad:
            self._on_recovered()


def _signature(path: Path) -> Signature:
    """What changes when the content does; follows links, so a new target is a new file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _breathe() -> None:
    time.sleep(BREATH)
