"""What a refit needs beside the operator: simulated engines with clients, and whole proxies.

    python -m tests.bench.support_refit engines COUNT SECONDS
    python -m tests.bench.support_refit proxy ENDPOINT UID

Each is a process that writes lines of JSON, the first of which says where it listens, and ends when
its standard input does. The engines, so many of each kind, are in one process, and so are the clients.
A line to them is a list: ``["traffic", KIND, RATE, URL, ...]`` begins to ask those proxies, ``["quiet"]``
waits until the last answer and tells the numbers of answers by status, and ``["journal", KIND]`` tells
what each engine of a kind has received.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import uvloop

from steersman.engine import Runtime
from steersman_operator.fleet.spec import EngineSpec
from steersman_proxy.app import ProxyApp
from steersman_proxy.settings import ControlSettings, ProxySettings
from steersman_sim.engine import EngineConfig, SimEngine, Timings
from steersman_sim.engine import Runtime as SimRuntime
from tests.bench.support import TOP, end_of_input

RUNTIMES = (Runtime.SGLANG, Runtime.VLLM)
LOADS = {
    Runtime.SGLANG: "/update_weights_from_disk",
    Runtime.VLLM: "/collective_rpc",
}
"""By which route an engine reads weights from disk."""
GENERATES = {Runtime.SGLANG: "/generate", Runtime.VLLM: "/v1/completions"}
TOKENS = 32
"""Of each answer: a third of a second."""
LINE = 1 << 26
"""Bytes; a journal is one line."""


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


# --- The processes ----------------------------------------------------------------------------------


class Clients:
    """Requests at a steady rate, to one proxy after the other."""

    def __init__(self, runtime: Runtime, rate: float, urls: Sequence[str]) -> None:
        self._runtime = runtime
        self._rate = rate
        self._urls = urls
        self._stop = asyncio.Event()
        self._statuses: Counter[int] = Counter()
        self._task = asyncio.create_task(self._run())

    async def end(self) -> dict[int, int]:
        """How many answers there were, by status, once the last one is there."""
        self._stop.set()
        await self._task
        return dict(self._statuses)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as all_,
        ):
            began, number = loop.time(), 0
            while not self._stop.is_set():
                all_.create_task(self._ask(session, number))
                number += 1
                await asyncio.sleep(began + number / self._rate - loop.time())

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        body: dict[str, Any] = {
            "text": f"prompt {number}",
            "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True},
        }
        if self._runtime is Runtime.VLLM:
            body = {
                "model": self._runtime.value,
                "prompt": f"prompt {number}",
                "max_tokens": TOKENS,
            }
            body["ignore_eos"] = True
        url = self._urls[number % len(self._urls)] + GENERATES[self._runtime]
        async with session.post(url, json=body) as answer:
            await answer.read()
            self._statuses[answer.status] += 1


def journal_of(engine: SimEngine, *, paths: Sequence[str]) -> list[Any]:
    """What an engine has received on these paths: when it came, and when it was done with it."""
    found = [
        [entry.path, entry.arrived, entry.ended]
        for entry in engine.journal.entries
        if entry.path in paths and entry.ended is not None
    ]
    engine.journal.clear()
    return found


async def serve_engines(count: int, seconds: float) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    async with AsyncExitStack() as stack:
        engines: dict[str, list[SimEngine]] = {}
        for runtime in RUNTIMES:
            config = EngineConfig(
                runtime=SimRuntime(runtime.value),
                model=runtime.value,
                weight_version="0",
                timings=Timings(refit_s=seconds),
                journal_limit=1_000_000,
            )
            engines[runtime.value] = [
                await stack.enter_async_context(SimEngine(config)) for _ in range(count)
            ]
        say({kind: [engine.url for engine in some] for kind, some in engines.items()})
        clients: Clients | None = None
        while line := await lines.readline():
            match json.loads(line):
                case ["traffic", kind, rate, *urls]:
                    clients = Clients(Runtime(kind), rate, urls)
                case ["quiet"]:
                    say({} if clients is None else await clients.end())
                    clients = None
                case ["journal", kind]:
                    paths = (LOADS[Runtime(kind)], GENERATES[Runtime(kind)])
                    say([journal_of(engine, paths=paths) for engine in engines[kind]])
        if clients is not None:
            await clients.end()


async def serve_proxy(endpoint: str, uid: str) -> None:
    settings = ProxySettings(
        port=0,
        metrics_port=0,
        access_log=False,
        log_level="error",
        control=ControlSettings(addresses=(endpoint,), uid=uid),
    )
    async with ProxyApp(settings) as proxy:
        say(proxy.url)
        await end_of_input()


# --- Their owner's side -----------------------------------------------------------------------------


class Child:
    """One such process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        await self._process.stdin.drain()

    async def heard(self) -> Any:
        """The next line that it writes."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark has ended")
        return json.loads(line)


@asynccontextmanager
async def child(*words: str) -> AsyncIterator[Child]:
    """A process that runs until the end of the context."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.bench.support_refit", *words),
        cwd=TOP,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE,
    )
    assert process.stdin is not None
    try:
        yield Child(process)
    finally:
        process.stdin.close()
        await process.wait()


class Around(msgspec.Struct):
    """Everything that is around an operator."""

    engines: Child
    specs: dict[Runtime, tuple[EngineSpec, ...]]
    proxies: list[str]
    """Where they listen."""


@asynccontextmanager
async def around(
    endpoint: str, *, proxies: Sequence[str], engines: int, seconds: float
) -> AsyncIterator[Around]:
    """A proxy for each uid, and engines of each kind that read weights in so many seconds."""
    async with AsyncExitStack() as stack:
        # All begin together: it is their imports that take long.
        process = await stack.enter_async_context(child("engines", str(engines), str(seconds)))
        others = [await stack.enter_async_context(child("proxy", endpoint, uid)) for uid in proxies]
        found = await process.heard()
        yield Around(
            engines=process,
            specs={
                runtime: tuple(
                    EngineSpec(id=url, url=url, runtime=runtime) for url in found[runtime.value]
                )
                for runtime in RUNTIMES
            },
            proxies=[await one.heard() for one in others],
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["engines", number, length]:
            uvloop.run(serve_engines(int(number), float(length)))
        case ["proxy", address, own_name]:
            uvloop.run(serve_proxy(address, own_name))
        case _:
            raise SystemExit(__doc__)
