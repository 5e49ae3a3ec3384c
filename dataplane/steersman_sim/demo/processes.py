"""Processes of the run: started together, watched, and ended by their own ids."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from steersman_sim.demo.options import DemoError

_END_WITHIN = 4.0
"""Seconds that a process gets to end after SIGTERM."""
_TAIL_LINES = 12


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
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "steersman.cli",
                *arguments,
                cwd=directory,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                # Ctrl-C in the terminal is for the demonstration alone, which ends its children in
                # order; with them in its own group they would die under its running requests.
                start_new_session=True,
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

    def last_words(self) -> str:
        """The last lines of its log, as the end of a message."""
        with suppress(OSError):
            lines = self.log.read_text("utf-8", errors="replace").rstrip().splitlines()
            if lines:
                return "The end of its log:\n" + "\n".join(
                    f"  {line}" for line in lines[-_TAIL_LINES:]
                )
        return "Its log is empty."

    async def end(self) -> None:
        """End it: asked first, then forced. Does nothing if it has ended."""
        if self.running:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(_END_WITHIN):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
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
