"""A whole world on one seed: operators, proxies and engines, what happens to them, and its end."""

import random

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.events import ProxyRef
from steersman_operator.fleet.plan import may_close
from steersman_operator.fleet.spec import (
    Drift,
    EngineSpec,
    OnTimeout,
    OnUnreachable,
    PauseMode,
    PoolSpec,
    PromoteAt,
    RolloutMode,
)
from steersman_operator.fleet.state import Timing
from tests.fleet.world.cluster import Cluster
from tests.fleet.world.engine import ModelEngine
from tests.fleet.world.faults import Faults
from tests.fleet.world.manager import Manager
from tests.fleet.world.network import Network
from tests.fleet.world.proxy import ModelProxy
from tests.fleet.world.rules import Rules, Violation
from tests.fleet.world.scheduler import Scheduler
from tests.fleet.world.trainer import Trainer

TIMING = Timing(
    grant=2.5,
    fence_margin=1.0,
    lease_margin=1.0,
    call_timeout=3.0,
    verify_timeout=3.0,
    look_every=1.5,
    look_soon=0.15,
    look_timeout=1.5,
    first_look=3.0,
    idle_gap=0.5,
    brake=2.0,
    retry=0.3,
    retry_limit=2.0,
    abort_grace=2.0,
)
STORM = (10.0, 40.0)
"""How long things go wrong, in virtual seconds."""
CALM = 60.0
"""Within which everything has to have come to rest afterwards."""
REST_SEEN = 3
"""In how many looks, a second apart, everything is at rest before that is believed."""


