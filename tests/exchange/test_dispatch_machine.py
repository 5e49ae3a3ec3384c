"""Refits in any order of events, and requests of every kind: nothing goes where it must not.

The machine plays the operator (tables), the engines (answers that name versions, refused and broken
connections) and the clients, on the exchange, the hold queue and the shortest way's own choice. What
it asserts is the promise itself, at the two moments that there are: when an engine is chosen, and
when a request is written to it.
"""

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from steersman.engine import Control, EngineRow, Trust
from steersman.policy import AnyVersion, LatestOnly, VersionPolicy, parse_policy
from steersman.settings import HoldSettings, PoolSettings
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.exchange.admission import admit
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import Failure, Hold, RequestHead, Respond, Send
from steersman_proxy.exchange.phase import Phase
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.hold import HoldQueue, Ticket
from steersman_proxy.routing.request import RouteRequest, Selected
from tests.exchange.support import World, row

POOLS = {"a0": "p", "a1": "p", "a2": "p", "b0": "q"}
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream")]
POLICIES = ("any", "any", "latest-only", "latest-only", "min-version:8", "max-staleness:1")

states: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}] * 4
    + [
        {"open": False},
        {"open": False, "paused": True},
        {"trust": Trust.UNCERTAIN, "open": False},
        # As the operator never writes them; the proxy must not count on that.
        {"trust": Trust.UNCERTAIN},
        {"trust": Trust.UNSYNCED},
        {"trust": Trust.UNSYNCED, "version": None},
        {"trust": Trust.UNKNOWN, "version": None},
        {"released": ("weights",)},
        {"failed": True},
    ]
)
rows = st.fixed_dictionaries(
    {name: st.tuples(st.sampled_from(["6", "7", "7", "8"]), states) for name in POOLS}
)


def answer(version: str, *, spanned: bool) -> bytes:
    meta: dict[str, Any] = {"weight_version": version}
    if spanned:
        meta["weight_versions"] = [{"version": version, "start": 0, "end": 3}]
    return json.dumps({"text": "x", "meta_info": meta}).encode()


class Driven:
    """An exchange with what its adapter knows."""

    def __init__(self, exchange: Exchange, policy: VersionPolicy | None) -> None:
        self.exchange = exchange
        self.policy = policy
        self.ticket: Ticket | None = None
        self.engine: Engine | None = None
        self.written = False


