"""From resources to the pools that the core works on, and what keeps two of them apart.

Two pools may claim one engine, one model, or both want to be the default; see ``claims`` for who gets
it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from steersman.documents.routing import pool_settings
from steersman.settings import PoolSettings
from steersman_operator.engines.client import EngineKeys
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.resources.claims import DEFAULT, Claims, engine_claim, model_claim
from steersman_operator.resources.contradictions import MAX_ENGINES
from steersman_operator.resources.resource import RolloutEngine, WeightVersion
from steersman_operator.resources.rollout_engine import StaticEngine


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """A whole fleet as it is wanted."""

    pools: tuple[PoolSpec, ...] = ()
    """The older first."""
    conflicts: dict[str, tuple[str, ...]] = {}
    """Sentences by the name of a pool: what it does not get as another has it, or another as it has."""
    lost: dict[str, tuple[str, ...]] = {}
    """Those of the sentences that are about what the pool itself does not get."""
    holders: dict[str, str] = {}
    """Who has what only one pool can have: names by claim, to be handed in the next time."""
    warnings: dict[str, tuple[str, ...]] = {}
    """Other sentences that are wrong without harm, by ``KIND/NAME`` of the resource."""
    keys: dict[str, EngineKeys] = {}
    """The keys that engines ask for, by engine id; those without keys are left out."""

    @property
    def sentences(self) -> list[str]:
        """All conflicts and warnings, each once."""
        found = (*self.conflicts.values(), *self.warnings.values())
        return [*dict.fromkeys(sentence for sentences in found for sentence in sentences)]


def to_pools(
    engines: Iterable[RolloutEngine],
    versions: Iterable[WeightVersion],
    holders: Mapping[str, str] | None = None,
) -> Pools:
    """The pools of all resources; ``holders`` are those of the time before."""
    says = _Sentences()
    by_age = sorted(engines, key=_age)
    known = _Versions(sorted(versions, key=_age), says)
    claims = _Decided(Claims(by_age, holders or {}), says)
    pools: list[PoolSpec] = []
    keys: dict[str, EngineKeys] = {}
    for resource in by_age:
        pool = _pool(resource, claims=claims, ordinals=known.ordinals(resource.spec.model))
        pools.append(pool)
        if resource.keys != EngineKeys():
            keys |= {engine.id: resource.keys for engine in pool.engines}
        known.check_reference(resource)
    return Pools(
        pools=tuple(pools),
        conflicts={name: tuple(found) for name, found in says.conflicts.items()},
        lost={name: tuple(found) for name, found in says.lost.items()},
        holders=claims.names,
        warnings={name: tuple(found) for name, found in says.warnings.items()},
        keys=keys,
    )


def _age(resource: RolloutEngine | WeightVersion) -> tuple[float, str]:
    created = resource.created
    return (float("inf") if created is None else created, resource.name)


def _pool(resource: RolloutEngine, *, claims: "_Decided", ordinals: Mapping[str, int]) -> PoolSpec:
    spec = resource.spec
    mine = [engine for engine in spec.endpoints.static if claims.engine(engine, resource)]
    ids = {engine.shown: engine.id for engine in mine}
    return PoolSpec(
        name=resource.name,
        models=(spec.model,) if claims.model(resource) else (),
        default=spec.default and claims.default(resource),
        settings=pool_settings(spec.routing, base=PoolSettings()),
        engines=tuple(
            EngineSpec(
                id=engine.id,
                name="" if engine.shown == engine.id else engine.shown,
                url=engine.url,
                runtime=spec.runtime if engine.runtime is None else engine.runtime,
                role=engine.role,
                zone=engine.zone,
            )
            for engine in mine
        ),
        state=spec.state.control,
        overrides={
            ids[override.engine]: override.state.control
            for override in spec.overrides
            if override.engine in ids
        },
        generation=resource.generation,
        drift=spec.drift,
        mode=spec.rollout.mode,
        pause_mode=spec.rollout.pause_mode,
        max_unavailable=spec.rollout.max_unavailable,
        promote_at=spec.rollout.promote_at,
        drain_timeout=float(spec.drain.timeout_seconds),
        on_timeout=spec.drain.on_timeout,
        on_unreachable=spec.on_unreachable_proxy,
        ordinals=dict(ordinals),
    )


class _Sentences:
    """What is said of whom."""

    def __init__(self) -> None:
        self.conflicts: dict[str, list[str]] = {}
        self.lost: dict[str, list[str]] = {}
        self.warnings: dict[str, list[str]] = {}

    def loses(self, loser: RolloutEngine, sentence: str, *, to: RolloutEngine | None) -> None:
        for resource in (loser,) if to is None else (to, loser):
            self.conflicts.setdefault(resource.name, []).append(sentence)
        self.lost.setdefault(loser.name, []).append(sentence)

    def warn(self, resource: RolloutEngine | WeightVersion, sentence: str) -> None:
        self.warnings.setdefault(f"{resource.kind}/{resource.name}", []).append(sentence)


class _Decided:
    """Who has what, and what is said of those who do not get it."""

    def __init__(self, claims: Claims, says: _Sentences) -> None:
        self._claims = claims
        self._says = says

    @property
    def names(self) -> dict[str, str]:
        return self._claims.names

    def engine(self, engine: StaticEngine, resource: RolloutEngine) -> bool:
        """Whether the engine is the resource's."""
        claim = engine_claim(engine.id)
        if self._claims.holder(claim) is None:
            self._says.loses(
                resource,
                f"{_named(resource)}: the engine {engine.id} is beyond the {MAX_ENGINES} "
                "that a fleet can have, and is left out",
                to=None,
            )
            return False
        return self._has(resource, claim, f"are both to have the engine {engine.id}")

    def model(self, resource: RolloutEngine) -> bool:
        """Whether the model is the resource's."""
        model = resource.spec.model
        return self._has(resource, model_claim(model), f"both serve the model {model!a}")

    def default(self, resource: RolloutEngine) -> bool:
        """Whether the resource, which wants to be the default, is it."""
        return self._has(resource, DEFAULT, "both want to be the default pool")

    def _has(self, resource: RolloutEngine, claim: str, both: str) -> bool:
        holder = self._claims.holder(claim)
        if holder is None or holder is resource:
            return holder is resource
        self._says.loses(
            resource,
            f"{_named(holder)} and {_named(resource)} {both}; {holder.name} has it and keeps it",
            to=holder,
        )
        return False


