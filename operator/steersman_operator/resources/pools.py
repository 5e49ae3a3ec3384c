"""From resources to the pools that the core works on, and what keeps two of them apart.

Two pools may claim one engine, one model, or both want to be the default; see ``claims`` for who gets
it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from steersman.documents.routing import pool_settings
from steersman.settings import PoolSettings
from steersman_operator.engines.client import EngineKeys
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.resources.claims import DEFAULT, Claims, engine_claim, model_claim
from steersman_operator.resources.contradictions import MAX_ENGINES
from steersman_operator.resources.resource import RolloutEngine, WeightVersion
from steersman_operator.resources.rollout_engine import StaticEngine
from steersman_operator.resources.targets import Target, Versions, named


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
    targets: dict[str, Target] = {}
    """The weights that pools are to have, by name, to be handed in the next time."""
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
    targets: Mapping[str, Target] | None = None,
) -> Pools:
    """The pools of all resources; ``holders`` and ``targets`` are those of the time before."""
    says = _Sentences()
    by_age = sorted(engines, key=_age)
    known = Versions(sorted(versions, key=_age), says.warn)
    before = targets or {}
    found: dict[str, Target | None] = {}
    claims = _Decided(Claims(by_age, holders or {}), says)
    pools: list[PoolSpec] = []
    keys: dict[str, EngineKeys] = {}
    for resource in by_age:
        found[resource.name] = known.target(resource, before=before.get(resource.name))
        pool = _pool(
            resource,
            claims=claims,
            ordinals=known.ordinals(resource.spec.model),
            target=found[resource.name],
        )
        pools.append(pool)
        if resource.keys != EngineKeys():
            keys |= {engine.id: resource.keys for engine in pool.engines}
    return Pools(
        pools=tuple(pools),
        conflicts={name: tuple(said) for name, said in says.conflicts.items()},
        lost={name: tuple(said) for name, said in says.lost.items()},
        holders=claims.names,
        # A directory that cannot be read has no resources, and must not cost anybody anything.
        targets={name: target for name, target in found.items() if target} if found else {**before},
        warnings={name: tuple(said) for name, said in says.warnings.items()},
        keys=keys,
    )


def _age(resource: RolloutEngine | WeightVersion) -> tuple[float, str]:
    created = resource.created
    return (float("inf") if created is None else created, resource.name)


def _pool(
    resource: RolloutEngine,
    *,
    claims: "_Decided",
    ordinals: Mapping[str, int],
    target: Target | None,
) -> PoolSpec:
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
        weights=None if target is None else target.weights,
        rollout_paused=spec.rollout.paused,
        refit_timeout=float(spec.rollout.refit_timeout_seconds),
        trainer_timeout=float(spec.rollout.trainer_timeout_seconds),
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
                f"{named(resource)}: the engine {engine.id} is beyond the {MAX_ENGINES} "
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
            f"{named(holder)} and {named(resource)} {both}; {holder.name} has it and keeps it",
            to=holder,
        )
        return False