class Dispatches(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.fleet = self.world.fleet
        self.hold = HoldQueue(self.fleet, clock=self.world.clock)
        self.pool = PoolSettings()
        self.names: tuple[str, ...] = ()
        self.said: dict[str, set[str | None]] = {}
        self.seq = 0
        self.open: list[Driven] = []

    # --- the operator -----------------------------------------------------------------------------

    @initialize(
        both=st.booleans(),
        admits=st.booleans(),
        strict=st.booleans(),
        sticky=st.booleans(),
        first=rows,
    )
    def begin(self, both: bool, admits: bool, strict: bool, sticky: bool, first: Any) -> None:
        self.names = tuple(POOLS) if both else ("a0", "a1", "a2")
        self.pool = PoolSettings(
            admit_unsynced=admits,
            sticky_pause=sticky,
            version_policy=LatestOnly() if strict else AnyVersion(),
            hold=HoldSettings(timeout=60.0, slice=2),
        )
        self.new_table(first, "7")

    @rule(table=rows, newest=st.sampled_from([None, "6", "7", "8"]))
    def new_table(self, table: dict[str, tuple[str, dict[str, Any]]], newest: str | None) -> None:
        self._put(
            [
                row(name, **({"version": version} | state), pool=POOLS[name])
                for name, (version, state) in table.items()
            ],
            newest,
        )

    @rule(name=st.sampled_from(list(POOLS)), version=st.sampled_from("678"), state=states)
    def edit_one_row(self, name: str, version: str, state: dict[str, Any]) -> None:
        changed = row(name, **({"version": version} | state), pool=POOLS[name])
        view = self.fleet.view
        assert view is not None
        self._put(
            [changed if one.id == name else one.row for one in self.fleet.engines()],
            view.pools["p"].fleet_max,
        )

    def _put(self, rows: list[EngineRow], newest: str | None) -> None:
        self.seq += 1
        engines = tuple(one for one in rows if one.id in self.names)
        pools = tuple(
            PoolRow(name=name, models=(name,), fleet_max=newest, settings=self.pool)
            for name in dict.fromkeys(POOLS[name] for name in self.names)
        )
        self.said = {name: set() for name in self.names}
        self.fleet.apply(Table(epoch=Epoch(0, self.seq), pools=pools, engines=engines))

    # --- the clients ------------------------------------------------------------------------------

    @rule(
        target=running,
        policy=st.none() | st.sampled_from(POLICIES),
        key=st.none() | st.sampled_from(["k0", "k1", "k2"]),
        named=st.none() | st.none() | st.sampled_from(["a0", "a1", "http://a2:1", "0"]),
        by_header=st.booleans(),
    )
    def arrive(
        self, policy: str | None, key: str | None, named: str | None, by_header: bool
    ) -> Driven:
        headers = {
            "x_smg_version_policy": policy,
            "x_smg_routing_key": key,
            "x_smg_target_worker": named,
            "x_steersman_pool": "p" if by_header else None,
        }
        return self._arrive(policy, {k: text for k, text in headers.items() if text is not None})

    def _arrive(self, policy: str | None, headers: dict[str, str]) -> Driven:
        parsed = None if policy is None else parse_policy(policy)
        driven = Driven(self.world.exchange(**headers), parsed)
        self.open.append(driven)
        driven.exchange.start()
        self._carry_out(driven, driven.exchange.body([b'{"model": "p"}']))
        return driven

    @rule(target=running, key=st.none() | st.sampled_from(["k0", "k1", "k2"]))
    def arrive_on_the_shortest_way(self, key: str | None) -> Driven:
        """As the lane does: chosen and counted without an exchange, which is made afterwards."""
        context = self.world.context
        headers = [] if key is None else [(b"x-smg-routing-key", key.encode())]
        head = RequestHead("POST", "/generate", headers)
        selected = self.fleet.at_once(key)
        if selected is None:
            return self._arrive(None, {} if key is None else {"x_smg_routing_key": key})
        self._chosen(selected.engine, None)
        pool = selected.engine.pool
        assert pool is not None
        exchange = Exchange.at_sent(
            context,
            head,
            admission=admit(context, head),
            request=RouteRequest(pool=pool.name, affinity=key),
            selected=selected,
            pool=pool,
            body=[b"{}"],
            started=context.now(),
            minted=None,
        )
        driven = Driven(exchange, None)
        driven.engine = selected.engine
        self.open.append(driven)
        return driven

    @rule(driven=consumes(running))
    def leave(self, driven: Driven) -> None:
        self._close(driven)

    # --- the engines ------------------------------------------------------------------------------

    @rule(driven=running)
    def write(self, driven: Driven) -> None:
        """The first time, or once more because a kept connection was closed."""
        if driven.exchange.phase is not Phase.SENT or driven.written:
            return
        assert driven.engine is not None
        if driven.exchange.may_start():
            self._sent(driven.engine, driven.policy)
            driven.written = True
        else:
            self._carry_out(driven, driven.exchange.attempt_failed(Failure.WITHHELD))

    @rule(driven=running)
    def is_refused(self, driven: Driven) -> None:
        if driven.exchange.phase is Phase.SENT and not driven.written:
            self._carry_out(driven, driven.exchange.attempt_failed(Failure.CONNECT_REFUSED))

    @rule(driven=running)
    def closes_a_kept_connection(self, driven: Driven) -> None:
        if driven.exchange.phase is Phase.SENT:
            driven.written = False

    @rule(
        driven=running,
        version=st.sampled_from(["6", "7", "8", "9", "default"]),
        stream=st.booleans(),
        spanned=st.booleans(),
        ends=st.booleans(),
    )
    def answers(
        self, driven: Driven, version: str, stream: bool, spanned: bool, ends: bool
    ) -> None:
        exchange = driven.exchange
        if exchange.phase is Phase.SENT and driven.written:
            exchange.answer_head(200, SSE if stream else JSON)
        if exchange.phase is not Phase.ANSWER:
            return
        assert driven.engine is not None
        if driven.engine.id in self.said:
            self.said[driven.engine.id].add(None if version == "default" else version)
        body = answer(version, spanned=spanned)
        streaming = exchange.answer.streaming
        exchange.answer_data(b"data: " + body + b"\n\n" if streaming else body)
        if ends or not streaming:
            exchange.answer_end()
            self._close(driven)

    @rule(
        name=st.sampled_from(list(POOLS)),
        version=st.sampled_from(["6", "7", "8", None, None]),
        again=st.booleans(),
    )
    def others_are_answered(self, name: str, version: str | None, again: bool) -> None:
        """Other requests' answers; ``again`` is one more by the process that the first was from."""
        for engine in self.fleet.engines():
            if engine.id == name:
                for said in ("7", version) if again else (version,):
                    self.said[name].add(said)
                    self.fleet.observe(engine, said, seen_default=said is None)

    # --- time -------------------------------------------------------------------------------------

    @rule()
    def pump(self) -> None:
        self.hold.pump()

    @rule(seconds=st.sampled_from((0.1, 31.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.hold.expire()

    # --- what is promised -------------------------------------------------------------------------

    def _chosen(self, engine: Engine, policy: VersionPolicy | None) -> None:
        one, pool = engine.row, engine.pool
        assert pool is not None
        assert one.gate.open
        assert one.control is Control.ACTIVE
        assert not one.failed
        self._sent(engine, policy)
        newest = pool.fleet_max
        if isinstance(policy or self.pool.version_policy, LatestOnly) and newest is not None:
            assert engine.version is not None
            assert int(engine.version) >= int(newest), "older than the fleet max"

    def _sent(self, engine: Engine, policy: VersionPolicy | None) -> None:
        pool = engine.pool
        assert pool is not None
        assert engine.row.trust is not Trust.UNCERTAIN
        admitted = self.pool.admit_unsynced and isinstance(
            policy or self.pool.version_policy, AnyVersion
        )
        if not admitted:
            assert engine.row.trust is not Trust.UNSYNCED
            assert engine.trust is not Trust.UNSYNCED
            assert engine.trust is Trust.VERIFIED or pool.fleet_max is None

    @invariant()
    def answers_move_no_trust_but_to_unsynced(self) -> None:
        for engine in self.fleet.engines():
            said = self.said[engine.id]
            if engine.row.trust in (Trust.UNCERTAIN, Trust.UNSYNCED):
                assert engine.trust is engine.row.trust
            elif engine.trust is not engine.row.trust:
                assert engine.trust is Trust.UNSYNCED
                assert None in said
            assert engine.version in {engine.row.version, *said}

    @invariant()
    def each_engine_counts_exactly_its_own(self) -> None:
        for engine in self.fleet.engines():
            assert engine.load.requests == sum(one.engine is engine for one in self.open)

    # --- how it is driven -------------------------------------------------------------------------

    def _carry_out(self, driven: Driven, action: object) -> None:
        driven.engine, driven.written = None, False
        match action:
            case Send(engine=engine):
                driven.engine = engine
                self._chosen(engine, driven.policy)
            case Hold(request=request, wait=wait):
                ticket = self.hold.enter(
                    request,
                    wait.lane,
                    on_release=lambda selected: self._released(driven, selected),
                    on_fail=lambda error: self._carry_out(
                        driven, driven.exchange.hold_failed(error)
                    ),
                )
                assert isinstance(ticket, Ticket)
                driven.ticket = ticket
            case Respond():
                self._close(driven)
            case _:
                raise AssertionError(action)

    def _released(self, driven: Driven, selected: Selected) -> None:
        driven.ticket = None
        self._carry_out(driven, driven.exchange.released(selected))

    def _close(self, driven: Driven) -> None:
        if driven.ticket is not None:
            driven.ticket.cancel()
        driven.ticket = driven.engine = None
        driven.exchange.close()
        if driven in self.open:
            self.open.remove(driven)

    def teardown(self) -> None:
        """Whoever still waits is served once the engines are refitted and open again."""
        if not self.names:
            return
        self.new_table({name: ("9", {}) for name in POOLS}, "9")
        while self.hold.pump():
            pass
        assert all(one.ticket is None for one in self.open)
        for driven in list(self.open):
            if driven.exchange.phase is Phase.SENT:
                assert driven.exchange.may_start()
            self._close(driven)
        assert self.world.in_flight == 0


Dispatches.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestDispatches = Dispatches.TestCase
