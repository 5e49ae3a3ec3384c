"""What the proxies say of themselves on their metrics ports: ``/status``, and one series of
``/metrics``.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence

import aiohttp
import msgspec

from steersman_sim.demo.options import DemoError
from steersman_sim.demo.records import Held, Records

_POLL = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_HELD_TOTAL = re.compile(r"^steersman_hold_seconds_count\{[^}]*\} (\S+)$", re.MULTILINE)


class GateStatus(msgspec.Struct):
    """Whether new requests are admitted."""

    open: bool


class EngineStatus(msgspec.Struct):
    """One engine, as a proxy knows it."""

    url: str
    gate: GateStatus
    version: str | None
    in_flight: int


class HoldStatus(msgspec.Struct):
    """The requests that wait in a proxy."""

    depth: int


class PoolStatus(msgspec.Struct):
    """The pool of the run."""

    engines: list[EngineStatus]
    hold: HoldStatus


class Status(msgspec.Struct):
    """The members of one proxy's ``/status`` that are looked at here."""

    pools: list[PoolStatus]

    def engine(self, url: str) -> EngineStatus | None:
        """One engine by its base URL."""
        return next(
            (engine for pool in self.pools for engine in pool.engines if engine.url == url), None
        )


class FleetStatus(msgspec.Struct, frozen=True):
    """What all proxies say at about the same time."""

    proxies: tuple[Status, ...]

    @property
    def held(self) -> int:
        """Requests that wait in all of them."""
        return sum(pool.hold.depth for status in self.proxies for pool in status.pools)

    def in_flight(self, url: str) -> int:
        """Requests of all of them that run on an engine."""
        return sum(engine.in_flight for engine in self._known(url))

    def version(self, url: str) -> str | None:
        """The version of an engine, as the first of them that knows one has it."""
        return next((engine.version for engine in self._known(url) if engine.version), None)

    def some_gate(self, url: str, *, is_open: bool) -> bool:
        """Whether some proxy has the engine's gate so. Until the last one has closed it, requests may
        come.
        """
        return any(engine.gate.open is is_open for engine in self._known(url))

    def all_open(self, url: str, *, version: str | None = None) -> bool:
        """Whether every proxy has the engine's gate open, and the engine with that version."""
        known = list(self._known(url))
        return len(known) == len(self.proxies) and all(
            engine.gate.open and version in (None, engine.version) for engine in known
        )

    def _known(self, url: str) -> Iterator[EngineStatus]:
        for status in self.proxies:
            engine = status.engine(url)
            if engine is not None:
                yield engine


def held_total(exposition: str) -> int:
    """How many requests have waited and gone on, from the text of ``/metrics``."""
    return sum(int(float(value)) for value in _HELD_TOTAL.findall(exposition))


class ProxyWatch:
    """Asks all proxies again and again, and lets others wait for what they say."""

    def __init__(self, urls: Sequence[str], *, session: aiohttp.ClientSession) -> None:
        """``urls`` are those of the metrics ports."""
        self.urls = tuple(urls)
        self.last = FleetStatus(())
        self._asked = 0.0
        self._session = session
        self._told = asyncio.Condition()

    async def watch(self, records: Records) -> None:
        """Ask until cancelled, noting how many requests wait."""
        while True:
            asked = time.monotonic()
            status = await self.ask()
            records.held.append(Held(at=time.monotonic(), count=status.held))
            async with self._told:
                self._asked = asked
                self._told.notify_all()
            await asyncio.sleep(_POLL)

    async def ask(self) -> FleetStatus:
        """Ask each of them once; ``last`` then has the answer, too.

        :raises DemoError: one does not answer.
        """
        answers = await asyncio.gather(*(self._ask(url) for url in self.urls))
        self.last = FleetStatus(tuple(answers))
        return self.last

    async def until(
        self, predicate: Callable[[FleetStatus], bool], *, what: str, within: float = 60.0
    ) -> None:
        """Wait for a status for which ``predicate`` holds.

        Only answers to questions that are asked from now on count: one that is under way may be
        older than the caller's last deed.

        :raises DemoError: if it does not come; ``what`` completes *the proxies did not …*.
        """
        now = time.monotonic()

        def told() -> bool:
            return self._asked >= now and predicate(self.last)

        try:
            async with asyncio.timeout(within), self._told:
                await self._told.wait_for(told)
        except TimeoutError:
            raise DemoError(f"the proxies did not {what} within {within:g} s") from None

    async def held_total(self) -> int:
        """How many requests have waited so far."""
        return sum(await asyncio.gather(*(self._held_total(url) for url in self.urls)))

    async def _held_total(self, url: str) -> int:
        try:
            async with self._session.get(f"{url}/metrics", timeout=_TIMEOUT) as answer:
                return held_total(await answer.text())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"a proxy's {url}/metrics cannot be read: {error!r}") from error

    async def _ask(self, url: str) -> Status:
        try:
            async with self._session.get(f"{url}/status", timeout=_TIMEOUT) as answer:
                return msgspec.json.decode(await answer.read(), type=Status)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise DemoError(f"a proxy's {url}/status cannot be read: {error!r}") from error
