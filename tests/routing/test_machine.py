"""Every interleaving: tables, reports, health, selections, waiting, leaving and time.

The machine keeps its own books of everything that happened, and a second opinion on who may serve
(:mod:`tests.routing.support`, written from the rules in words). After each step the two agree.
"""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from steersman.clock import FakeClock
from steersman.engine import EngineRow, Gate, Trust
from steersman.errors import (
    HoldFull,
    HoldTimeout,
    ModelNotFound,
    NoAvailableEngine,
    RequestError,
    TargetUnavailable,
)
from steersman.policy import AnyVersion, parse_policy
from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy
from steersman_proxy.load.inflight import EngineLoad
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import RouteRequest, Selected, Wait
from tests.routing.support import POOL, could_serve, fleet, may_serve, pump_all, row, table

NAMES = ("a", "b", "c", "d")
MAX_REQUESTS = 12
MAX_BYTES = 600
POLICIES = [None, "any", "latest-only", "min-version:7", "max-staleness:0", "max-staleness:10"]

versions = st.sampled_from([None, "3", "6", "7", "8"])
# Mostly usable engines: with every fact at random nearly nothing would ever be eligible.
controls: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [{}] * 5
    + [{"gate": Gate(open=False, count=1)}] * 3
    + [
        {"paused": True},
        {"released": ("kv_cache",)},
        {"failed": True},
        {"trust": Trust.UNSYNCED},
        {"trust": Trust.UNCERTAIN},
        {"trust": Trust.UNKNOWN, "paused": True},
        {"url": "http://moved:1"},
    ]
)
rows = st.fixed_dictionaries({}, optional={name: st.tuples(versions, controls) for name in NAMES})
requests = st.builds(
    RouteRequest,
    pool=st.just(POOL),
    policy=st.sampled_from(POLICIES).map(lambda text: parse_policy(text) if text else None),
    affinity=st.none() | st.sampled_from([f"key-{n}" for n in range(8)]),
    target=st.none() | st.none() | st.none() | st.sampled_from([*NAMES, "0", "http://b:8000"]),
    body_bytes=st.integers(0, 150),
    excluded=st.just(frozenset[str]()) | st.frozensets(st.sampled_from(NAMES), max_size=3),
)
pool_settings = st.builds(
    PoolSettings,
    policy=st.sampled_from(RoutingPolicy),
    max_in_flight_per_engine=st.sampled_from([0, 0, 1, 2]),
    admit_unsynced=st.booleans(),
    sticky_pause=st.booleans(),
    hold=st.builds(
        HoldSettings,
        timeout=st.sampled_from([10.0, 10.0, 10.0, 30.0, 0.0]),
        max_requests=st.just(MAX_REQUESTS),
        max_bytes=st.just(MAX_BYTES),
        slice=st.sampled_from([1, 3, 64]),
    ),
    version_policy=st.sampled_from(["any", "latest-only"]).map(parse_policy),
)


class Held:
    """A request in the hold queue, in the machine's own books."""

    def __init__(self, machine: "Routing", request: RouteRequest) -> None:
        self.machine = machine
        self.request = request
        self.since = machine.clock.now()
        self.number = machine.arrivals
        self.outcome: Selected | RequestError | None = None

    def released(self, selected: Selected) -> None:
        assert self.outcome is None
        assert self in self.machine.held
        self.machine.nobody_was_overtaken(self)
        self.outcome = selected
        self.machine.held.remove(self)
        self.machine.took(self.request, selected)

    def failed(self, error: RequestError) -> None:
        assert self.outcome is None
        assert self in self.machine.held
        self.outcome = error
        self.machine.held.remove(self)
        if not isinstance(error, HoldTimeout):
            assert (
                not self.machine.served_by(self.request) or self.machine.settings.hold.timeout == 0
            )
            assert isinstance(error, NoAvailableEngine | ModelNotFound)


