"""What the proxy says of itself on its metrics port: ``/status`` and one series of ``/metrics``."""

import asyncio
import re
import time
from collections.abc import Callable

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
    """One engine, as the proxy knows it."""

    id: str
    gate: GateStatus
    control: str
    version: str | None
    in_flight: int


class HoldStatus(msgspec.Struct):
    """The requests that wait in the proxy."""

    depth: int


class PoolStatus(msgspec.Struct):
    """The pool of the run."""

    engines: list[EngineStatus]
    hold: HoldStatus
    fleet_max: str | None = None


class TableEpoch(msgspec.Struct):
    """The age of the table in force."""

    epoch: str | None


class Status(msgspec.Struct):
    """The members of ``/status`` that are looked at here."""

    table: TableEpoch
    pools: list[PoolStatus]

    def engine(self, name: str) -> EngineStatus | None:
        """One engine by its id."""
        return next(
            (engine for pool in self.pools for engine in pool.engines if engine.id == name), None
        )

    @property
    def held(self) -> int:
        """Requests that wait now."""
        return sum(pool.hold.depth for pool in self.pools)


def held_total(exposition: str) -> int:
    """How many requests have waited and gone on, from the text of ``/metrics``."""
    return sum(int(float(value)) for value in _HELD_TOTAL.findall(exposition))


class ProxyWatch:
    """Asks the proxy again and again, and lets others wait for what it says."""

    def __init__(self, url: str, *, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.last: Status | None = None
        self._asked = 0.0
        self._session = session
        self._told = asyncio.Condition()

    @property
    def epoch(self) -> str | None:
        """The age of the table that was last seen in force."""
        return None if self.last is None else self.last.table.epoch

    async def ready(self) -> bool:
        """Whether it has a table and serves."""
        try:
            async with self._session.get(f"{self.url}/readyz", timeout=_TIMEOUT) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def watch(self, records: Records) -> None:
        """Ask until cancelled, noting how many requests wait."""
        while True:
            asked = time.monotonic()
            status = await self._ask()
            records.held.append(Held(at=time.monotonic(), count=status.held))
            async with self._told:
                self.last, self._asked = status, asked
                self._told.notify_all()
            await asyncio.sleep(_POLL)

    async def until(
        self, predicate: Callable[[Status], bool], *, what: str, within: float = 30.0
    ) -> None:
        """Wait for a status for which ``predicate`` holds.

        Only answers to questions that are asked from now on count: one that is under way may be
        older than the caller's last deed.

        :raises DemoError: if it does not come; ``what`` completes *the proxy did not …*.
        """
        now = time.monotonic()

        def told() -> bool:
            return self.last is not None and self._asked >= now and predicate(self.last)

        try:
            async with asyncio.timeout(within), self._told:
                await self._told.wait_for(told)
        except TimeoutError:
            raise DemoError(f"the proxy did not {what} within {within:g} s") from None

    async def held_total(self) -> int:
        """How many requests have waited so far."""
        async with self._session.get(f"{self.url}/metrics", timeout=_TIMEOUT) as answer:
            return held_total(await answer.text())

    async def _ask(self) -> Status:
        try:
            async with self._session.get(f"{self.url}/status", timeout=_TIMEOUT) as answer:
                return msgspec.json.decode(await answer.read(), type=Status)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise DemoError(f"the proxy's /status cannot be read: {error!r}") from error
