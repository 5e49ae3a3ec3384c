"""The engine and the load generator: two C programs, compiled when they are needed.

Neither may be the bottleneck, and what is measured must be the proxy: in Python each would cost more
than the proxies do.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.proxies.processes import on_core

HERE = Path(__file__).parent
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


class NoCompilerError(Exception):
    """There is no C compiler, or it has no C library to compile against."""


class LoadFailedError(Exception):
    """The load generator gave up, or nothing was answered; says why."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the load generator is to do; see ``load.c``."""

    connections: int
    seconds: float
    warm_up: float
    body_bytes: int = 512
    answer_bytes: int = 1024
    chunks: int = 0
    """Of each stream; 0 is an answer in one piece."""
    interval_us: int = 20_000
    """Between two chunks of a stream."""

    def offered(self) -> float:
        """Chunks per second that the engines send if nothing holds them up."""
        return self.connections * 1e6 / self.interval_us if self.chunks else 0.0


@dataclass(frozen=True)
class Engines:
    """The running engines: one process, several ports."""

    pid: int
    ports: Sequence[int]
    model: str
    weight_version: str


class Pair:
    """The compiled programs."""

    def __init__(self, folder: Path, *, core: int | None) -> None:
        """Compile into ``folder``.

        :raises NoCompilerError: if that cannot be done here.
        """
        self._core = core
        self._engine, self._load = (_compile(name, folder) for name in ("engine", "load"))

    @contextmanager
    def engines(self, count: int) -> Iterator[Engines]:
        """``count`` engines until the end of the block."""
        command = [self._engine, *["0"] * count]
        with on_core(self._core):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            yield Engines(process.pid, told["ports"], told["model"], told["weight_version"])
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait()

    def load(
        self,
        work: Work,
        port: int,
        *,
        key: str = "bench",
        proxy: Sequence[int] = (),
        engines: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Do the work and return what was counted in its window; see ``load.c``.

        :raises LoadFailedError: if it could not be done at all. Answers that were wrong are counted
            in ``errors``.
        """
        command = [
            *(self._load, "-p", str(port), "-c", str(work.connections), "-k", key),
            *("-d", str(work.seconds), "-w", str(work.warm_up)),
            *("-b", str(work.body_bytes), "-a", str(work.answer_bytes)),
            *("-n", str(work.chunks), "-i", str(work.interval_us)),
            *("-P", ",".join(map(str, proxy)), "-E", ",".join(map(str, engines))),
        ]
        with on_core(self._core):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise LoadFailedError(done.stderr.strip() or f"load ended with {done.returncode}")
        counted: dict[str, Any] = json.loads(done.stdout)
        if not counted["answers"] and not counted["chunks"]:
            raise LoadFailedError(done.stderr.strip() or "nothing was answered")
        return counted


def _compile(name: str, folder: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler found; on Debian: apt-get install gcc libc6-dev")
    program = folder / name
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(program), str(HERE / f"{name}.c")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        hint = "\nThe C library's headers: apt-get install libc6-dev" * ("stdio.h" in done.stderr)
        raise NoCompilerError(f"{name}.c cannot be compiled:\n{done.stderr.strip()}{hint}")
    return str(program)
