"""`steersman up` as its users run it: real processes over sim engines in this one."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from steersman_sim.engine import EngineConfig, Runtime, SimEngine

WITHIN = 60.0
"""Seconds after which something is taken to be stuck; the machine may be busy."""

SERVING = re.compile(r"serving on (http://\S+) with")


class UpFleet:
    """One running fleet. Its output is kept in a file."""

    def __init__(
        self,
        directory: Path,
        *,
        process: asyncio.subprocess.Process,
        output: Path,
        client: aiohttp.ClientSession,
        api: aiohttp.ClientSession,
    ) -> None:
        self.directory = directory
        self.process = process
        self.client = client
        self.endpoint = ""
        self._output = output
        self._api = api

    @property
    def state(self) -> Path:
        return self.directory / ".steersman"

    @property
    def output(self) -> str:
        return self._output.read_text()

    def log(self, name: str = "operator") -> str:
        path = self.state / f"{name}.log"
        return path.read_text() if path.exists() else ""

    # --- the operator's API -------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """The status; waits for an operator that is being restarted."""
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    async with self._api.get("http://fleet/v1/status") as answer:
                        found: dict[str, Any] = await answer.json()
                        return found
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def edit(self, pool: str, verb: str, engine: str | None = None) -> tuple[int, Any]:
        body = {"kind": "RolloutEngine", "name": pool, "verb": verb, "engine": engine}
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    async with self._api.post("http://fleet/v1/edit", json=body) as answer:
                        return answer.status, await answer.json()
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def until(
        self, condition: Callable[[dict[str, Any]], object], *, within: float = WITHIN
    ) -> dict[str, Any]:
        """Wait for a status."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(within):
                while True:
                    status = await self.status()
                    if condition(status):
                        return status
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"did not come: {status}\n{self.log()[-3000:]}") from None

    async def settled(self, control: str, *, pool: str | None = None) -> dict[str, Any]:
        """Wait until every engine (of a pool) is in a state, and nothing is under way."""
        return await self.until(
            lambda status: all(
                engine["control"] == control == engine["desired"] and engine["phase"] == "Settled"
                for engine in engines_of(status, pool)
            )
        )

    async def told(self) -> None:
        """Wait until every proxy has the newest table in force."""
        await self.until(
            lambda status: all(
                proxy["acked"] == status["operator"]["epoch"] for proxy in status["proxies"]
            )
        )

    async def operator_pid(self) -> int:
        return int((await self.status())["operator"]["pid"])

    async def proxy_pids(self) -> list[int]:
        return [int(proxy["pid"]) for proxy in (await self.status())["proxies"]]

    async def in_flight(self) -> int:
        """What all proxies count, by their own account."""
        total = 0
        for proxy in (await self.status())["proxies"]:
            async with self.client.get(f"{proxy['metrics_url']}/status") as answer:
                page = await answer.json()
            total += sum(
                engine["in_flight"] for pool in page["pools"] for engine in pool["engines"]
            )
        return total

    async def generate(self, **body: Any) -> tuple[int, dict[str, Any], Any]:
        """One buffered request: status, body, headers."""
        content = {"text": "a", "sampling_params": {"max_new_tokens": 2}} | body
        async with self.client.post(f"{self.endpoint}/generate", json=content) as answer:
            return answer.status, await answer.json(), answer.headers


def engines_of(status: dict[str, Any], pool: str | None = None) -> list[dict[str, Any]]:
    return [
        engine
        for one in status["pools"]
        if pool in (None, one["name"])
        for engine in one["engines"]
    ]


def engine_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(engine for engine in engines_of(status) if engine["name"] == name)


def manifest(
    name: str, engines: Sequence[SimEngine], *, first: int = 0, extra: str = "", model: str = ""
) -> str:
    """A RolloutEngine over sim engines, named e0, e1, ..."""
    runtime = engines[0].config.runtime.value if engines else "sglang"
    listed = "".join(
        f"\n      - {{name: e{number}, url: {engine.url}}}"
        for number, engine in enumerate(engines, start=first)
    )
    return f"""\
apiVersion: rollout.steersman.io/v1alpha1
kind: RolloutEngine
metadata:
  name: {name}
spec:
  model: {model or name}
  runtime: {runtime}
  state: Active  # what the verbs edit
  endpoints:
    static:{listed or " []"}
{extra}"""


@contextlib.contextmanager
def short_directory() -> Any:
    """A directory with a short path: those of unix sockets are limited."""
    directory = Path(tempfile.mkdtemp(prefix="st-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def up(
    manifests: dict[str, str],
    *,
    proxies: int = 1,
    flags: Sequence[str] = (),
    serving: bool = True,
    directory: Path | None = None,
) -> AsyncIterator[UpFleet]:
    """Run a fleet; ended with SIGTERM, and by force if that takes too long."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(short_directory())
        for file, content in manifests.items():
            (directory / file).write_text(content)
        output = directory / ".output"
        with output.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "steersman.cli", "up", "-f", str(directory)),
                *("--proxies", str(proxies), "--port", "0", "--metrics-port", "0"),
                *("--operator-metrics-port", "0", *flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        connector = aiohttp.UnixConnector(str(directory / ".steersman" / "api.sock"))
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
                aiohttp.ClientSession(connector=connector) as api,
            ):
                fleet = UpFleet(directory, process=process, output=output, client=client, api=api)
                if serving:
                    await _until_serving(fleet)
                yield fleet
        finally:
            await end(process)


async def _until_serving(fleet: UpFleet) -> None:
    async with asyncio.timeout(WITHIN):
        while True:
            found = SERVING.search(fleet.output)
            if found is not None:
                fleet.endpoint = found[1]
                return
            assert fleet.process.returncode is None, fleet.output
            await asyncio.sleep(0.05)


async def end(process: asyncio.subprocess.Process) -> int:
    """End it as Ctrl-C does; a second time if it does not."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                await process.wait()
    return await process.wait()


@contextlib.asynccontextmanager
async def sims(count: int, **config: Any) -> AsyncIterator[list[SimEngine]]:
    """Sim engines in this process, so that tests see what each received."""
    defaults: dict[str, Any] = {
        "runtime": Runtime.SGLANG,
        "speed": 20.0,
        "weight_version": "7",
        "weights_cpu_backup": True,
    }
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(SimEngine(EngineConfig(**(defaults | config))))
            for _ in range(count)
        ]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
