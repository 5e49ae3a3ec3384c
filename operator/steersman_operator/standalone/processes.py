"""Child processes of ``steersman up``: started, watched, started again, and never left behind."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1

STOP_GRACE = 8.0
"""Seconds between asking a process to end and ending it."""

_libc = ctypes.CDLL(None, use_errno=True)


def dying_with(parent: int) -> Callable[[], None]:
    """A function for the child: the system kills it when ``parent`` ends, however that ends."""

    def arrange() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before this was arranged
            os._exit(1)

    return arrange


class Child:
    """One child process; ``log`` gets what it prints."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, environment: dict[str, str]
    ) -> None:
        self.name = name
        self._arguments = [sys.executable, "-m", *arguments]
        self._log = log
        self._environment = os.environ | environment
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; ``None`` before the start."""
        return None if self._process is None else self._process.pid

    async def start(self) -> int:
        """Start it; returns its pid.

        :raises OSError: if the system cannot.
        """
        with self._log.open("ab") as log:
            # A child's own signals: Ctrl-C in the terminal is for `up`, which ends them in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=dying_with(os.getpid()),
            )
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, confirmed by the system; returns the exit code."""
        assert self._process is not None, "it was not started"
        return await self._process.wait()

    async def stop(self, *, grace: float = STOP_GRACE) -> None:
        """Ask it to end, and end it if it does not."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def last_lines(self, count: int = 5) -> list[str]:
        """The end of its log."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
                return log.read().decode(errors="replace").splitlines()[-count:]
        except OSError:
            return []
