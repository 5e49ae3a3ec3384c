"""What connections and probes say, made into in or out; on a clock that stands still."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from steersman.clock import FakeClock
from steersman.engine import Role
from steersman.errors import NoAvailableEngine
from steersman.policy import AnyVersion
from steersman_proxy.health.tracker import Condition, HealthTracker, ProbeResult
from steersman_proxy.routing.request import RouteRequest, Selected
from steersman_proxy.settings import PassiveHealth, ProbeSettings
from tests.observation.support import CLOSED, engine_of, fleet_of, row, table

PASSIVE = PassiveHealth(failures=3, eject_for=5.0)
PROBE = ProbeSettings(enabled=True, interval=10.0, timeout=5.0, failures=3, successes=2)


def setup(*rows, passive=PASSIVE, probe=PROBE):
    clock = FakeClock()
    fleet = fleet_of(*(rows or (row("e1"), row("e2"))), clock=clock)
    tracker = HealthTracker(fleet, clock=clock, passive=passive, probe=probe)
    return clock, fleet, tracker


def fail(tracker, engine, times):
    for _ in range(times):
        tracker.connect_failed(engine)


def test_connections_that_fail_in_a_row_put_an_engine_out_for_a_while():
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 2)
    assert engine.healthy
    fail(tracker, engine, 1)
    assert not engine.healthy
    assert tracker.conditions(engine) == [Condition.EJECTED]
    eligible = fleet.pool("main").eligible(Role.PLAIN, AnyVersion())
    assert [e.id for e in eligible.engines] == ["e2"]
    assert tracker.next_deadline == clock.now() + 5
    clock.advance(4.999)
    tracker.expire()
    assert not engine.healthy
    clock.advance(0.001)
    tracker.expire()
    assert engine.healthy
    assert tracker.next_deadline is None


def test_an_engine_on_trial_is_out_at_its_next_failure():
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 3)
    clock.advance(5)
    tracker.expire()
    fail(tracker, engine, 1)
    assert not engine.healthy


def test_an_engine_on_trial_is_cleared_by_an_answer():
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 3)
    clock.advance(5)
    tracker.expire()
    tracker.reached(engine)
    fail(tracker, engine, 2)
    assert engine.healthy


def test_answers_in_between_reset_the_count():
    _, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    for _ in range(10):
        fail(tracker, engine, 2)
        tracker.reached(engine)
    assert engine.healthy


def test_late_failures_and_answers_of_old_connections_do_not_move_the_end():
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 3)
    end = tracker.next_deadline
    clock.advance(2)
    fail(tracker, engine, 5)
    tracker.reached(engine)
    assert tracker.next_deadline == end
    assert not engine.healthy


def test_zero_failures_switch_it_off():
    _, fleet, tracker = setup(passive=PassiveHealth(failures=0))
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 100)
    assert engine.healthy


def test_a_pool_that_is_wholly_out_is_refused_as_unhealthy_and_comes_back():
    """Nothing is sent on trial: connections failed, so would the request."""
    clock, fleet, tracker = setup()
    for engine in fleet.engines():
        fail(tracker, engine, 3)
    answer = fleet.select(RouteRequest(pool="main"))
    assert isinstance(answer, NoAvailableEngine)
    assert answer.reasons == {"unhealthy": 2}
    clock.advance(5)
    tracker.expire()
    assert isinstance(fleet.select(RouteRequest(pool="main")), Selected)


def test_the_shell_is_woken_for_each_new_ejection():
    _, fleet, tracker = setup()
    woken = []
    tracker.on_wake = lambda: woken.append(tracker.next_deadline)
    fail(tracker, engine_of(fleet, "e1"), 3)
    fail(tracker, engine_of(fleet, "e2"), 3)
    assert len(woken) == 2
    assert woken[0] == woken[1]


def test_an_engine_that_left_the_table_is_forgotten():
    _clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    guard = engine.load.take()  # keeps the identity alive
    fail(tracker, engine, 3)
    fleet.apply(table(row("e2"), seq=2))
    assert tracker.next_deadline is None
    fail(tracker, engine, 3)
    fleet.apply(table(row("e1"), row("e2"), seq=3))
    back = engine_of(fleet, "e1")
    assert back.healthy
    assert tracker.conditions(back) == []
    guard.release()


# --- probes ---------------------------------------------------------------------------------------


def test_probes_put_an_engine_out_and_bring_it_back():
    _, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    for _ in range(2):
        tracker.probe_result(engine, ProbeResult.REFUSED)
    assert engine.healthy
    tracker.probe_result(engine, ProbeResult.REFUSED)
    assert not engine.healthy
    assert tracker.conditions(engine) == [Condition.PROBES_FAILED]
    tracker.probe_result(engine, ProbeResult.OK)
    assert not engine.healthy, "two successes are asked for"
    tracker.probe_result(engine, ProbeResult.REFUSED)
    tracker.probe_result(engine, ProbeResult.OK)
    assert not engine.healthy, "in a row"
    tracker.probe_result(engine, ProbeResult.OK)
    assert engine.healthy
    assert tracker.conditions(engine) == []


def test_row_51_a_refused_key_is_a_condition_and_not_down():
    _, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    for _ in range(10):
        tracker.probe_result(engine, ProbeResult.AUTH_FAILED)
    assert engine.healthy
    assert tracker.conditions(engine) == [Condition.AUTH_FAILED]
    tracker.probe_result(engine, ProbeResult.OK)
    assert tracker.conditions(engine) == []


@pytest.mark.parametrize("result", [ProbeResult.TIMEOUT, ProbeResult.UNHEALTHY])
def test_row_52_d_slow_probes_do_not_evict_while_answers_come(result):
    """rllm#926: a long prefill, a compilation, a refit; the engine serves."""
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    guard = engine.load.take()
    for _ in range(20):
        clock.advance(10)
        tracker.reached(engine)
        tracker.probe_result(engine, result)
    assert engine.healthy
    # Nothing comes any more, though requests are in flight: after the window it is out.
    for _ in range(6):
        clock.advance(10)
        tracker.probe_result(engine, result)
    assert not engine.healthy
    guard.release()