class Routing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.settings = PoolSettings()
        self.fleet = fleet(clock=self.clock)
        self.hold = HoldQueue(self.fleet, clock=self.clock)
        self.seq = 0
        self.arrivals = 0
        self.limit_since = 0
        self.rows: dict[str, EngineRow] = {}
        self.fleet_max: str | None = None
        self.there = False
        self.overlay: dict[str, tuple[str | None, Trust]] = {}
        self.shown: set[tuple[str, str]] = set()
        self.sick: set[tuple[str, str]] = set()
        self.guards: list[tuple[EngineLoad, Selected]] = []
        self.held: list[Held] = []

    # --- The books ----------------------------------------------------------------------------

    def facts(self, name: str) -> dict[str, object]:
        one = self.rows[name]
        version, trust = self.overlay.get(name, (one.version, one.trust))
        return {
            "fleet_max": self.fleet_max,
            "version": version,
            "trust": trust,
            "healthy": (one.id, one.url) not in self.sick,
            "admit_unsynced": self.settings.admit_unsynced,
        }

    def candidates(self, request: RouteRequest) -> set[str]:
        """Engines that the request may name or be given, whatever their state."""
        names = [name for name in self.rows if name not in request.excluded]
        if request.target is None:
            return set(names)
        by_index = list(self.rows)
        return {
            name
            for name in names
            if request.target in (name, self.rows[name].url)
            or (request.target.isdigit() and by_index[int(request.target)] == name)
        }

    def eligible(self, request: RouteRequest) -> set[str]:
        policy = request.policy or self.settings.version_policy
        return {
            name
            for name in self.candidates(request)
            if may_serve(self.rows[name], policy, **self.facts(name))  # type: ignore[arg-type]
        }

    def closed(self, request: RouteRequest) -> set[str]:
        """Engines that are out for an operation and nothing worse."""
        policy = request.policy or self.settings.version_policy
        found = set()
        for name in self.candidates(request):
            one, facts = self.rows[name], self.facts(name)
            del facts["version"]
            if (one.paused or not one.gate.open) and could_serve(one, policy, **facts):  # type: ignore[arg-type]
                found.add(name)
        return found

    def in_flight(self, name: str) -> int:
        identity = (name, self.rows[name].url)
        return sum((held.engine.id, held.engine.url) == identity for _, held in self.guards)

    def has_room(self, name: str) -> bool:
        limit = self.settings.max_in_flight_per_engine
        return not limit or self.in_flight(name) < limit

    def served_by(self, request: RouteRequest) -> set[str]:
        """Engines that can take the request right now."""
        return {name for name in self.eligible(request) if self.has_room(name)}

    def nobody_was_overtaken(self, held: Held) -> None:
        for other in self.held:
            if other.number < held.number:
                same = (
                    other.request.policy == held.request.policy
                    and other.request.affinity is held.request.affinity is None
                    and other.request.target is held.request.target is None
                    and other.request.excluded == held.request.excluded
                )
                assert not same, "a later request of the lane went first"

    def took(self, request: RouteRequest, selected: Selected) -> None:
        """An engine got the request: it must be allowed to, and it is in the books from now on."""
        engine = selected.engine
        assert engine.url == self.rows[engine.id].url
        assert engine.id in self.served_by(request)
        assert selected.version == self.facts(engine.id)["version"]
        assert selected.epoch.seq == self.seq
        self.guards.append((engine.load, selected))

    # --- What may happen ----------------------------------------------------------------------

    @initialize(table=rows, settings=pool_settings)
    def first_table(
        self, table: dict[str, tuple[str | None, dict[str, object]]], settings: PoolSettings
    ) -> None:
        self.new_table(table, "7", settings)

    @rule(table=rows, fleet_max=st.sampled_from([None, "7", "7", "8"]), settings=pool_settings)
    def new_table(
        self,
        table: dict[str, tuple[str | None, dict[str, object]]],
        fleet_max: str | None,
        settings: PoolSettings,
    ) -> None:
        self.put(
            {name: row(name, version, **facts) for name, (version, facts) in table.items()},
            fleet_max,
            settings,
        )

    @rule(name=st.sampled_from(NAMES), version=versions, facts=controls)
    def edit_one_row(self, name: str, version: str | None, facts: dict[str, object]) -> None:
        self.put(self.rows | {name: row(name, version, **facts)}, self.fleet_max, self.settings)

    @rule()
    def delete_the_pool(self) -> None:
        self.seq += 1
        self.there = False
        self.rows, self.overlay = {}, {}
        self.sick.clear()
        self.shown.clear()
        self.fleet.apply(table([], pools=[], seq=self.seq))
        pump_all(self.hold)
        assert not self.held

    def put(
        self, rows: dict[str, EngineRow], fleet_max: str | None, settings: PoolSettings
    ) -> None:
        self.seq += 1
        self.there = True
        self.rows, self.fleet_max, self.settings = rows, fleet_max, settings
        identities = {(one.id, one.url) for one in rows.values()}
        self.overlay = {}
        self.sick &= identities
        self.shown &= identities
        self.fleet.apply(table(rows.values(), fleet_max=fleet_max, settings=settings, seq=self.seq))

    @rule(request=requests)
    def arrive(self, request: RouteRequest) -> None:
        result = self.fleet.select(request)
        if self.there and request.target is not None and not self.candidates(request):
            assert isinstance(result, TargetUnavailable)
        if isinstance(result, Selected):
            self.took(request, result)
        elif isinstance(result, Wait):
            assert self.settings.hold.timeout > 0
            self.arrivals += 1
            held = Held(self, request)
            ticket = self.hold.enter(
                request, result.lane, on_release=held.released, on_fail=held.failed
            )
            waiting_bytes = sum(other.request.body_bytes for other in self.held)
            if isinstance(ticket, RequestError):
                assert isinstance(ticket, HoldFull)
                assert (
                    len(self.held) == MAX_REQUESTS or waiting_bytes + request.body_bytes > MAX_BYTES
                )
            else:
                held.ticket = ticket  # type: ignore[attr-defined]
                self.held.append(held)
        elif self.there:
            assert isinstance(result, NoAvailableEngine)
            assert not self.served_by(request)
            if self.settings.hold.timeout > 0 and not isinstance(result, TargetUnavailable):
                assert not self.closed(request)
                assert not self.eligible(request)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.guards:
            index = data.draw(st.integers(0, len(self.guards) - 1))
            _, selected = self.guards.pop(index)
            selected.guard.release()
            selected.guard.release()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.held:
            held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            held.ticket.cancel()  # type: ignore[attr-defined]
            held.ticket.cancel()  # type: ignore[attr-defined]

    @rule(name=st.sampled_from(NAMES), version=versions)
    def report(self, name: str, version: str | None) -> None:
        engine = self.engine(name)
        if engine is None:
            return
        identity = (engine.id, engine.url)
        before = self.overlay.get(name, (engine.row.version, engine.row.trust))
        after = before
        if version is not None:
            self.shown.add(identity)
            after = (version, engine.row.trust)
        elif identity in self.shown:
            torn = engine.row.trust is Trust.UNCERTAIN
            after = (None, Trust.UNCERTAIN if torn else Trust.UNSYNCED)
        self.overlay[name] = after
        assert self.fleet.observe(engine, version, seen_default=version is None) == (
            before != after
        )

    @rule(name=st.sampled_from(NAMES), healthy=st.booleans())
    def health(self, name: str, healthy: bool) -> None:
        engine = self.engine(name)
        if engine is not None:
            (self.sick.discard if healthy else self.sick.add)((engine.id, engine.url))
            self.fleet.set_health(engine, healthy)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.hold.expire()
        if self.there:
            for held in self.held:
                assert held.since + self.settings.hold.timeout > self.clock.now()

    @rule()
    def one_turn(self) -> None:
        self.hold.pump()

    @rule()
    def all_turns(self) -> None:
        pump_all(self.hold)
        self.nobody_waits_without_need()

    def nobody_waits_without_need(self) -> None:
        sticky = self.settings.sticky_pause
        for held in self.held:
            request = held.request
            # With a key under sticky_pause the request may wait for one engine while others idle.
            if not (sticky and request.affinity is not None and request.target is None):
                assert not self.served_by(request)
            if request.target is not None:
                assert self.eligible(request)
            else:
                assert self.eligible(request) or self.closed(request)

    def teardown(self) -> None:
        """Everybody who still waits is served when everything opens and answers come."""
        self.put({"a": row("a", "8")}, "8", PoolSettings(policy=RoutingPolicy.RANDOM))
        for _ in range(MAX_REQUESTS + 1):
            pump_all(self.hold)
            for _, selected in self.guards:
                selected.guard.release()
            self.guards.clear()
        assert not self.held
        assert self.hold.depth(POOL) == self.hold.bytes(POOL) == 0
        self.books_agree()

    # --- What always holds --------------------------------------------------------------------

    def engine(self, name: str) -> Engine | None:
        return next((engine for engine in self.fleet.engines() if engine.id == name), None)

    @invariant()
    def books_agree(self) -> None:
        assert self.hold.depth(POOL) == len(self.held)
        assert self.hold.bytes(POOL) == sum(held.request.body_bytes for held in self.held)
        assert {engine.id for engine in self.fleet.engines()} == set(self.rows)
        for engine in self.fleet.engines():
            assert engine.load.requests == sum(load is engine.load for load, _ in self.guards)
            assert engine.load.requests == self.in_flight(engine.id)
        for load, _ in self.guards:
            assert load.requests > 0
        pool = self.fleet.pool(POOL)
        if pool is not None:
            assert pool.fleet_max == self.fleet_max

    @invariant()
    def any_is_never_stricter(self) -> None:
        pool = self.fleet.pool(POOL)
        if pool is not None:
            role = row("x").role
            loose = pool.eligible(role, AnyVersion()).mask
            for text in POLICIES[2:]:
                assert text is not None
                assert pool.eligible(role, parse_policy(text)).mask & ~loose == 0


Routing.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=60)
TestRouting = Routing.TestCase
