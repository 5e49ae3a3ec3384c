"""What the local API is told of a standalone fleet, and what it may ask for."""

import asyncio
import os
from typing import Any

from steersman.clock import Clock
from steersman_operator.api.local import Edit, EditDone
from steersman_operator.api.status import (
    FleetFacts,
    PoolFacts,
    ProxyFacts,
    VersionFacts,
    status_of,
)
from steersman_operator.manifests import Verb
from steersman_operator.resources import RolloutEngine, WeightVersion
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.standalone.manifests import ManifestsFollower
from steersman_operator.standalone.proxies import ProxyAccount


class StandaloneFleet:
    """Implements :class:`~steersman_operator.api.local.FleetApi`."""

    def __init__(
        self,
        shell: FleetShell,
        *,
        manifests: ManifestsFollower,
        account: ProxyAccount,
        endpoint: str,
        clock: Clock,
    ) -> None:
        self._shell = shell
        self._manifests = manifests
        self._account = account
        self._endpoint = endpoint
        self._clock = clock
        self._began = clock.now()
        self._news = asyncio.Event()
        shell.on_change.append(self._tell)
        manifests.on_change = self._tell

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._news.wait()

    async def edit(self, edit: Edit) -> EditDone:
        """Carry a wish into its manifest."""
        return await self._manifests.edit(edit.name, verb=Verb(edit.verb), engine=edit.engine)

    def status(self) -> dict[str, Any]:
        """The state of the fleet."""
        shell = self._shell
        return status_of(shell.state, timing=shell.timing, now=shell.now, facts=self._facts())

    def _facts(self) -> FleetFacts:
        manifests = self._manifests.manifests
        conflicts = self._manifests.pools.conflicts
        return FleetFacts(
            pid=os.getpid(),
            uptime=self._clock.now() - self._began,
            endpoint=self._endpoint,
            proxies={
                process.uid: ProxyFacts(pid=process.pid, metrics_url=process.metrics_url or None)
                for process in self._account.processes
            },
            pools={
                pool.name: _pool(
                    pool,
                    errors=manifests.problems_of(pool.file),
                    conflicts=conflicts.get(pool.name, ()),
                )
                for pool in manifests.engines
            },
            errors=manifests.problems,
            warnings=self._manifests.pools.sentences,
            weight_versions=[_version(version) for version in manifests.versions],
        )


def _pool(pool: RolloutEngine, *, errors: tuple[str, ...], conflicts: tuple[str, ...]) -> PoolFacts:
    return PoolFacts(
        file=pool.file, line=pool.line, created=pool.created, errors=errors, conflicts=conflicts
    )


def _version(version: WeightVersion) -> VersionFacts:
    spec = version.spec
    return VersionFacts(
        name=version.name,
        model=spec.model,
        version=spec.version,
        ordinal=spec.ordinal,
        source="External" if spec.source.disk is None else f"Disk {spec.source.disk.path}",
        digest=spec.digest,
        file=version.file,
        line=version.line,
        created=version.created,
    )
