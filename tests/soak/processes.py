"""The processes of the soak, and what the system knows of them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.proxy.process import WITHIN, Process, Proxy

PATH = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
"""Where processes find the tests."""


async def start(log: Path, *arguments: str, files: int, **environ: str) -> Process:
    """Run a module; ``files`` is its hard limit of open files."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"),
            *(sys.executable, "-m", *arguments),
            cwd=log.parent,
            env=os.environ | {"PYTHONPATH": PATH} | environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    return Process(process, log)


async def kill(process: Process) -> None:
    if process.running:
        process.signal(signal.SIGKILL)
    await process.end()


class EngineProcess:
    """An engine that can die, stand still, and come back to the same address."""

    def __init__(self, directory: Path, name: str, *, address: str, model: str, keep: float):
        self._directory = directory
        self._name = name
        self._model = model
        self._keep = keep
        self._process: Process | None = None
        self.address = address
        self.wrong = directory / "wrong.log"
        """Shared by all engines."""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def start(self) -> None:
        """Start, or start again."""
        arguments = ["--address", self.address, "--model", self._model, "--keep", str(self._keep)]
        log = self._directory / f"{self._name}.log"
        self._process = await start(
            log, "tests.soak.engine", *arguments, "--wrong", str(self.wrong), files=4096
        )
        self.address = await self._process.line()
        assert self.address, log.read_text()

    async def die(self) -> None:
        if self._process is not None:
            await kill(self._process)

    async def stand_still(self, seconds: float) -> None:
        """Neither take nor give anything for a while, with all connections open."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._process.signal(signal.SIGCONT)

    async def stats(self) -> dict[str, int]:
        """What it holds: ``open`` connections, ``busy`` ones, and ``whole`` questions so far."""
        host, _, port = self.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(b"GET /_stats HTTP/1.1\r\n\r\n")
            content = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        stats: dict[str, int] = json.loads(content.partition(b"\r\n\r\n")[2])
        return stats


class ProxyProcess(Proxy):
    """The proxy, as a process whose inside can be looked at."""

    census_file: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def descriptors(self) -> dict[str, int]:
        """Open files by kind."""
        found: dict[str, int] = {}
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                kind = str(entry.readlink()).partition(":")[0]
                found[kind] = found.get(kind, 0) + 1
        return found

    async def census(self) -> dict[str, int]:
        """What is alive in it; see :mod:`tests.soak.watched`."""
        self.census_file.unlink(missing_ok=True)
        self.process.signal(signal.SIGUSR1)
        async with asyncio.timeout(WITHIN):
            while not self.census_file.exists():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        found: dict[str, int] = json.loads(self.census_file.read_text())
        return found

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a family's series that have these labels."""
        async with self.client.get(f"{self.metrics_url}/metrics") as answer:
            text = await answer.text()
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            family, _, rest = series.partition("{")
            if family == name and all(f'{key}="{said}"' in rest for key, said in labels.items()):
                total += float(value)
        return total


@contextlib.asynccontextmanager
async def proxy(
    directory: Path, table: Path, *, config: dict[str, Any], files: int
) -> AsyncIterator[ProxyProcess]:
    """``steersman proxy`` with at most ``files`` open files."""
    (directory / "proxy.yaml").write_text(json.dumps(config))  # JSON is YAML
    flags = ["--config", "proxy.yaml", "--table", str(table), "--port", "0", "--metrics-port", "0"]
    census = directory / "census.json"
    process = await start(
        directory / "proxy.log",
        *("tests.soak.watched", "proxy", *flags),
        files=files,
        CENSUS=str(census),
    )
    try:
        async with aiohttp.ClientSession() as client:
            line = await process.line()
            assert line, process.log
            served = ProxyProcess(process, line, client)
            served.census_file = census
            yield served
    finally:
        await kill(process)
