"""What the local API is told of a standalone fleet, and what it may ask for."""

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

from steersman.clock import Clock
from steersman_operator.api.status import (
    FleetFacts,
    PoolFacts,
    ProxyFacts,
    VersionFacts,
    status_of,
)
from steersman_operator.api.wishes import Edit, EditDone, Refit, RefitDone, Rollout
from steersman_operator.manifests import Manifests, RefitWish, RolloutVerb, Verb, unknown
from steersman_operator.resources import ROLLOUT_ENGINE, Resource, RolloutEngine, WeightVersion
from steersman_operator.resources.written import written
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.standalone.manifests import ManifestsFollower
from steersman_operator.standalone.proxies import ProxyAccount


class StandaloneFleet:
    """Implements :class:`~steersman_operator.api.wishes.FleetApi`."""

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

    async def refit(self, refit: Refit) -> RefitDone:
        """Carry a wish for weights into its manifest."""
        nonce = refit.nonce
        if refit.version is None and nonce is None:
            nonce = datetime.now(UTC).isoformat(timespec="milliseconds")
        wish = RefitWish(
            version=refit.version, path=refit.path, checksum=refit.checksum, nonce=nonce
        )
        return await self._manifests.refit(refit.name, wish)

    async def rollout(self, rollout: Rollout) -> RefitDone:
        """Carry what becomes of a rollout into its manifest."""
        return await self._manifests.rollout(
            rollout.name, verb=RolloutVerb(rollout.verb), to=rollout.to, since=rollout.since
        )

    async def publish(self, name: str, version: str) -> None:
        """Tell the core that a trainer has transferred weights."""
        names = [pool.name for pool in self._manifests.manifests.engines]
        if name not in names:
            raise unknown(ROLLOUT_ENGINE, name, names)
        await self._shell.publish(name, version)

    async def read(self) -> None:
        """Read what has been written into the directory."""
        await self._manifests.read_at_once()

    def status(self) -> dict[str, Any]:
        """The state of the fleet."""
        shell = self._shell
        return status_of(shell.state, timing=shell.timing, now=shell.now, facts=self._facts())

    def _facts(self) -> FleetFacts:
        manifests = self._manifests.manifests
        pools = self._manifests.pools
        conflicts, lost = pools.conflicts, pools.lost
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
                    # What it asks for and cannot get is as wrong as what cannot be read.
                    errors=(
                        *manifests.problems_of(pool.file),
                        *pools.warnings.get(f"{pool.kind}/{pool.name}", ()),
                    ),
                    conflicts=conflicts.get(pool.name, ()),
                    lost=lost.get(pool.name, ()),
                )
                for pool in manifests.engines
            },
            errors=manifests.problems,
            warnings=pools.sentences,
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
