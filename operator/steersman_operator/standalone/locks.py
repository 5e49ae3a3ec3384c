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
    """An exclusive lock on a file, which says who holds it.

    With ``directory`` that is locked, too: a lock file is easily removed, and the one that is then
    made anew is nobody's. Two supervisors of one directory would strike out each other's proxies.
    """

    def __init__(self, path: Path, *, directory: Path | None = None) -> None:
        self._path = path
        self._directory = directory
        self._descriptors: list[int] = []

    def take(self) -> bool:
        """Take the lock; ``False`` if somebody else has it.

        :raises OSError: if the file cannot be made.
        """
        taken: list[int] = []
        try:
            if self._directory is not None:
                taken.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                _lock_directory(taken[-1])
            taken.append(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(taken[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(taken[-1], 0)
            os.write(taken[-1], f"{os.getpid()}\n".encode())
        except BaseException as error:
            for descriptor in taken:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptors = taken
        return True

    async def wait(self, *, every: float = 0.05) -> None:
        """Take the lock as soon as nobody else has it; looked for every so many seconds."""
        while not self.take():  # noqa: ASYNC110 - the system tells nobody when a lock is let go
            await asyncio.sleep(every)

    def release(self) -> None:
        """Let go. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def holder(self) -> str:
        """The process that has it, as it says itself; ``?`` if it does not."""
        try:
            return self._path.read_text(encoding="ascii").strip() or "?"
        except (OSError, UnicodeDecodeError):
            return "?"


def _lock_directory(descriptor: int) -> None:
    """Lock a directory where the file system can: some network ones lock no directories.

    :raises BlockingIOError: if somebody else has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
