"""Locks between processes: held by an open file, and let go by the system when the process ends."""

import asyncio
import fcntl
import os
from pathlib import Path

from steersman.errors import SteersmanError


class FleetRunning(SteersmanError):
    """Another `steersman up` has the directory."""

    code = "fleet_running"
    remedy = "Use that one, or end it first; `steersman get -f DIR` shows its fleet."


class FileLock:
    """An exclusive lock on a file, which says who holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock; ``False`` if somebody else has it.

        :raises OSError: if the file cannot be made.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return True

    async def wait(self, *, every: float = 0.05) -> None:
        """Take the lock as soon as nobody else has it; looked for every so many seconds."""
        while not self.take():  # noqa: ASYNC110 - the system tells nobody when a lock is let go
            await asyncio.sleep(every)

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """The process that has it, as it says itself; ``?`` if it does not."""
        try:
            return self._path.read_text(encoding="ascii").strip() or "?"
        except (OSError, UnicodeDecodeError):
            return "?"
