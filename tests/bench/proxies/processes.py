"""Processes of a benchmark: on their core, in groups that end together, never left behind."""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE = 3.0
"""Seconds that a program with others below it gets to end them."""

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Where things run; without a second core everything shares what there is."""

    proxy: int | None
    load: int | None
    """Of the load generator, the engines and the benchmark itself."""

    @classmethod
    def of_this_machine(cls) -> "Cores":
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            return cls(proxy=None, load=None)
        return cls(proxy=allowed[0], load=allowed[1])

    def described(self) -> dict[str, object]:
        if self.proxy is None:
            return {"pinned": False, "why": "fewer than two cores: all processes share them"}
        return {"pinned": True, "proxy": self.proxy, "load and engines": self.load}


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """This process, and those that it starts meanwhile, run on ``core``."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Group:
    """A started program and whatever it starts."""

    def __init__(
        self, command: Sequence[str], *, core: int | None, log: Path, folder: Path
    ) -> None:
        self.log = log
        with on_core(core), log.open("wb") as output:
            self._leader = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def ended(self) -> bool:
        return self._leader.poll() is not None

    def pids(self) -> list[int]:
        """The program's own and those of its descendants."""
        leader = psutil.Process(self._leader.pid)
        return [leader.pid, *(child.pid for child in leader.children(recursive=True))]

    def rss(self) -> int:
        """Bytes of memory, the sum over the processes; pages that they share count in each."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids())

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-500:].strip()

    def kill(self) -> None:
        """End it at once; nothing of it is worth keeping.

        One that has started others is asked first, so that it waits for their ends.
        """
        if not self.ended and len(self.pids()) > 1:
            self._leader.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._leader.wait(timeout=PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()


def _end_with_parent() -> None:
    """In the child: SIGTERM when the benchmark dies, however it dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, for programs that must be told one."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()
