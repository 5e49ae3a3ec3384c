"""`steersman proxy` and the other commands as real processes."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from steersman_sim.engine import SimEngine

WITHIN = 40.0
"""Seconds after which a process is taken to be stuck; a busy machine starts one in two."""


class Process:
    """One ``steersman ...`` process whose standard error goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self._process.terminate()

    def cpu_seconds(self) -> float:
        """What it has used of the processor so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN):
            return (await self._process.stdout.readline()).decode().rstrip("\n")

    async def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what was left on standard output."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN):
            out = await self._process.stdout.read()
            return await self._process.wait(), out.decode()


@contextlib.asynccontextmanager
async def steersman(
    tmp_path: Path, *arguments: str, files: int | None = None, most_files: int | None = None
) -> AsyncIterator[Process]:
    """Run a subcommand. ``files`` is its soft limit of open files, ``most_files`` its hard one."""
    log = tmp_path / f"{arguments[0]}-{len(list(tmp_path.glob('*.log')))}.log"
    with log.open("wb") as stderr:
        limit = f"ulimit -Sn {files}" if most_files is None else f"ulimit -n {most_files}"
        bounded = files is not None or most_files is not None
        limited = ("sh", "-c", f'{limit}; exec "$@"', "sh") if bounded else ()
        process = await asyncio.create_subprocess_exec(
            *(*limited, sys.executable, "-m", "steersman.cli", *arguments),
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield Process(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    async with steersman(tmp_path, *arguments) as process:
        code, out = await process.end()
        return code, out, process.log


class Proxy:
    """A proxy process that serves, and a client of it."""

    def __init__(self, process: Process, line: str, client: aiohttp.ClientSession) -> None:
        words = line.replace(",", "").split()
        assert words[:2] == ["listening", "on"], line
        self.process = process
        self.url, self.metrics_url = words[2], words[5]
        self.client = client

    async def status(self, path: str) -> int | None:
        """The status of a page of the metrics port; ``None`` if nobody listens there."""
        try:
            async with self.client.get(self.metrics_url + path) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return None

    async def page(self) -> dict[str, Any]:
        async with self.client.get(f"{self.metrics_url}/status") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def becomes(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until ``/status`` is as it should be."""
        async with asyncio.timeout(WITHIN):
            while not condition(await self.page()):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)

    async def not_ready(self) -> None:
        async with asyncio.timeout(WITHIN):
            while await self.status("/readyz") != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def generate(self, **body: Any) -> tuple[int, str | None]:
        """Status and the version of one buffered request."""
        content = {"text": "a", "sampling_params": {"max_new_tokens": 2}} | body
        async with self.client.post(f"{self.url}/generate", json=content) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-smg-weight-version")


@contextlib.asynccontextmanager
async def proxy(
    tmp_path: Path,
    table: Path,
    *flags: str,
    config: dict[str, Any] | None = None,
    files: int | None = None,
    most_files: int | None = None,
) -> AsyncIterator[Proxy]:
    # JSON is YAML.
    (tmp_path / "proxy.yaml").write_text(json.dumps({"table": {"poll": "20ms"}} | (config or {})))
    arguments = ["--config", "proxy.yaml", "--table", str(table), "--port", "0"]
    arguments += ["--metrics-port", "0", *flags]
    async with (
        steersman(tmp_path, "proxy", *arguments, files=files, most_files=most_files) as process,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        line = await process.line()
        assert line, process.log
        yield Proxy(process, line, client)


def row(engine: SimEngine, **changes: Any) -> dict[str, Any]:
    return {"id": "e0", "url": engine.url, "runtime": "sglang", "weightVersion": "7"} | changes


GOOD = '{"pools": [{"name": "pool", "model": "sim-model", "engines": [%s]}]}'

# Content, and what is said of it after the file's path.
BAD_TABLES: dict[str, tuple[str, list[str]]] = {
    "not YAML": ("pools: [\n", [":2: is not valid YAML"]),
    "half a file": (
        "pools:\n  - name: pool\n    engines:\n      - ur",
        [":4: pools[0].engines[0]: must have keys below it, found text"],
    ),
    "an unknown key": (
        "pools:\n  - name: pool\n    modle: sim-model\n",
        [":3: pools[0].modle: unknown key `modle`; did you mean `model`?"],
    ),
    "an id that is there twice": (
        """\
pools:
- name: pool
  engines:
  - {id: e0, url: "http://127.0.0.1:1"}
  - {id: e0, url: "http://127.0.0.1:2"}
""",
        [":5: pools[0].engines[1].id: the engine id 'e0' is taken already (line 4)"],
    ),
    "a version that is no text": (
        """\
pools:
- name: pool
  engines:
  - url: "http://127.0.0.1:1"
    weightVersion: [1]
""",
        [":5: pools[0].engines[0].weightVersion: must be a weight version, found a list"],
    ),
    "an empty file": ("", [": is empty"]),
    "another kind of file": (
        "listen: {port: 1}\n",
        [":1: has no `pools`; add the key", ":1: listen: unknown key `listen`"],
    ),
}