class World:
    """Everything there is."""

    def __init__(self, seed: int, *, managers: type[Manager], proxies: type[ModelProxy]) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.timing = TIMING
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, rng)
        self.cluster = Cluster()
        self.rules = Rules(self)
        self._manager_class, self._proxy_class = managers, proxies
        self.rate = rng.choice((0.5, 2.0, 5.0))
        """Requests a second that come to each proxy."""
        self.longest = rng.choice((0.3, 1.0, 3.0))
        self.store_trouble = 0.0
        self.boots_told = rng.random() < 0.5
        """Whether the platform tells boots apart; if not, no uid is used twice."""
        self.fencing = rng.random() < 0.3
        # In every second world, so that what has nothing to do with weights is not crowded out.
        self.asks_for_weights = seed % 2 == 1
        self._numbers = 0
        self.engines = {
            name: ModelEngine(
                name,
                scheduler=self.scheduler,
                rng=rng,
                rules=self.rules,
                vllm=rng.random() < 0.4,
            )
            for name in "abcde"[: rng.randint(1, 5)]
        }
        self.pool = self._first_pool()
        self.cluster.pools = (self.pool,)
        self.trainer = Trainer(self)
        self.proxies: dict[str, ModelProxy] = {}
        self.managers: dict[str, Manager] = {}
        self.past: list[Manager] = []
        """Every operator process that there ever was."""
        for slot in range(rng.randint(1, 4)):
            self.start_proxy(f"p{slot}")
        for slot in range(rng.choice((1, 2, 2))):
            self.start_manager(f"m{slot}")

    def _first_pool(self) -> PoolSpec:
        rng = self.rng
        return PoolSpec(
            name="pool",
            models=("m",),
            engines=tuple(spec_of(name) for name in self.engines),
            drift=rng.choice((Drift.OBSERVE, Drift.OBSERVE, Drift.ENFORCE)),
            mode=rng.choice((RolloutMode.QUIESCE, RolloutMode.QUIESCE, RolloutMode.IN_PLACE)),
            pause_mode=rng.choice(tuple(PauseMode)),
            promote_at=rng.choice(tuple(PromoteAt)),
            drain_timeout=rng.choice((2.0, 5.0)),
            on_timeout=rng.choice(tuple(OnTimeout)),
            on_unreachable=OnUnreachable.FENCE if self.fencing else OnUnreachable.WAIT,
            max_unavailable=rng.choice(("1", "2", "50%")) if self.asks_for_weights else "1",
            refit_timeout=4.0,
            trainer_timeout=rng.choice((4.0, 20.0)) if self.asks_for_weights else 4.0,
        )

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def duration(self) -> float:
        return self.rng.uniform(0.05, self.longest)

    # --- processes --------------------------------------------------------------------------------

    def start_proxy(self, slot: str) -> None:
        """A proxy process begins; the platform lists it before it does anything."""
        number = self.number()
        if self.boots_told:
            uid, boot = slot, str(number)
        else:
            uid, boot = f"{slot}.{number}", "only"
        self.proxies[slot] = ModelProxy(self, uid, boot)
        self.list_proxies(lag=0.0)

    def list_proxies(self, *, lag: float) -> None:
        """The platform's account of the processes that exist now reaches the operators later."""
        cluster = self.cluster
        cluster.proxies = tuple(
            ProxyRef(uid=proxy.uid, boot=proxy.ref.boot if self.boots_told else "")
            for proxy in self.proxies.values()
            if proxy.alive or self.boots_told
        )
        cluster.listing += 1
        for manager in self.managers.values():
            manager.later(lag, manager.read_proxies, cluster.proxies, cluster.listing)

    def start_manager(self, slot: str) -> None:
        manager = self._manager_class(self, f"{slot}.{self.number()}")
        self.managers[slot] = manager
        self.past.append(manager)

    def leader(self) -> Manager | None:
        holder = self.cluster.lease.holder
        if holder is None or not holder.alive or not holder.leads:
            return None
        return holder if holder.state.term == self.cluster.lease.term else None

    def change_spec(self, *, deliberate: bool = False, **changes: object) -> None:
        self.pool = msgspec.structs.replace(
            self.pool, generation=self.pool.generation + 1, **changes
        )
        for engine in self.engines.values():
            engine.told = self.pool.weights is not None
        self.cluster.pools = (self.pool,)
        self.cluster.deliberate = deliberate
        for manager in self.managers.values():
            manager.later(self.rng.uniform(0.001, 0.2), manager.read_spec)

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """A storm, then calm; every rule is watched all along."""
        faults = Faults(self)
        self.scheduler.run_until(self.scheduler.time + 1.5)
        faults.begin()
        self.scheduler.run_until(self.scheduler.time + self.rng.uniform(*STORM))
        faults.end()
        end, seen = self.scheduler.time + CALM, 0
        while seen < REST_SEEN:
            self.scheduler.run_until(self.scheduler.time + 1.0)
            unrest = self.unrest()
            seen = 0 if unrest else seen + 1
            if unrest and self.scheduler.time > end:
                raise Violation(f"no rest within {CALM:g} s: {unrest}")

    def unrest(self) -> str:
        """What has not come to rest; empty if everything has."""
        leader = self.leader()
        if leader is None or not leader.state.published:
            return "nobody leads"
        state = leader.state
        for spec in self.pool.engines:
            why = self._unrest_of(leader, spec.id)
            if why:
                return f"{spec.id}: {why}"
        for proxy in self.proxies.values():
            if proxy.epoch != state.epoch:
                return f"{proxy.uid} is at table {proxy.epoch}, not {state.epoch}"
            for name, row in proxy.rows.items():
                if row.gate.open != state.engines[name].gate.open:
                    return f"{proxy.uid} sees another gate of {name}"
        return ""

    def _unrest_of(self, leader: Manager, name: str) -> str:
        if name not in leader.state.engines:
            return "not known yet"
        engine, truth = leader.state.engines[name], self.engines[name]
        pool, facts = leader.state.pools["pool"], engine.facts
        if engine.op is not None and "and not whole" in engine.problem:
            return ""  # whoever does not let go is named, and it serves nothing in any case
        if engine.op is not None:
            return f"under way: {engine.op}"
        if not engine.reachable or not engine.known:
            return "not reachable"
        if facts.boot_id != truth.boot_id:
            return "another boot is not noticed"
        if facts.released is None:
            # Nobody can tell; people are told so, and a restart ends it.
            told = "stays closed until it is restarted" in engine.problem
            return "" if told and not engine.gate.open else "unknown without a word"
        true = Control.PAUSED if truth.paused else Control.ACTIVE
        if truth.released:
            true = Control.ASLEEP
        if facts.control is not true and truth.shows_paused:
            return f"is {true}, believed {facts.control}"
        if truth.undefined and not truth.released:
            return "nobody has loaded weights yet"
        goal = pool.goal(name)
        target = pool.weights
        if not facts.sound and facts.control is not Control.ASLEEP:
            lost = target is None or engine.unloadable == (target.id, pool.generation)
            if not lost:
                return "its weights are not whole, and nothing is done about it"
            return "gate open with weights that are not whole" if engine.gate.open else ""
        if not truth.whole and not truth.released:
            return "believed to be whole"
        if target is not None and goal is not Control.ASLEEP and engine.loaded != target.id:
            tried = engine.unloadable == (target.id, pool.generation)
            if not tried and engine.version != target.version and self._may_load(leader):
                return f"has {engine.loaded!r}, wanted {target.id!r}"
        given_up = engine.given_up == (goal, pool.generation) and bool(engine.problem)
        if engine.settled is not goal and not given_up:
            return f"settled {engine.settled}, wanted {goal}"
        if facts.control is not engine.settled and not engine.external:
            return f"is {facts.control}, was put {engine.settled}"
        should_open = engine.settled is facts.control is Control.ACTIVE and (
            goal is Control.ACTIVE or given_up
        )
        if engine.gate.open is not should_open:
            return f"gate open: {engine.gate.open}, should be {should_open}"
        return ""

    def _may_load(self, leader: Manager) -> bool:
        """Whether the plan lets anybody be closed: not if too many are closed for good."""
        pool, engines = leader.state.pools["pool"], leader.state.engines
        names = [name for name, one in engines.items() if one.gate.open]
        return bool(may_close(pool, names, engines=engines))


def spec_of(name: str) -> EngineSpec:
    """An engine as the spec names it."""
    return EngineSpec(id=name, url=f"http://{name}:30000")
