"""What this process knows of all engines, and the one place where a request is given to one.

Choosing, counting and reading the table happen inside one call, without anything in between. That
is what an acknowledged table means: once :meth:`Fleet.apply` has returned, no request is selected
by an older one.
"""

import random as random_module
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from steersman.clock import Clock
from steersman.engine import EngineRow, Role, Trust
from steersman.errors import ModelNotFound, NoTable, RequestError
from steersman.policy import VersionPolicy
from steersman.settings import PoolSettings
from steersman.table import PoolRow, Table
from steersman.versions import numeric
from steersman_proxy.load.breaker import Breaker, BreakerState, Cooldowns
from steersman_proxy.load.inflight import EngineLoad, Guard
from steersman_proxy.routing.eligibility import untrusted
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.freshness import Freshness
from steersman_proxy.routing.request import RouteRequest, Selected, Wait
from steersman_proxy.routing.room import Room
from steersman_proxy.routing.selection import decide, decide_new, withheld
from steersman_proxy.routing.view import PLAIN, PoolView, RoutingView
from steersman_proxy.routing.waiting import WaitingRoom

# Looked up once: every request asks.
_CLOSED = BreakerState.CLOSED
_UNCERTAIN = Trust.UNCERTAIN
_UNSYNCED = Trust.UNSYNCED
_VERIFIED = Trust.VERIFIED