class _Versions:
    """All WeightVersions, the older first."""

    def __init__(self, versions: Sequence[WeightVersion], says: _Sentences) -> None:
        self._says = says
        self._by_name = {version.name: version for version in versions}
        self._ordinals: dict[str, dict[str, int]] = {}
        said: dict[tuple[str, str], WeightVersion] = {}
        ranks: dict[tuple[str, int], WeightVersion] = {}
        for version in versions:
            spec = version.spec
            same = said.setdefault((spec.model, spec.version), version)
            if same is not version:
                self._twice(same, version, f"name the version {spec.version} of {spec.model!a}")
                continue
            if spec.ordinal is None:
                continue
            same = ranks.setdefault((spec.model, spec.ordinal), version)
            if same is not version:
                self._twice(same, version, f"have the ordinal {spec.ordinal}")
                continue
            self._ordinals.setdefault(spec.model, {})[spec.version] = spec.ordinal

    def ordinals(self, model: str) -> Mapping[str, int]:
        """The ranks of a model's versions; empty if none has one."""
        return self._ordinals.get(model, {})

    def check_reference(self, resource: RolloutEngine) -> None:
        """Say what is wrong with ``weightVersionRef``."""
        reference = resource.spec.weight_version_ref
        if reference is None:
            return
        version = self._by_name.get(reference.name)
        if version is None:
            self._says.warn(
                resource,
                f"{resource.place}: spec.weightVersionRef.name: there is no WeightVersion "
                f"{reference.name}",
            )
        elif version.spec.model != resource.spec.model:
            self._says.warn(
                resource,
                f"{resource.place}: spec.weightVersionRef.name: {_named(version)} is of the model "
                f"{version.spec.model!a}, not {resource.spec.model!a}",
            )

    def _twice(self, older: WeightVersion, younger: WeightVersion, what: str) -> None:
        sentence = f"{_named(older)} and {_named(younger)} both {what}; the older counts"
        self._says.warn(older, sentence)
        self._says.warn(younger, sentence)


def _named(resource: RolloutEngine | WeightVersion) -> str:
    return f"{resource.name} ({resource.place})"
