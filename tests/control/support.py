"""Tables, listeners and whole ends of the control socket for its tests."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from steersman.clock import Clock, MonotonicClock
from steersman.engine import EngineRow, Gate, Trust
from steersman.settings import PoolSettings, RoutingPolicy
from steersman.table import Epoch, PoolRow, Table
from steersman_operator.control import ControlServer
from steersman_operator.fleet.events import ProxyRef
from steersman_proxy.control import ControlClient
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import RouteRequest, Selected

POOL = "p"
TIMEOUT = 20.0
"""Seconds within which anything that a test waits for must have happened."""


def row(name: str, *, open_: bool = True, version: str = "7") -> EngineRow:
    return EngineRow(
        id=name,
        url=f"http://{name}:8000",
        pool=POOL,
        gate=Gate(open=open_, count=0 if open_ else 1),
        version=version,
        trust=Trust.VERIFIED,
    )


def table(
    *engines: EngineRow,
    term: int = 1,
    seq: int = 1,
    settings: PoolSettings | None = None,
) -> Table:
    pool = PoolRow(name=POOL, models=("m",), fleet_max="7", settings=settings)
    return Table(epoch=Epoch(term, seq), pools=(pool,), engines=engines)


def fleet(clock: Clock) -> Fleet:
    return Fleet(
        clock=clock,
        defaults=PoolSettings(policy=RoutingPolicy.ROUND_ROBIN),
        pool_settings={},
        rl_enabled=True,
    )


def take(made: Fleet, target: str | None = None) -> Selected:
    """A request in flight."""
    result = made.select(RouteRequest(pool=POOL, target=target))
    assert isinstance(result, Selected), result
    return result


class Journal:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()

    def _note(self, *entry: Any) -> None:
        self.entries.append(entry)
        self._changed.set()

    def joined(self, ref: ProxyRef) -> None:
        self._note("joined", ref.uid)

    def heard(self, ref: ProxyRef) -> None:
        self._note("heard", ref.uid)

    def lost(self, ref: ProxyRef) -> None:
        self._note("lost", ref.uid)

    def acked(self, ref: ProxyRef, epoch: Epoch) -> None:
        self._note("acked", ref.uid, str(epoch))

    def nacked(self, ref: ProxyRef, epoch: Epoch, detail: str) -> None:
        self._note("nacked", ref.uid, str(epoch), detail)

    def in_flight(self, ref: ProxyRef, epoch: Epoch, counts: dict[str, int]) -> None:
        self._note("in_flight", ref.uid, str(epoch), counts)

    def observed_by_proxy(self, ref: ProxyRef, engine: str, kind: str, sample: str) -> None:
        self._note("observed", ref.uid, engine, kind, sample)

    def seen(self, ref: ProxyRef, engine: str, version: str | None) -> None:
        self._note("seen", ref.uid, engine, version)

    def max_term_seen(self, term: int) -> None:
        self._note("max_term", term)

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.entries if entry[0] == kind]

    def clear(self) -> None:
        self.entries.clear()

    async def until(self, *entry: Any, count: int = 1) -> None:
        """Wait until it was told this (at least ``count`` times); only a prefix is compared."""

        def found() -> bool:
            hits = [one for one in self.entries if one[: len(entry)] == entry]
            return len(hits) >= count

        try:
            async with asyncio.timeout(TIMEOUT):
                while not found():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{entry} never came; there is {self.entries}") from None


async def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Turn the loop until ``condition`` holds; for facts that nobody announces."""
    try:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 (has no events)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what} never came true") from None


_numbers = itertools.count()


class World:
    """Servers and clients on one machine, in one loop; everything is closed at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ends: list[ControlServer | ControlClient] = []
        self.cuts: list[tuple[str, str]] = []

    def ipc(self) -> str:
        return f"ipc://{self.directory}/{next(_numbers)}.sock"

    async def server(
        self, journal: Journal, *endpoints: str, term: int | None = 1, **settings: Any
    ) -> ControlServer:
        """A server that leads ``term``, or does not lead."""
        timing: dict[str, Any] = {"heartbeat": 0.05, "debounce": 0.001, "retry_after": 0.05}
        server = ControlServer(
            journal,
            clock=settings.pop("clock", None) or MonotonicClock(),
            endpoints=endpoints or (self.ipc(),),
            **(timing | settings),
        )
        self._ends.append(server)
        await server.start()
        if term is not None:
            server.lead(term=term, api_url="http://operator:1")
        return server

    async def client(
        self, *addresses: str, made: Fleet | None = None, uid: str = "pod", **settings: Any
    ) -> ControlClient:
        clock = settings.pop("clock", None) or MonotonicClock()
        client = ControlClient(
            made or fleet(clock),
            addresses=addresses,
            uid=uid,
            boot=settings.pop("boot", "boot"),
            clock=clock,
            cut=lambda engine, reason: self.cuts.append((engine, reason)),
            **settings,
        )
        self._ends.append(client)
        await client.start()
        return client

    async def close(self) -> None:
        for end in reversed(self._ends):
            await end.close()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    made = World(directory)
    try:
        yield made
    finally:
        await made.close()