class Fleet:
    """Engines, their loads and the view of the table in force.

    ``pool_settings`` are those of the proxy's configuration, for pools whose row has none;
    ``defaults`` are for all others. With ``rl_enabled`` false versions, control, gates and trust
    are not looked at, and nobody waits.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        defaults: PoolSettings,
        pool_settings: Mapping[str, PoolSettings],
        rl_enabled: bool,
        random: random_module.Random | None = None,
    ) -> None:
        self.clock = clock
        self.rl_enabled = rl_enabled
        self.view: RoutingView | None = None
        """``None`` before the first table."""
        self.waiting = WaitingRoom()
        self.on_change: list[Callable[[], None]] = []
        """Called after the table, a report or an engine's health changed."""
        self.on_capacity: Callable[[], None] | None = None
        """Called after a request was given back by any engine."""
        self.on_idle: Callable[[str], None] | None = None
        """Called with an engine's id after its last request was given back."""
        self.on_news: Callable[[Engine], None] | None = None
        """Called after an engine's own answer has changed what is known of its version."""
        self.on_breaker: Callable[[Engine, BreakerState], None] | None = None
        """Called after the breaker of an engine of the table has changed, with its state before."""
        self.freshness = Freshness(clock)
        self.cooldowns = Cooldowns(clock)
        self._defaults = defaults
        self._pool_settings = dict(pool_settings)
        self._random = random or random_module.Random()
        self._engines: dict[tuple[str, str], Engine] = {}
        self._departed: dict[tuple[str, str], Engine] = {}
        """Engines that left the table with requests in flight."""

    # --- What is known ------------------------------------------------------------------------

    def engines(self) -> Iterable[Engine]:
        """The engines of the table in force, pool by pool."""
        return self._engines.values()

    def pool(self, name: str) -> PoolView | None:
        """A pool of the table in force."""
        return None if self.view is None else self.view.pools.get(name)

    def settings_of(self, row: PoolRow) -> PoolSettings:
        """The settings of a pool: its row's, else the configuration's, else the defaults."""
        if row.settings is not None:
            return row.settings
        return self._pool_settings.get(row.name, self._defaults)

    def in_flight(self, ids: Collection[str]) -> dict[str, int]:
        """Requests in flight by engine id, for all of ``ids``; 0 for one that is not known.

        Engines that left the table count as well, also those that had the id at another URL.
        """
        counts = dict.fromkeys(ids, 0)
        for engines in (self._engines, self._departed):
            for engine in engines.values():
                if engine.id in counts:
                    counts[engine.id] += engine.load.requests
        return counts

    # --- What changes it ----------------------------------------------------------------------

    def apply(self, table: Table) -> None:
        """Put a table in force, as a whole.

        Whatever engines reported themselves gives way to the new rows. Loads stay with their
        (id, url). A table is expected to be checked; of rows that repeat a pool or an engine id the
        first counts, and engines of pools that are not there are left out.
        """
        rows: dict[str, PoolRow] = {}
        for pool_row in table.pools:
            rows.setdefault(pool_row.name, pool_row)
        members: dict[str, list[EngineRow]] = {name: [] for name in rows}
        seen: set[str] = set()
        for row in table.engines:
            if row.id not in seen and row.pool in members:
                seen.add(row.id)
                members[row.pool].append(row)

        before = {} if self.view is None else self.view.pools
        engines: dict[tuple[str, str], Engine] = {}
        pools: dict[str, PoolView] = {}
        for name, pool_row in rows.items():
            ours = tuple(self._engine_of(row) for row in members[name])
            engines.update(((engine.id, engine.url), engine) for engine in ours)
            pools[name] = PoolView(
                pool_row,
                settings=self.settings_of(pool_row),
                engines=ours,
                queue=self.waiting.of(name),
                rl_enabled=self.rl_enabled,
                freshness=self.freshness,
                source=self._random,
                before=before.get(name),
            )
        view = RoutingView(table.epoch, pools=pools)

        # From here on nothing can fail: the table is in force as a whole.
        for name, pool in pools.items():
            for index, row in enumerate(members[name]):
                pool.engines[index].take_row(row, pool=pool, index=index)
                pool.engines[index].breaker.configure(pool.settings.breaker)
        for identity, engine in self._engines.items():
            if identity not in engines:
                engine.pool = None
                if engine.load.requests:
                    self._departed[identity] = engine
        for identity in engines:
            self._departed.pop(identity, None)
        self._engines = engines
        self.view = view
        for name, pool in pools.items():
            self._reconsider(pool, before=before.get(name))
        self.waiting.keep_only(pools)
        self._changed()

    def observe(self, engine: Engine, version: str | None, *, seen_default: bool = False) -> bool:
        """Take note of what ``engine`` said of itself in an answer; whether that changed anything.

        ``version`` stands in for the row's until the table changes; it moves neither the fleet max
        nor the row's trust. ``seen_default`` says that the engine reported ``default``. From an
        engine that once reported a version to this process this means that it was restarted with
        other weights: it counts as unversioned and unsynced. From others it means nothing, since an
        engine without a label reports it all along. Half-written weights stay so, whatever name an
        engine gives them.
        """
        trust = engine.row.trust
        if version is not None:
            engine.seen_version = True
            if _same_number(version, engine.row.version):
                version = engine.row.version
        elif seen_default and engine.seen_version:
            trust = trust if trust is _UNCERTAIN else _UNSYNCED
        else:
            return False
        if engine.version == version and engine.trust is trust:
            return False
        engine.version = version
        engine.trust = trust
        self._fact_changed(engine)
        if self.on_news is not None:
            self.on_news(engine)
        return True

    def set_control(self, fresh: bool, *, until: float = float("inf")) -> None:
        """Whether the operator is in contact, and until when that counts, on the clock.

        Out of contact only what the last table can prove is started; see
        :mod:`~steersman_proxy.routing.freshness`. Who waits already goes on waiting. A fleet that is
        never told is fresh.
        """
        was_stale = self.freshness.stale
        self.freshness.set(until=until if fresh else float("-inf"))
        if was_stale and not self.freshness.stale and self.view is not None:
            for pool in self.view.pools.values():
                pool.queue.mark_changed()

    def set_health(self, engine: Engine, healthy: bool) -> None:
        """Take an engine out as ``unhealthy``, or let it in again."""
        if engine.healthy is not healthy:
            engine.healthy = healthy
            self._fact_changed(engine)

    def catch_up(self) -> None:
        """Let what only time brings about have happened; for whoever reads the view."""
        if self.cooldowns.next_due is not None:
            self.cooldowns.expire()

    # --- What it is for -----------------------------------------------------------------------

    def select(self, request: RouteRequest) -> Selected | Wait | RequestError:
        """Choose an engine and count the request on it.

        :returns: the engine with its guard; or what to wait for; or the error to answer with
            (returned, not raised).
        """
        if self.cooldowns.next_due is not None:  # as `catch_up`, without a call for each request
            self.cooldowns.expire()
        view = self.view
        if view is None:
            return NoTable("the proxy has no fleet table yet")
        pool = view.pools.get(request.pool)
        if pool is None:
            return ModelNotFound(f"there is no pool {request.pool[:160]!a}")
        if (
            request.target is None
            and not (pool.limit or request.excluded or pool.queue.tickets)
            and not (self.freshness.leased and withheld(pool, request))
        ):
            # Most requests. The same as below with nothing to consider.
            engine = self._choose_simply(pool, request)
            if engine is not None:
                return self._count(engine, pool=pool, view=view)
        room = Room(limit=pool.limit, excluded=request.excluded)
        return self._settle(decide_new(pool, request, room=room), pool=pool, view=view)

    def at_once(self, affinity: str | None) -> Selected | None:
        """As :meth:`select`, for a request to the only pool, of plain role and with its policy.

        :returns: ``None`` unless it is as easy as that; nothing is counted then.
        """
        if self.cooldowns.next_due is not None:
            self.cooldowns.expire()
        view = self.view
        pool = None if view is None else view.single_pool
        if view is None or pool is None or pool.limit or pool.queue.tickets or self.freshness.stale:
            return None
        eligible = pool.default_eligible
        if eligible is None:
            eligible = pool.eligible(PLAIN, pool.settings.version_policy)
        engine = _pick(pool, eligible, role=PLAIN, affinity=affinity)
        return None if engine is None else self._count(engine, pool=pool, view=view)

    def _choose_simply(self, pool: PoolView, request: RouteRequest) -> Engine | None:
        policy, role = request.policy, request.role
        eligible = pool.default_eligible if policy is None and role is PLAIN else None
        if eligible is None:
            eligible = pool.eligible(role, policy or pool.settings.version_policy)
        return _pick(pool, eligible, role=role, affinity=request.affinity)

    def fenced_out(self, engine: Engine) -> bool:
        """Whether its pool is fenced, and the operator out of contact for so long that it may count this
        proxy out.
        """
        pool = engine.pool
        return pool is not None and pool.settings.fence and self.rl_enabled and self.freshness.stale

    def barred(self, engine: Engine, policy: VersionPolicy | None) -> bool:
        """Whether an engine that was chosen for a request under ``policy`` (``None`` is the pool's) must
        not be sent to any more.

        A gate that has closed since is no reason: the request is counted, and waited for. But weights
        that nobody vouches for any more would make its answer: those of a refit in place that
        failed, or of a process that has started anew while a connection was made.
        """
        pool = engine.pool
        if pool is None or not self.rl_enabled:
            return False
        return self.fenced_out(engine) or (
            engine.trust is not _VERIFIED
            and untrusted(
                engine.trust,
                fleet_max=pool.fleet_max,
                policy=policy or pool.settings.version_policy,
                settings=pool.settings,
            )
        )

    def dispatch(self, request: RouteRequest, *, room: Room) -> Selected | Wait | RequestError:
        """Like :meth:`select`, for requests whose turn it is: it does not look at who waits."""
        self.catch_up()
        view = self.view
        if view is None:
            return NoTable("the proxy has no fleet table any more")
        pool = view.pools.get(request.pool)
        if pool is None:
            return ModelNotFound(f"the pool {request.pool[:160]!a} is gone")
        return self._settle(decide(pool, request, room=room), pool=pool, view=view)

    def _settle(
        self, outcome: Engine | Wait | RequestError, *, pool: PoolView, view: RoutingView
    ) -> Selected | Wait | RequestError:
        if isinstance(outcome, Engine):
            return self._count(outcome, pool=pool, view=view)
        return outcome

    def _count(self, engine: Engine, *, pool: PoolView, view: RoutingView) -> Selected:
        load = engine.load
        requests = load.requests
        load.requests = requests + 1
        load.total += 1
        if pool.levels is not None:
            pool.levels.move(1 << engine.index, old=requests, new=requests + 1)
        version = engine.version if self.rl_enabled else None
        breaker = engine.breaker
        closed = breaker.state is _CLOSED
        admission = breaker.generation if closed else breaker.admit()
        return Selected(engine, Guard(load, breaker, admission), version, view.epoch)

    def _released(self, engine: Engine) -> None:
        """A guard gave back a request of ``engine``."""
        pool = engine.pool
        requests = engine.load.requests
        if not requests and self.on_idle is not None:
            self.on_idle(engine.id)
        if pool is None:
            if not requests:
                self._departed.pop((engine.id, engine.url), None)
        else:
            if pool.levels is not None:
                pool.levels.move(1 << engine.index, old=requests + 1, new=requests)
            pool.queue.mark_answered(engine.id)
        if self.on_capacity is not None:
            self.on_capacity()

    # --- Inside -------------------------------------------------------------------------------

    def _engine_of(self, row: EngineRow) -> Engine:
        """The engine of a row: the known one, one that comes back to its load, or a new one."""
        identity = (row.id, row.url)
        engine = self._engines.get(identity)
        if engine is not None:
            return engine
        engine = self._departed.get(identity)
        if engine is not None:
            # Only its load is still true; what was seen of it was before it went.
            engine.healthy = True
            engine.seen_version = False
            engine.breaker.reset()
            return engine
        load = EngineLoad()
        engine = Engine(row, load=load, breaker=Breaker(self.cooldowns))
        load.on_release = partial(self._released, engine)
        engine.breaker.on_change = partial(self._breaker_changed, engine)
        return engine

    def _breaker_changed(self, engine: Engine, before: BreakerState) -> None:
        """Other engines may be chosen now. Not worth telling everybody: probes come and go."""
        if engine.pool is None:
            return
        engine.pool.invalidate()
        engine.pool.queue.mark_changed()
        if self.on_breaker is not None and before is not engine.breaker.state:
            self.on_breaker(engine, before)

    def _reconsider(self, pool: PoolView, *, before: PoolView | None) -> None:
        """Let those who wait for the pool be looked at again."""
        if not pool.queue.tickets:
            return
        if before is None:  # the pool was gone for a moment
            pool.queue.unsettle(policies=True)
            pool.queue.mark_changed()
            return
        old, new = before.settings, pool.settings
        policies = old.version_policy != new.version_policy
        if policies or old.sticky_pause != new.sticky_pause or pool.engines != before.engines:
            pool.queue.unsettle(policies=policies)
        pool.queue.mark_changed()

    def _fact_changed(self, engine: Engine) -> None:
        if engine.pool is not None:
            engine.pool.invalidate()
            engine.pool.queue.mark_changed()
        self._changed()

    def _changed(self) -> None:
        for hook in self.on_change:
            hook()


def _pick(pool: PoolView, eligible: Eligible, *, role: Role, affinity: str | None) -> Engine | None:
    """The owner of the routing key, or the policy's choice; ``None`` if it is not that easy."""
    if not eligible.engines:
        return None
    if affinity is None:
        return pool.choose(eligible)
    owner = pool.rendezvous(role).first(affinity)
    return owner if owner is not None and eligible.has(owner) else None


def _same_number(version: str, row_version: str | None) -> bool:
    """Whether both spell one number: ``042`` is no news of an engine whose row says ``42``."""
    value = numeric(version)
    return value is not None and row_version is not None and value == numeric(row_version)
