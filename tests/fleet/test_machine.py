"""The core against everything that may happen to it, one event at a time, in the smallest world.

Where the worlds of a seed are large and hard to read, what fails here is shrunk to a few steps.
"""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from steersman.engine import Control
from steersman.table import Epoch, Table
from steersman_operator.fleet.commands import Call, Command, CutRequests
from steersman_operator.fleet.events import Acked, Event, InFlight, ProxyJoined, ProxyLost, Tick
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Durable, Outcome
from steersman_operator.fleet.readiness import needs_clear
from steersman_operator.fleet.spec import OnTimeout, OnUnreachable, RolloutMode
from tests.fleet.support import Bench, Truth, ref

ENGINES, PROXIES = "ab", "xyz"
engines = st.sampled_from(ENGINES)
proxies = st.sampled_from(PROXIES)


class Watched(Bench):
    """A bench that looks at every call before it is made."""

    machine: "FleetMachine | None" = None

    def do(self, event: Event) -> list[Command]:
        commands = super().do(event)
        for command in commands:
            if isinstance(command, Call) and self.machine is not None:
                self.machine.call_begins(command)
            elif isinstance(command, CutRequests) and self.machine is not None:
                self.machine.cut(command.engine)
        return commands


class FleetMachine(RuleBasedStateMachine):
    """Two engines, three proxies of which one joins late, and one operator after the other."""

    @initialize(
        mode=st.sampled_from(RolloutMode),
        on_timeout=st.sampled_from(OnTimeout),
        on_unreachable=st.sampled_from(OnUnreachable),
        readable=st.booleans(),
    )
    def begin(
        self,
        *,
        mode: RolloutMode,
        on_timeout: OnTimeout,
        on_unreachable: OnUnreachable,
        readable: bool,
    ) -> None:
        truths = {name: Truth(shows_paused=readable, shows_released=readable) for name in ENGINES}
        self.bench: Bench = Watched(
            ENGINES,
            proxies="xy",
            truths=truths,
            mode=mode,
            on_timeout=on_timeout,
            on_unreachable=on_unreachable,
            drain_timeout=9.0,
        )
        self.fencing = on_unreachable is OnUnreachable.FENCE
        self.tables: dict[str, Table] = dict.fromkeys("xy", self.newest())
        self.requests = {(uid, name): 0 for uid in PROXIES for name in ENGINES}
        self.unsent = dict(self.requests)
        """Of those, chosen an engine for and not on their way yet."""
        self.letters: list[tuple[Acked | InFlight, float]] = []
        """What proxies have said and nobody has heard yet, with the time at which they said it."""
        self.cuts: list[tuple[str, str]] = []
        """Proxies that are to end what they have on an engine, and do not know it yet."""
        self.lingering = dict.fromkeys(ENGINES, 0)
        """Requests whose connection is gone; the engine has not noticed."""
        self.heard: dict[str, float] = {}
        """When each proxy said the latest thing that this operator has heard."""
        self.granted = dict.fromkeys("xy", 0.0)
        """From when the contact of each proxy counts."""
        self.apart: set[str] = set()
        """Proxies that nothing reaches and that reach nobody."""
        self.written: dict[str, Durable] = {}
        self.running: list[tuple[Call, float]] = []
        """Calls at engines, with the time by which they have had their effect."""
        self.time = 0.0
        self._follow(self.bench)

    def newest(self) -> Table:
        assert self.bench.table is not None
        return self.bench.table

    def _follow(self, bench: Bench) -> None:
        assert isinstance(bench, Watched)
        bench.machine = self
        self.bench = bench

    # --- what must hold ---------------------------------------------------------------------------

    def call_begins(self, call: Call) -> None:
        # A call that is meant for another boot than there is comes to nothing.
        meant = (None, self.bench.truths[call.engine].boot)
        for one, _ in self.running:
            assert one.engine != call.engine or one.boot_id not in meant, (
                f"{one.kind} may still run"
            )
        self.running.append((call, self.time + call.timeout))
        if call.kind not in (CallKind.PAUSE, CallKind.SLEEP):
            return
        op = self.bench.op(call.engine)
        for uid, table in self.tables.items():
            if self.fenced_out(uid):
                continue
            row = next(row for row in table.engines if row.id == call.engine)
            assert not row.gate.open, f"{uid} may still send to {call.engine}"
            if needs_clear(op, self.bench.pool):
                assert not self.requests[uid, call.engine], f"{uid} has requests on {call.engine}"

    def fenced_out(self, uid: str) -> bool:
        """Whether a proxy starts nothing any more, not even what it had chosen an engine for."""
        return self.fencing and self.time - self.granted[uid] >= self.bench.timing.grant

    def cut(self, engine: str) -> None:
        self.cuts += [(uid, engine) for uid in sorted(self.tables.keys() - self.apart)]

    @invariant()
    def an_open_gate_means_an_engine_that_serves(self) -> None:
        for name, engine in self.bench.state.engines.items():
            if engine.gate.open:
                assert engine.op is None and engine.facts.control is Control.ACTIVE, name

    @invariant()
    def what_is_closed_is_closed_by_a_table_that_was_published(self) -> None:
        for engine in self.bench.state.engines.values():
            if engine.gate.open:
                assert engine.closed_at is None
            elif self.bench.state.published:
                assert engine.closed_at is not None
                assert engine.closed_at <= self.bench.state.epoch

    # --- wishes and time --------------------------------------------------------------------------

    @rule(state=st.sampled_from(Control))
    def wish(self, state: Control) -> None:
        self.bench.want(state, overrides={})

    @rule(name=engines, state=st.sampled_from(Control))
    def wish_for_one(self, name: str, state: Control) -> None:
        self.bench.want(overrides={**self.bench.pool.overrides, name: state})

    @precondition(lambda self: self.running)
    @rule(state=st.sampled_from(Control))
    def wish_something_else_during_a_call(self, state: Control) -> None:
        self.bench.want(state, overrides={})

    @rule(seconds=st.sampled_from((0.1, 1.1, 5.0, 16.0, 30.0)), stall=st.booleans())
    def time_passes(self, seconds: float, stall: bool = False) -> None:
        """After a stall of the operator, whatever it hears next it hears late and before its tick."""
        self.time += seconds
        self.bench.now += seconds
        for call, until in list(self.running):
            if until <= self.time and (call, until) in self.running:
                self._answer(call, until, Outcome.UNKNOWN, happens=False)
        if not stall:
            self.bench.do(Tick(now=self.bench.now))

    @rule(
        turns=st.sampled_from((1, 5, 15)),
        calls_end=st.booleans(),
        traffic=st.booleans(),
        silent=st.sets(proxies),
    )
    def everybody_answers(
        self, turns: int, *, calls_end: bool, traffic: bool, silent: set[str]
    ) -> None:
        """What usually happens, so that a few steps lead to where it gets interesting."""
        bench = self.bench
        for _ in range(turns):
            if traffic:
                for uid, name in self.requests:
                    self.a_request_ends(uid, name)
                    self.a_request_begins(uid, name, sent=uid != "x")
            self.time_passes(0.25)
            for uid in sorted(self.tables.keys() - silent - self.apart):
                self.a_table_arrives(uid)
                while self.letters:
                    self._hear(*self.letters.pop(0))
                self.a_ping_arrives(uid)
            while self.cuts:
                self.a_cut_arrives()
            for name in ENGINES:
                self.an_engine_notices(name)
            while bench.looks:
                self.a_look_ends()
            while bench.loads:
                self.a_load_is_told()
            while bench.stores:
                self.the_store_answers(ok=True)
            if self.running and not calls_end:
                return
            while self.running:
                self.a_call_ends(Outcome.OK, happens=True)

    # --- proxies ----------------------------------------------------------------------------------

    @rule(uid=proxies, what=st.integers(0, 6))
    def something_of_a_proxy(self, uid: str, what: int) -> None:
        """One rule for many small things, or they would crowd out the large ones."""
        match what:
            case 0 | 1:
                self.a_table_arrives(uid)
            case 2:
                self.a_ping_arrives(uid)
            case 3:
                self.a_proxy_connects(uid)
            case 4:
                self.a_connection_breaks(uid)
            case 5:
                self.the_platform_lists_everybody()
            case _ if uid in self.apart:
                self.apart.discard(uid)
            case _:
                self.apart.add(uid)

    @rule(uid=proxies, name=engines, what=st.integers(0, 3))
    def something_of_a_request(self, uid: str, name: str, what: int) -> None:
        match what:
            case 0:
                self.a_request_is_sent(uid, name)
            case 1:
                self.a_request_ends(uid, name)
            case _:
                self.a_request_begins(uid, name, sent=what == 2)

    @rule(name=engines)
    def something_that_was_asked_is_told(self, name: str) -> None:
        if self.bench.looks:
            self.a_look_ends()
        elif self.bench.loads:
            self.a_load_is_told()
        elif self.cuts:
            self.a_cut_arrives()
        else:
            self.an_engine_notices(name)

    def a_table_arrives(self, uid: str) -> None:
        if uid in self.tables and uid not in self.apart and self.bench.table is not None:
            if self.bench.table.epoch > self.tables[uid].epoch:
                self.tables[uid] = self.bench.table
            self._say(uid)

    def a_ping_arrives(self, uid: str) -> None:
        """It tells the proxy what was heard of it; that counts with the newest table only."""
        if uid not in self.tables or uid in self.apart or self.bench.table is None:
            return
        if self.tables[uid].epoch == self.bench.state.epoch and uid in self.heard:
            self.granted[uid] = max(self.granted[uid], self.heard[uid])

    def _say(self, uid: str) -> None:
        epoch, now = self.tables[uid].epoch, self.bench.now
        counts = {name: self.requests[uid, name] for name in self.bench.watched}
        for letter in (
            Acked(now=now, proxy=ref(uid), epoch=epoch),
            InFlight(now=now, proxy=ref(uid), epoch=epoch, counts=counts),
        ):
            self.letters.append((letter, self.time))

    def _hear(self, letter: Acked | InFlight, said: float) -> None:
        uid = letter.proxy.uid
        if letter.epoch.term == self.bench.state.term:
            self.heard[uid] = max(self.heard.get(uid, 0.0), said)
        self.bench.do(msgspec.structs.replace(letter, now=self.bench.now))

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), again=st.booleans())
    def a_letter_arrives(self, data: Any, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.letters) - 1))
        self._hear(*(self.letters[index] if again else self.letters.pop(index)))

    def a_request_begins(self, uid: str, name: str, sent: bool) -> None:
        if uid not in self.tables:
            return
        row = next(row for row in self.tables[uid].engines if row.id == name)
        truth = self.bench.truths[name]
        if row.gate.open and truth.answers and not self.fenced_out(uid):
            assert not truth.released, f"{uid} sends to {name}, which is asleep"
            for call, _ in self.running:
                disturbs = call.kind in (CallKind.PAUSE, CallKind.SLEEP)
                here = call.engine == name and call.boot_id in (None, truth.boot)
                assert not (disturbs and here), f"{uid} sends to {name} during its {call.kind}"
            self.requests[uid, name] += 1
            if sent:
                truth.busy = (truth.busy or 0) + 1
            else:
                self.unsent[uid, name] += 1

    def a_request_is_sent(self, uid: str, name: str) -> None:
        """Its first byte is written, unless there is no contact any more."""
        if not self.unsent[uid, name]:
            return
        self.unsent[uid, name] -= 1
        if self.fenced_out(uid):
            self.requests[uid, name] -= 1
            return
        truth = self.bench.truths[name]
        assert not truth.released, f"{uid} sends to {name}, which is asleep"
        truth.busy = (truth.busy or 0) + 1

    def a_cut_arrives(self) -> None:
        """The proxy ends what it has there; its engine notices that later."""
        uid, name = self.cuts.pop(0)
        self.lingering[name] += self.requests[uid, name] - self.unsent[uid, name]
        self.requests[uid, name] = self.unsent[uid, name] = 0

    def an_engine_notices(self, name: str) -> None:
        truth = self.bench.truths[name]
        truth.busy = (truth.busy or 0) - self.lingering[name]
        self.lingering[name] = 0

    def a_request_ends(self, uid: str, name: str) -> None:
        if self.requests[uid, name]:
            self.requests[uid, name] -= 1
            if self.unsent[uid, name]:
                self.unsent[uid, name] -= 1
            else:
                truth = self.bench.truths[name]
                truth.busy = (truth.busy or 0) - 1

    def a_proxy_connects(self, uid: str) -> None:
        if uid not in self.tables and self.bench.table is not None:
            # It has no table before it has been answered.
            self.tables[uid] = self.bench.table
            self.granted[uid] = self.time
            self.bench.proxies[uid] = ref(uid)
        if uid in self.tables and uid not in self.apart:
            self.heard[uid] = self.time
            self.bench.do(ProxyJoined(now=self.bench.now, proxy=ref(uid)))

    def a_connection_breaks(self, uid: str) -> None:
        if uid in self.tables:
            self.bench.do(ProxyLost(now=self.bench.now, proxy=ref(uid)))

    def the_platform_lists_everybody(self) -> None:
        self.bench.require()

    # --- engines and the store --------------------------------------------------------------------

    def a_look_ends(self) -> None:
        self.bench.look(self.bench.looks[0][0].engine)

    def a_load_is_told(self) -> None:
        self.bench.load(self.bench.truths[self.bench.loads[0][0].engine].busy)

    @precondition(lambda self: self.bench.stores)
    @rule(ok=st.booleans())
    def the_store_answers(self, ok: bool) -> None:
        record = self.bench.stores[0].record
        if ok:
            self.written[record.engine] = record
        self.bench.stored(ok=ok)

    @precondition(lambda self: self.running)
    @rule(outcome=st.sampled_from(Outcome), happens=st.booleans())
    def a_call_ends(self, outcome: Outcome, happens: bool) -> None:
        call, until = self.running[0]
        if outcome in (Outcome.OK, Outcome.REFUSED):
            happens = outcome is Outcome.OK
        self._answer(call, until, outcome, happens=happens)

    def _answer(self, call: Call, until: float, outcome: Outcome, *, happens: bool) -> None:
        self.running.remove((call, until))
        truth = self.bench.truths[call.engine]
        if call.boot_id not in (None, truth.boot):
            happens = False
        if happens and call.kind is CallKind.SLEEP:
            assert not truth.busy, f"{call.engine} is put to sleep with requests and dies"
            assert not truth.released, f"{call.engine} is put to sleep twice and dies"
        if happens and call.kind is CallKind.WAKE:
            assert call.tags == truth.released == ALL_TAGS, f"{call.engine} is woken and dies"
        if call in self.bench.calls:
            self.bench.calls.remove(call)
            self.bench.calls.insert(0, call)
            self.bench.end_call(outcome, happens=happens)
        elif happens:
            truth.take(call)  # of an operator that is gone

    @rule(name=engines)
    def an_engine_restarts(self, name: str) -> None:
        for uid in PROXIES:
            self.requests[uid, name] = self.unsent[uid, name] = 0
        self.bench.truths[name].busy = self.lingering[name] = 0
        self.bench.truths[name].restart()
        for call, until in [one for one in self.running if one[0].engine == name]:
            self._answer(call, until, Outcome.UNKNOWN, happens=False)

    # --- operators --------------------------------------------------------------------------------

    @rule(last_is_written=st.booleans())
    def another_operator_takes_over(self, last_is_written: bool) -> None:
        if last_is_written:
            for store in self.bench.stores:
                self.written[store.record.engine] = store.record
        before = self.bench
        after = Watched(
            ENGINES, proxies="", truths=before.truths, started=False, timing=before.timing
        )
        after.pool, after.proxies = before.pool, before.proxies
        self.heard, self.cuts = {}, []
        after.elect(before.state.term + 1, tuple(self.written.values()))
        after.want()
        after.require()
        self._follow(after)

    def teardown(self) -> None:
        """Nothing goes wrong any more: every wish comes true, or is given up with a reason."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        for call, until in list(self.running):
            self._answer(call, until, Outcome.UNKNOWN, happens=False)
        assert isinstance(bench, Watched)
        bench.machine = None
        for name in ENGINES:
            bench.truths[name].busy = 0
        for uid in self.tables:
            bench.do(ProxyJoined(now=bench.now, proxy=ref(uid)))
        bench.require()
        rested = bench.run(400, lambda: all(self._rests(name) for name in ENGINES))
        assert rested, {name: bench.engine(name) for name in ENGINES}

    def _rests(self, name: str) -> bool:
        bench = self.bench
        engine, goal = bench.engine(name), bench.pool.goal(name)
        if engine.op is not None or not bench.state.published:
            return False
        if engine.facts.released is None:
            return "stays closed until it is restarted" in engine.problem
        if engine.given_up == (goal, bench.pool.generation):
            return bool(engine.problem) and engine.facts.control is engine.settled
        return bench.settled(goal, name)


assert settings.default is not None
FleetMachine.TestCase.settings = settings(
    max_examples=max(800, settings.default.max_examples), stateful_step_count=60
)
TestTheFleet = FleetMachine.TestCase


def test_epochs_of_a_later_term_are_later_whatever_their_number() -> None:
    assert Epoch(2, 1) > Epoch(1, 900)
