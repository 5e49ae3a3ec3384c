"""Processes of the run: started together, watched, and ended by their own ids."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from steersman_sim.demo.options import DemoError

_END_WITHIN = 4.0
"""Seconds that a process gets to end after SIGTERM."""
_TAIL_LINES = 12
_PR_SET_PDEATHSIG = 1


def ending_with(parent: int) -> Callable[[], None]:
    """For the child between fork and exec: the system kills it when ``parent`` ends, also by a
    signal that cannot be caught. `steersman up` sees to its own children in the same way.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it

    def arrange() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before this was arranged
            os._exit(1)

    return arrange


async def start_steersman(
    arguments: Sequence[str],
    *,
    directory: Path,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> asyncio.subprocess.Process:
    """Start ``steersman`` with ``arguments`` in ``directory``. It does not outlive this process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "steersman.cli",
        *arguments,
        cwd=directory,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "STEERSMAN_DIR": str(directory)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        # Ctrl-C in the terminal is for the demonstration alone, which ends its children in order;
        # with them in its own group they would die under its running requests.
        start_new_session=True,
        preexec_fn=ending_with(os.getpid()),
    )


class Child:
    """One process whose output goes to a file."""

    def __init__(self, name: str, *, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, name: str, *, arguments: Sequence[str], directory: Path) -> "Child":
        """Start ``steersman`` with ``arguments`` in ``directory``, where its log is written too."""
        log = directory / f"{name}.log"
        with log.open("wb") as output:
            process = await start_steersman(
                arguments, directory=directory, stdout=output, stderr=asyncio.subprocess.STDOUT
            )
        return cls(name, process=process, log=log)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def died(self) -> DemoError:
        """Wait until it has ended, and say so with the end of its log."""
        code = await self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return DemoError(f"{self.name} ended by itself ({how}). {self.last_words()}")

    def output(self) -> str:
        """What it has printed so far."""
        with suppress(OSError):
            return self.log.read_text("utf-8", errors="replace")
        return ""

    def last_words(self) -> str:
        """The last lines of its log, as the end of a message."""
        lines = self.output().rstrip().splitlines()
        if not lines:
            return "Its log is empty."
        tail = "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
        return f"The end of its log:\n{tail}"

    async def end(self) -> None:
        """End it: asked twice (the second time means at once), then forced. Does nothing if it has
        ended.
        """
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if not self.running:
                return
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_WITHIN):
                    await self._process.wait()
        await self._process.wait()


async def end_all(children: Sequence[Child]) -> None:
    """End processes at once."""
    await asyncio.gather(*(child.end() for child in children))


def free_ports(count: int) -> list[int]:
    """As many different TCP ports of this machine that nobody listens on now.

    Another program could take one before our process does; that process then says so and ends.
    """
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()
