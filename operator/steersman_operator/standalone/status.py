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
from steersman_operator.manifests import Manifests, Verb
from steersman_operator.resources import Resource, RolloutEngine, WeightVersion
from steersman_operator.resources.written import written
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
        metrics_url: str | None = None,
        clock: Clock,
    ) -> None:
        self._shell = shell
        self._manifests = manifests
        self._account = account
        self._endpoint = endpoint
        self._metrics_url = metrics_url
        self._manifests_of_specs: Manifests | None = None
        self._specs: dict[tuple[str, str], dict[str, Any]] = {}
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

    async def read(self) -> None:
        """Read what has been written into the directory."""
        await self._manifests.read_at_once()

    def status(self) -> dict[str, Any]:
        """The state of the fleet."""
        shell = self._shell
        return status_of(shell.state, timing=shell.timing, now=shell.now, facts=self._facts())

    def _facts(self) -> FleetFacts:
        manifests = self._manifests.manifests
        conflicts, lost = self._manifests.pools.conflicts, self._manifests.pools.lost
        specs = self._written(manifests)
        return FleetFacts(
            pid=os.getpid(),
            uptime=self._clock.now() - self._began,
            endpoint=self._endpoint,
            metrics_url=self._metrics_url,
            proxies={
                process.uid: ProxyFacts(pid=process.pid, metrics_url=process.metrics_url or None)
                for process in self._account.processes
            },
            pools={
                pool.name: _pool(
                    pool,
                    spec=specs[pool.kind, pool.name],
                    errors=manifests.problems_of(pool.file),
                    conflicts=conflicts.get(pool.name, ()),
                    lost=lost.get(pool.name, ()),
                )
                for pool in manifests.engines
            },
            errors=manifests.problems,
            warnings=self._manifests.pools.sentences,
            weight_versions=[
                _version(version, spec=specs[version.kind, version.name])
                for version in manifests.versions
            ],
        )

    def _written(self, manifests: Manifests) -> dict[tuple[str, str], dict[str, Any]]:
        """The specs by kind and name; made anew only when the manifests have changed."""
        if manifests is not self._manifests_of_specs:
            resources: tuple[Resource, ...] = (*manifests.engines, *manifests.versions)
            self._specs = {(one.kind, one.name): written(one.spec) for one in resources}
            self._manifests_of_specs = manifests
        return self._specs


def _pool(
    pool: RolloutEngine,
    *,
    spec: dict[str, Any],
    errors: tuple[str, ...],
    conflicts: tuple[str, ...],
    lost: tuple[str, ...],
) -> PoolFacts:
    return PoolFacts(
        spec=spec,
        file=pool.file,
        line=pool.line,
        created=pool.created,
        errors=errors,
        conflicts=conflicts,
        lost=lost,
    )


def _version(version: WeightVersion, *, spec: dict[str, Any]) -> VersionFacts:
    says = version.spec
    return VersionFacts(
        name=version.name,
        model=says.model,
        version=says.version,
        ordinal=says.ordinal,
        source="External" if says.source.disk is None else f"Disk {says.source.disk.path}",
        digest=says.digest,
        spec=spec,
        file=version.file,
        line=version.line,
        created=version.created,
    )
