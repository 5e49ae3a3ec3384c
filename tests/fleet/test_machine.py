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
from steersman_operator.fleet.commands import Call, Command
from steersman_operator.fleet.events import Acked, Event, InFlight, ProxyJoined, ProxyLost
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Durable, Outcome
from steersman_operator.fleet.readiness import needs_clear
from steersman_operator.fleet.spec import OnTimeout, RolloutMode
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
        return commands


class FleetMachine(RuleBasedStateMachine):
    """Two engines, three proxies of which one joins late, and one operator after the other."""

    @initialize(
        mode=st.sampled_from(RolloutMode),
        on_timeout=st.sampled_from(OnTimeout),
        readable=st.booleans(),
    )
    def begin(self, *, mode: RolloutMode, on_timeout: OnTimeout, readable: bool) -> None:
        truths = {name: Truth(shows_paused=readable, shows_released=readable) for name in ENGINES}
        self.bench: Bench = Watched(
            ENGINES,
            proxies="xy",
            truths=truths,
            mode=mode,
            on_timeout=on_timeout,
            drain_timeout=9.0,
        )
        self.tables: dict[str, Table] = dict.fromkeys("xy", self.newest())
        self.requests = {(uid, name): 0 for uid in PROXIES for name in ENGINES}
        self.unsent = dict(self.requests)
        """Of those, chosen an engine for and not on their way yet."""
        self.letters: list[Acked | InFlight] = []
        """What proxies have said and nobody has heard yet."""
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
            row = next(row for row in table.engines if row.id == call.engine)
            assert not row.gate.open, f"{uid} may still send to {call.engine}"
            if needs_clear(op, self.bench.pool):
                assert not self.requests[uid, call.engine], f"{uid} has requests on {call.engine}"

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

    @rule(seconds=st.sampled_from((0.1, 1.1, 5.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds
        for call, until in list(self.running):
            if until <= self.time and (call, until) in self.running:
                self._answer(call, until, Outcome.UNKNOWN, happens=False)
        self.bench.tick(seconds)

    @rule(turns=st.sampled_from((1, 5, 15)), calls_end=st.booleans(), silent=st.sets(proxies))
    def everybody_answers(self, turns: int, *, calls_end: bool, silent: set[str]) -> None:
        """What usually happens, so that a few steps lead to where it gets interesting."""
        bench = self.bench
        for _ in range(turns):
            self.time_passes(0.25)
            for uid in sorted(self.tables.keys() - silent):
                self.a_table_arrives(uid)
                while self.letters:
                    bench.do(msgspec.structs.replace(self.letters.pop(0), now=bench.now))
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

    @rule(uid=proxies)
    def a_table_arrives(self, uid: str) -> None:
        if uid in self.tables and self.bench.table is not None:
            if self.bench.table.epoch > self.tables[uid].epoch:
                self.tables[uid] = self.bench.table
            self._say(uid)

    def _say(self, uid: str) -> None:
        epoch, now = self.tables[uid].epoch, self.bench.now
        counts = {name: self.requests[uid, name] for name in self.bench.watched}
        self.letters.append(Acked(now=now, proxy=ref(uid), epoch=epoch))
        self.letters.append(InFlight(now=now, proxy=ref(uid), epoch=epoch, counts=counts))

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), again=st.booleans())
    def a_letter_arrives(self, data: Any, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.letters) - 1))
        letter = self.letters[index] if again else self.letters.pop(index)
        self.bench.do(msgspec.structs.replace(letter, now=self.bench.now))

    @rule(uid=proxies, name=engines, sent=st.booleans())
    def a_request_begins(self, uid: str, name: str, sent: bool) -> None:
        if uid not in self.tables:
            return
        row = next(row for row in self.tables[uid].engines if row.id == name)
        truth = self.bench.truths[name]
        if row.gate.open and truth.answers:
            assert not truth.released, f"{uid} sends to {name}, which is asleep"
            self.requests[uid, name] += 1
            if sent:
                truth.busy = (truth.busy or 0) + 1
            else:
                self.unsent[uid, name] += 1

    @rule(uid=proxies, name=engines)
    def a_request_ends(self, uid: str, name: str) -> None:
        if self.requests[uid, name]:
            self.requests[uid, name] -= 1
            if self.unsent[uid, name]:
                self.unsent[uid, name] -= 1
            else:
                truth = self.bench.truths[name]
                truth.busy = (truth.busy or 0) - 1

    @rule(uid=proxies)
    def a_proxy_connects(self, uid: str) -> None:
        if uid not in self.tables and self.bench.table is not None:
            # It has no table before it has been answered.
            self.tables[uid] = self.bench.table
            self.bench.proxies[uid] = ref(uid)
        if uid in self.tables:
            self.bench.do(ProxyJoined(now=self.bench.now, proxy=ref(uid)))

    @rule(uid=proxies)
    def a_connection_breaks(self, uid: str) -> None:
        if uid in self.tables:
            self.bench.do(ProxyLost(now=self.bench.now, proxy=ref(uid)))

    @rule()
    def the_platform_lists_everybody(self) -> None:
        self.bench.require()

    # --- engines and the store --------------------------------------------------------------------

    @precondition(lambda self: self.bench.looks)
    @rule()
    def a_look_ends(self) -> None:
        self.bench.look(self.bench.looks[0][0].engine)

    @precondition(lambda self: self.bench.loads)
    @rule()
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
        self.bench.truths[name].busy = 0
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
    max_examples=max(300, settings.default.max_examples), stateful_step_count=60
)
TestTheFleet = FleetMachine.TestCase


def test_epochs_of_a_later_term_are_later_whatever_their_number() -> None:
    assert Epoch(2, 1) > Epoch(1, 900)
