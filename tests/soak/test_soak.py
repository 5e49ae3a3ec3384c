"""One proxy process under everything at once: nothing is lost, crossed, counted wrong or left behind.

``SOAK_SEED=7 SOAK_SECONDS=600 make test TEST_ARGS=tests/soak`` looks for more.
"""

import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.soak import faulty, rude, steady
from tests.soak.chaos import Tables, deaths, no_files_left, too_many_clients
from tests.soak.ledger import ANSWERED, End, Ledger
from tests.soak.processes import EngineProcess, ProxyProcess, proxy
from tests.soak.world import World

SEED = int(os.environ.get("SOAK_SEED", "1"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))

FILES = 256
"""The proxy may have so many open; it has about half under this load, and serves 104 clients."""

CLIENTS = ((steady, 16), (rude, 20), (faulty, 16))
IDLE = 1.0
"""Seconds after which the proxy closes an idle connection to an engine."""


def config(adapter: str) -> dict[str, Any]:
    quick = {"connect": "1s", "answerHead": "1500ms", "streamIdle": "1s", "stale": "4s"}
    return {
        "listen": {"adapter": adapter},
        "limits": {"maxBodyBytes": rude.LIMIT},
        "routing": {
            "hold": {"timeout": "20s"},
            "timeouts": {"clientStall": rude.STALL, "answerHead": "20s", "streamIdle": "20s"},
        },
        "pools": {
            "rude": {"routing": {"maxInFlightPerEngine": 4}},
            "faulty": {
                "routing": {
                    "hold": {"timeout": "2s"},
                    "timeouts": quick | {"clientStall": rude.STALL},
                    "breaker": {"failures": 5, "cooldown": "200ms"},
                }
            },
        },
        "health": {"passive": {"ejectFor": "300ms"}},
        "upstream": {"idleTimeout": IDLE},
        "logging": {"access": False, "level": "warning"},
        "shutdown": {"drain": "0s", "grace": "5s"},
        "table": {"poll": "20ms"},
    }


@contextlib.asynccontextmanager
async def fleet(directory: Path) -> AsyncIterator[dict[str, list[EngineProcess]]]:
    """Engines of three pools; half of those that are well close their idle connections too early."""
    made = {
        model: [
            EngineProcess(
                directory, f"{model}-{n}", address=f"127.0.0.{host + n}:0", model=model, keep=keep
            )
            for n, keep in enumerate(keeps)
        ]
        # Not 127.0.0.1: a port there may be some connection's when its engine comes back.
        for model, host, keeps in (
            ("steady", 20, (30.0, 0.2)),
            ("rude", 30, (30.0, 0.2)),
            ("faulty", 40, (30.0, 0.2, 30.0)),
        )
    }
    everyone = [engine for engines in made.values() for engine in engines]
    try:
        await asyncio.gather(*(engine.start() for engine in everyone))
        yield made
    finally:
        await asyncio.gather(*(engine.die() for engine in everyone))


class Rest(NamedTuple):
    """The proxy with nothing to do."""

    descriptors: dict[str, int]
    census: dict[str, int]


async def at_rest(served: ProxyProcess, engines: dict[str, list[EngineProcess]]) -> Rest:
    """Wait until nothing is in flight, held or connected, and look. Fails if that never comes."""
    until = time.monotonic() + IDLE + 15.0
    while True:
        page = await served.page()
        stats = [await engine.stats() for pool in engines.values() for engine in pool]
        left = {
            "held": sum(pool["hold"]["depth"] for pool in page["pools"]),
            "in flight": sum(e["in_flight"] for pool in page["pools"] for e in pool["engines"]),
            "open at engines": sum(engine["open"] for engine in stats),
            "busy at engines": sum(engine["busy"] for engine in stats),
        }
        if not any(left.values()):
            return Rest(served.descriptors, await served.census())
        assert time.monotonic() < until, f"this does not go away: {left}"
        await asyncio.sleep(0.1)


async def warm_up(world: World) -> None:
    """What is made once, at the first request of a kind, is no leak."""
    async with asyncio.TaskGroup() as group:
        for module, _ in CLIENTS:
            group.create_task(world.work(f"{module.MODEL} first", module.SCENARIOS))


async def peak(world: World) -> None:
    """Much at once, early: memory that was needed then and is kept is no growth later."""
    chance = random.Random(world.seed)
    async with asyncio.TaskGroup() as group:
        for scenario in (steady.large_upload, steady.slow_reader, steady.reads_late) * 6:
            group.create_task(scenario(world, chance))


async def has_fronts(served: ProxyProcess, world: World) -> bool:
    """Whether a connection is the splice adapter's."""
    async with world.link() as link:
        await link.own("GET", "/v1/models")
        world.ledger.note("own", End.WHOLE)
        return "steersman_proxy.http.splice.front.Front" in await served.census()


class Memory:
    """The proxy's memory over the time of the load."""

    def __init__(self, served: ProxyProcess) -> None:
        self._served = served
        self._began = time.monotonic()
        self._samples: list[tuple[float, int]] = []

    async def watch(self) -> None:
        while True:
            self._samples.append((time.monotonic() - self._began, self._served.resident))
            await asyncio.sleep(0.25)

    def about(self, second: float) -> float:
        """Bytes, the median of the five seconds before."""
        return statistics.median(size for at, size in self._samples if second - 5.0 <= at <= second)


