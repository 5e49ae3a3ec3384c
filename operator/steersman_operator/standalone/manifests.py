"""The manifests of the directory, followed: what people write becomes what the core is told."""

import asyncio
import logging
from collections.abc import Callable

from steersman.clock import Clock
from steersman_operator.engines.client import EngineKeys
from steersman_operator.fleet.events import SpecChanged
from steersman_operator.manifests import (
    Edited,
    FleetLedger,
    ManifestDirectory,
    ManifestMemory,
    Manifests,
    RefitWish,
    RolloutVerb,
    Verb,
)
from steersman_operator.resources import Pools, to_pools
from steersman_operator.standalone.layout import Layout

_log = logging.getLogger("steersman.manifests")

POLL = 0.2
"""Seconds between two looks at the directory."""

AT_ONCE = 0.02
"""The same, if somebody waits for the second one: a file that stays so long is written."""


class ManifestsFollower:
    """Reads the directory in a thread, one at a time, and tells of changes."""

    def __init__(self, layout: Layout, *, ledger: FleetLedger, clock: Clock) -> None:
        self.on_pools: Callable[[SpecChanged], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        """Called after what is read has changed, also if only a problem has."""
        self.pools = Pools()
        self._clock = clock
        self._memory = ManifestMemory(layout.manifest_memory)
        self._directory = ManifestDirectory(
            layout.directory, ledger=ledger, good=layout.good_manifests, memory=self._memory
        )
        self._ledger = ledger
        self._lock = asyncio.Lock()
        self._taken: Manifests | None = None
        self._told: Pools | None = None
        self._logged: frozenset[str] = frozenset()

    @property
    def manifests(self) -> Manifests:
        """As they were read last."""
        return self._directory.manifests

    def keys(self, engine: str) -> EngineKeys:
        """The keys of an engine, by its id."""
        return self.pools.keys.get(engine, EngineKeys())

    async def read(self) -> None:
        """Look at the directory now."""
        async with self._lock:
            await self._look()

    async def read_at_once(self) -> None:
        """Read what has been written by now; when this returns, the core has been told of it."""
        async with self._lock:
            await self._look()
            await asyncio.sleep(AT_ONCE)
            await self._look()

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(POLL)
            await self.read()

    async def edit(self, name: str, *, verb: Verb, engine: str | None) -> Edited:
        """Carry a wish into the manifest of a RolloutEngine, and tell the core at once.

        :raises RequestError: if it cannot be carried out; says why.
        """
        return await self._edited(lambda: self._directory.edit(name, verb=verb, engine=engine))

    async def refit(self, name: str, wish: RefitWish) -> Edited:
        """Have a RolloutEngine ask for weights; as :meth:`edit`."""
        return await self._edited(lambda: self._directory.refit(name, wish))

    async def rollout(
        self, name: str, *, verb: RolloutVerb, to: str | None, since: str | None
    ) -> Edited:
        """Pause, resume or undo the rollout of a RolloutEngine; as :meth:`edit`."""
        return await self._edited(
            lambda: self._directory.rollout(name, verb=verb, to=to, since=since)
        )

    async def _edited(self, work: Callable[[], Edited]) -> Edited:
        async with self._lock:
            try:
                return await asyncio.to_thread(work)
            finally:
                if self.manifests is not self._taken:
                    await self._take()

    async def _look(self) -> None:
        await asyncio.to_thread(self._directory.poll)
        if self.manifests is not self._taken:
            await self._take()

    async def _take(self) -> None:
        manifests = self.manifests
        holders = self._ledger.holders()
        memory = self._memory
        pools = to_pools(manifests.engines, manifests.versions, holders, memory.targets)
        # On disk before anybody acts on it, so that the next operator decides the same.
        if pools.holders != holders:
            await asyncio.to_thread(self._ledger.hold, pools.holders)
        if pools.targets != memory.targets:
            memory.targets = pools.targets
            await asyncio.to_thread(memory.save)
        self.pools, self._taken = pools, manifests
        problems = frozenset(manifests.problems)
        for problem in sorted(problems - self._logged):
            _log.warning("%s", problem)
        self._logged = problems
        if self._told is None or self.pools.pools != self._told.pools:
            self._told = self.pools
            self.on_pools(SpecChanged(now=self._clock.now(), pools=self.pools.pools))
        self.on_change()
