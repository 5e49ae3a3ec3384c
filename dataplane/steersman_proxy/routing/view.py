"""The table in force, prepared for selections: replaced as a whole, never edited.

Which engines are eligible is computed once for each role and version policy and kept until a fact
changes: the table, an engine's own report, or its health.
"""

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from steersman.engine import Role
from steersman.errors import ModelNotFound, ModelRequired
from steersman.policy import Verdict, VersionPolicy
from steersman.settings import PoolSettings, RoutingPolicy
from steersman.table import Epoch, PoolRow
from steersman.versions import VersionOrder
from steersman_proxy.load.levels import LoadLevels
from steersman_proxy.routing.affinity import Rendezvous
from steersman_proxy.routing.eligibility import Reason, reason_out
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.freshness import Freshness
from steersman_proxy.routing.policies.chooser import chooser_of

if TYPE_CHECKING:
    from steersman_proxy.routing.waiting import PoolQueue

__all__ = ["Eligible", "PoolView", "RoutingView"]

PLAIN = Role.PLAIN
"""Looked up once: a member of an enum costs 70 ns each time in Python 3.11."""
CACHED_POLICIES = 256
"""Version policies remembered per pool and role. Clients name policies freely, so there is a bound;
beyond it eligibility is computed for every request."""


class PoolView:
    """One pool of the table in force."""

    def __init__(
        self,
        row: PoolRow,
        *,
        settings: PoolSettings,
        engines: tuple[Engine, ...],
        queue: "PoolQueue",
        rl_enabled: bool,
        freshness: Freshness,
        source: random.Random,
        before: "PoolView | None" = None,
    ) -> None:
        self.name = row.name
        self.row = row
        self.settings = settings
        self.engines = engines
        """In the order of the table. The position is the engine's bit in every mask."""
        self.fleet_max = row.fleet_max if rl_enabled else None
        """The newest version, as the table says; engines' own reports never move it."""
        self.model: str | None = next(iter(row.models), None)
        """The first of the names under which the table lists the model."""
        self.order = VersionOrder(row.ordinals)
        self.rl_enabled = rl_enabled
        self.limit = settings.max_in_flight_per_engine if rl_enabled else 0
        """Requests in flight per engine; 0 is no limit. A plain relay has none: it cannot hold."""
        self.may_hold = rl_enabled and settings.hold.timeout > 0
        self.freshness = freshness
        self.queue = queue
        self.levels: LoadLevels | None = None
        if settings.policy is RoutingPolicy.LOAD_ONLY:
            self.levels = LoadLevels(engine.load.requests for engine in engines)
        self.chooser = chooser_of(
            settings.policy, engines=engines, levels=self.levels, source=source
        )
        self.choose = self.chooser.choose
        self.default_eligible: Eligible | None = None
        """Of plain requests without a policy of their own; ``None`` until asked for."""
        self._source = source
        self._plain: dict[VersionPolicy, Eligible] = {}
        self._others: dict[Role, dict[VersionPolicy, Eligible]] = {}
        self.by_id = {engine.id: engine for engine in engines}
        self._by_url = {engine.url: engine for engine in reversed(engines)}
        # Rankings stay valid as long as the same engines are known, whatever their rows say.
        self._before = {} if before is None else before.rankings
        self.rankings: dict[Role, Rendezvous] = {}

    def eligible(self, role: Role, policy: VersionPolicy) -> Eligible:
        """Who may take requests of ``role`` under ``policy`` now."""
        cached = self._plain if role is PLAIN else self._others.setdefault(role, {})
        eligible = cached.get(policy)
        if eligible is None:
            eligible = self._judge_all(role, policy)
            is_default = policy == self.settings.version_policy
            if is_default or len(cached) < CACHED_POLICIES:
                cached[policy] = eligible
            if is_default and role is PLAIN:
                self.default_eligible = eligible
        return eligible

    def reason_out(self, engine: Engine, *, role: Role, policy: VersionPolicy) -> Reason | None:
        """Why ``engine``, of this pool, may not take such a request; ``None`` if it may."""
        return reason_out(
            engine,
            fleet_max=self.fleet_max,
            order=self.order,
            policy=policy,
            role=role,
            settings=self.settings,
            rl_enabled=self.rl_enabled,
        )

    def rendezvous(self, role: Role) -> Rendezvous:
        """The ranking of the pool's known engines of ``role`` for routing keys."""
        ranking = self.rankings.get(role)
        if ranking is None:
            known = frozenset(engine for engine in self.engines if engine.row.role is role)
            old = self._before.get(role)
            ranking = old if old is not None and old.engines == known else Rendezvous(known)
            self.rankings[role] = ranking
        return ranking

    def find(self, target: str) -> Engine | None:
        """The engine that a target names: an id, else a URL, else a position in the table.

        The position counts all engines of the pool, eligible or not (SMG's rule).
        """
        engine = self.by_id.get(target) or self._by_url.get(target.rstrip("/"))
        if engine is None and target.isascii() and target.isdigit() and len(target) <= 9:
            position = int(target)
            if position < len(self.engines):
                engine = self.engines[position]
        return engine

    def invalidate(self) -> None:
        """A fact about one of the engines changed."""
        self.default_eligible = None
        self._plain.clear()
        self._others.clear()

    def _judge_all(self, role: Role, policy: VersionPolicy) -> Eligible:
        eligible = Eligible(self._judged(role, policy))
        if eligible.engines:
            # A random start: the first engine of the table must not be everybody's first choice
            # after every change, and replicas must not march in step.
            eligible.cursor = self._source.randrange(len(eligible.engines))
        return eligible

    def _judged(self, role: Role, policy: VersionPolicy) -> Iterator[tuple[Engine, Reason | None]]:
        fleet_max, order, settings = self.fleet_max, self.order, self.settings
        rl_enabled = self.rl_enabled
        verdicts: dict[str | None, Verdict] = {}
        for engine in self.engines:
            yield (
                engine,
                reason_out(
                    engine,
                    fleet_max=fleet_max,
                    order=order,
                    policy=policy,
                    role=role,
                    settings=settings,
                    rl_enabled=rl_enabled,
                    verdicts=verdicts,
                ),
            )


class RoutingView:
    """All pools of the table in force."""

    def __init__(self, epoch: Epoch, *, pools: Mapping[str, PoolView]) -> None:
        self.epoch = epoch
        self.pools = dict(pools)
        only = len(self.pools) == 1
        self.single_pool: PoolView | None = next(iter(self.pools.values())) if only else None
        """The pool of every request, if there is no other: its body need not be read."""
        self._by_model: dict[str, PoolView] = {}
        self._default: PoolView | None = self.single_pool
        for pool in self.pools.values():
            for model in pool.row.models:
                # A model of two pools belongs to the first; a checked table has none.
                self._by_model.setdefault(model, pool)
            if self._default is None and pool.row.default:
                self._default = pool

    def pool_of_model(self, model: str | None) -> PoolView:
        """The pool that serves ``model``; for ``None`` the only pool, or the default one.

        :raises ModelRequired: if none is named and several could be meant.
        :raises ModelNotFound: if no pool serves the model.
        """
        if model is None:
            if self._default is None:
                if not self.pools:
                    raise ModelNotFound("the fleet table has no pools")
                raise ModelRequired(
                    "the request names no model, and none of the pools "
                    f"{', '.join(sorted(self.pools))} is the default"
                )
            return self._default
        pool = self._by_model.get(model)
        if pool is None:
            raise ModelNotFound(f"no pool serves the model {model[:160]!a}")
        return pool