@pytest.mark.parametrize(
    "changes", [{"paused": True}, {"released": ("weights",)}, {"gate": CLOSED}]
)
def test_row_52_d_nor_while_the_engine_is_being_changed(changes):
    _, fleet, tracker = setup(row("e1", **changes))
    engine = engine_of(fleet, "e1")
    for _ in range(10):
        tracker.probe_result(engine, ProbeResult.TIMEOUT)
        tracker.probe_result(engine, ProbeResult.UNHEALTHY)
    assert engine.healthy
    for _ in range(3):
        tracker.probe_result(engine, ProbeResult.REFUSED)
    assert not engine.healthy, "no connection is no excuse"


def test_an_idle_engine_has_no_excuse():
    _, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    tracker.reached(engine)
    for _ in range(3):
        tracker.probe_result(engine, ProbeResult.TIMEOUT)
    assert not engine.healthy


def test_both_judges_must_be_content():
    clock, fleet, tracker = setup()
    engine = engine_of(fleet, "e1")
    fail(tracker, engine, 3)
    for _ in range(3):
        tracker.probe_result(engine, ProbeResult.REFUSED)
    assert set(tracker.conditions(engine)) == {Condition.EJECTED, Condition.PROBES_FAILED}
    clock.advance(5)
    tracker.expire()
    assert not engine.healthy
    tracker.probe_result(engine, ProbeResult.OK)
    tracker.probe_result(engine, ProbeResult.OK)
    assert engine.healthy


NAMES = ("e1", "e2", "e3")


class TrackerMachine(RuleBasedStateMachine):
    """Against a model that remembers what happened instead of a state."""

    def __init__(self):
        super().__init__()
        self.clock, self.fleet, self.tracker = setup(*map(row, NAMES))
        self.seq = 1
        self.present = set(NAMES)
        self.streak = dict.fromkeys(NAMES, 0)  # connection failures in a row
        self.until = dict.fromkeys(NAMES)
        self.probes = {name: [] for name in NAMES}

    def known(self, name):
        return next((e for e in self.fleet.engines() if e.id == name), None)

    names = st.sampled_from(NAMES)

    @rule(name=names)
    def connection_fails(self, name):
        engine = self.known(name)
        if engine is None:
            return
        self.tracker.connect_failed(engine)
        if self.until[name] is None:
            self.streak[name] += 1
            if self.streak[name] >= 3:
                self.until[name] = self.clock.now() + 5

    @rule(name=names)
    def answers(self, name):
        engine = self.known(name)
        if engine is None:
            return
        self.tracker.reached(engine)
        if self.until[name] is None:
            self.streak[name] = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.5, 5.0, 60.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.tracker.expire()
        for name, until in self.until.items():
            if until is not None and until <= self.clock.now():
                self.until[name] = None
                self.streak[name] = 2

    @rule(name=names, result=st.sampled_from([ProbeResult.OK, ProbeResult.REFUSED]))
    def probe_ends(self, name, result):
        engine = self.known(name)
        if engine is not None:
            self.tracker.probe_result(engine, result)
            self.probes[name].append(result is ProbeResult.OK)

    @precondition(lambda self: self.present)
    @rule(name=names)
    def leaves(self, name):
        self.present.discard(name)
        self.apply()
        self.streak[name], self.until[name], self.probes[name] = 0, None, []

    @rule(name=names)
    def comes_back(self, name):
        self.present.add(name)
        self.apply()

    def apply(self):
        self.seq += 1
        self.fleet.apply(table(*map(row, sorted(self.present)), seq=self.seq))

    def out_by_probes(self, name):
        """Whether, of all probes so far, three bad ones in a row came after any two good ones."""
        out, bad, good = False, 0, 0
        for ok in self.probes[name]:
            bad, good = (0, good + 1) if ok else (bad + 1, 0)
            out = good < 2 if out else bad >= 3
        return out

    @invariant()
    def in_or_out_as_the_history_says(self):
        for engine in self.fleet.engines():
            name = engine.id
            out = self.until[name] is not None or self.out_by_probes(name)
            assert engine.healthy is not out
        eligible = self.fleet.pool("main").eligible(Role.PLAIN, AnyVersion())
        assert {e.id for e in eligible.engines} == {e.id for e in self.fleet.engines() if e.healthy}

    @invariant()
    def the_next_deadline_is_the_first(self):
        times = [until for until in self.until.values() if until is not None]
        assert self.tracker.next_deadline == min(times, default=None)


TestTrackerMachine = TrackerMachine.TestCase