async def load(
    world: World, served: ProxyProcess, tables: Tables, engines: dict[str, list[EngineProcess]]
) -> Memory:
    """Everything at once. The memory over time."""
    chance = random.Random(world.seed)
    memory = Memory(served)
    watching = asyncio.create_task(memory.watch())

    async def shortages() -> None:
        await peak(world)
        for share in (0.1, 0.5):
            await world.reaches(share)
            await too_many_clients(world, clients=FILES)
            await world.reaches(share + 0.1)
            await no_files_left(world, served)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(tables.change(world, random.Random(chance.random())))
            group.create_task(deaths(world, engines["faulty"], random.Random(chance.random())))
            group.create_task(shortages())
            for module, clients in CLIENTS:
                for number in range(clients):
                    name = f"{module.MODEL} {number}"
                    group.create_task(world.work(name, module.SCENARIOS))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return memory


@pytest.mark.soak
@pytest.mark.timeout(240 + 2 * SECONDS)
@pytest.mark.parametrize(("adapter", "seconds"), [("splice", SECONDS), ("aiohttp", SECONDS / 3)])
async def test_everything_at_once(tmp_path: Path, adapter: str, seconds: float) -> None:
    ledger = Ledger()
    async with fleet(tmp_path) as engines:
        tables = Tables(tmp_path / "table.yaml", engines)
        tables.write()
        async with proxy(tmp_path, tables.file, config=config(adapter), files=FILES) as served:
            world = World(port=served.port, ledger=ledger, seconds=3.0, seed=SEED)
            await warm_up(world)
            before = await at_rest(served, engines)
            assert await has_fronts(served, world) is (adapter == "splice")

            world = World(port=served.port, ledger=ledger, seconds=seconds, seed=SEED)
            memory = await load(world, served, tables, engines)
            after = await at_rest(served, engines)
            print("MB", [round(memory.about(t) / 1e6, 1) for t in range(5, int(seconds) + 1, 5)])
            print(ledger)  # shown if the test fails

            assert ledger.wrong == []
            assert not (wrong := engines["steady"][0].wrong).exists(), wrong.read_text()
            assert_log(served.process.log)
            # By number and not by name: the loop keeps one in reserve, which it uses and replaces.
            assert after.descriptors["socket"] == before.descriptors["socket"]
            assert sum(after.descriptors.values()) == sum(before.descriptors.values())
            assert left_behind(before.census, after.census) == {}
            assert_varied(ledger)
            await assert_counted(served, ledger)
            if seconds >= 60:
                assert memory.about(60) <= 1.1 * memory.about(20)

            served.process.signal(signal.SIGTERM)
            assert (await served.process.end())[0] == 0


def assert_log(text: str) -> None:
    """Nothing but what is said of engines that fail, and of files that are not to be had."""
    assert "no room for another client" in text
    for line in text.splitlines():
        expected = ("breaker", "stale; cut", "Too many open files", "there is room", "no room for")
        assert any(words in line for words in expected), text


ONCE = {
    # Lines of heads that are remembered: some four blocks for each of 4,096, twice.
    "blocks of memory": 40_000,
    # Some run on at rest: of the table, the janitor, the breakers.
    "uvloop.loop.TimerHandle": 5,
    "uvloop.loop.UVTimer": 5,
    # A series for each kind of end that was seen.
    "steersman_proxy.metrics": 500,
    # Made once for each engine.
    "steersman_proxy.http.endpoint.BaseUrl": 10,
    "steersman_proxy.exchange.messages.HeadEdit": 10,
}
"""By class or module, how many more objects are no leak."""


def left_behind(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Classes of which there are more objects than before the load."""
    return {
        name: (before.get(name, 0), number)
        for name, number in after.items()
        if number
        > before.get(name, 0)
        + next((more for prefix, more in ONCE.items() if name.startswith(prefix)), 0)
    }


def assert_varied(ledger: Ledger) -> None:
    """The load was what it is meant to be."""
    for model in ("steady", "rude", "faulty"):
        assert ledger.count(model, End.WHOLE) > 100, ledger.ends
    for end in (End.REFUSED, End.BROKEN):
        assert ledger.count("faulty", end) > 20, ledger.ends
    for end in (End.LEFT_BEFORE, End.LEFT_WITHIN):
        assert ledger.count("rude", end) > 20, ledger.ends
    assert ledger.excused < 0.2 * ledger.count("steady"), ledger.excused


async def assert_counted(served: ProxyProcess, ledger: Ledger) -> None:
    """Metrics and clients agree."""
    surely = ledger.count(None, *ANSWERED)
    perhaps = ledger.count() - surely + ledger.malformed
    finished = await served.metric("smg_router_requests_total")
    assert surely <= finished <= surely + perhaps
    assert finished == await served.metric("smg_router_request_duration_seconds_count")
    # The steady ones are never ambiguous, but for those that met a proxy without files.
    whole = ledger.count("steady", *ANSWERED)
    counted = await served.metric("smg_router_requests_total", model="steady")
    assert whole <= counted <= whole + ledger.excused
    for gauge in ("smg_worker_requests_active", "steersman_hold_depth", "steersman_hold_bytes"):
        assert await served.metric(gauge) == 0
