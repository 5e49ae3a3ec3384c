"""The spec changes while an operation is under way, or a drain takes too long."""

import pytest

from steersman.engine import Control
from steersman_operator.fleet.commands import Call, CutRequests, Publish
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import OnTimeout, RolloutMode
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench

PAUSE, RESUME, SLEEP, WAKE = CallKind.PAUSE, CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.CLAIMING])
@pytest.mark.parametrize("goal", [PAUSED, ASLEEP])
def test_what_has_touched_no_engine_is_cancelled_at_once(phase: Phase, goal: Control) -> None:
    bench = Bench()
    bench.want(goal)
    bench.until_phase(phase)
    bench.want(ACTIVE)
    assert bench.settled(ACTIVE)
    bench.release()
    bench.run(10)
    assert bench.called() == []
    assert bench.settled(ACTIVE)
    assert all(record.call is None for record in bench.records())


@pytest.mark.parametrize("phase", [Phase.EXECUTING, Phase.VERIFYING])
@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
def test_what_was_begun_is_finished_first_and_then_undone(phase: Phase, *, readable: bool) -> None:
    bench = Bench()
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = readable
    bench.want(ASLEEP)
    bench.until_phase(phase, call=SLEEP)
    bench.want(ACTIVE)
    assert not bench.row().gate.open
    bench.release()
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    assert bench.called() == [PAUSE, SLEEP, WAKE, RESUME]


def test_a_call_that_is_being_claimed_is_not_made_for_another_goal() -> None:
    bench = Bench(proxies="x")
    bench.want(ASLEEP)
    bench.until_phase(Phase.CLAIMING, call=SLEEP)
    bench.want(ACTIVE)
    bench.release()
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    assert bench.called() == [PAUSE, RESUME]


def test_draining_is_redirected_without_reopening() -> None:
    bench = Bench(proxies="xy")
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.run(5)
    before, closed_at = bench.engine().gate, bench.engine().closed_at
    bench.want(ASLEEP)
    assert bench.engine().gate == before
    assert bench.engine().closed_at == closed_at
    assert "Retargeted" in bench.notes()
    bench.release()
    assert bench.run(20, lambda: bench.settled(ASLEEP))


def test_a_paused_engine_that_is_to_sleep_and_then_not_needs_no_call() -> None:
    bench = Bench(state=PAUSED)
    assert bench.run(20, lambda: bench.settled(PAUSED))
    bench.log.clear()
    bench.want(ASLEEP)
    bench.until_phase(Phase.DRAINING)
    bench.want(PAUSED)
    assert bench.settled(PAUSED)
    assert bench.called() == []


def test_stopping_half_way_at_what_is_reached_already_ends_the_operation() -> None:
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.CLAIMING, call=SLEEP)
    bench.want(PAUSED)
    assert bench.settled(PAUSED)
    bench.release()
    bench.run(10)
    assert bench.called() == [PAUSE]


def test_a_pause_in_place_that_becomes_a_sleep_is_drained_and_proven_idle() -> None:
    bench = Bench(proxies="x", mode=RolloutMode.IN_PLACE)
    bench.in_flight["x", "a"] = 1
    bench.truths["a"].busy = 1
    bench.want(PAUSED)
    bench.until_phase(Phase.VERIFYING, call=PAUSE)
    bench.want(ASLEEP)
    bench.release()
    bench.run(20)
    assert bench.called() == [PAUSE]
    bench.in_flight.clear()
    bench.run(20)
    assert bench.called() == [PAUSE], "the engine itself is busy"
    bench.truths["a"].busy = 0
    assert bench.run(20, lambda: bench.settled(ASLEEP))


def test_many_changes_of_mind_end_where_the_last_one_points() -> None:
    bench = Bench("ab", proxies="xy")
    for goal in [PAUSED, ASLEEP, ACTIVE, ASLEEP, PAUSED, ACTIVE, PAUSED, ASLEEP] * 3:
        bench.want(goal)
        bench.run(0.8)
    assert bench.run(30, lambda: bench.settled(ASLEEP) and bench.settled(ASLEEP, "b"))


def test_an_override_names_one_engine_and_no_other() -> None:
    bench = Bench("ab")
    bench.want(overrides={"a": PAUSED})
    assert bench.run(10, lambda: bench.settled(PAUSED))
    assert bench.settled(ACTIVE, "b")
    assert bench.called("b") == []


# --- a drain that takes too long ------------------------------------------------------------------


def test_fail_gives_up_opens_again_and_tells_why() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0)
    bench.in_flight["y", "a"] = 2
    bench.want(PAUSED)
    assert bench.run(15, lambda: bench.engine().op is None)
    assert bench.engine().gate.open
    assert "y (2 in flight)" in bench.engine().problem
    assert "GivenUp" in bench.notes()
    bench.in_flight.clear()
    bench.run(30)
    assert bench.called() == []
    assert bench.engine().gate.open, "what was given up is not tried again"
    assert "2 in flight" in bench.engine().problem


def test_an_unreachable_proxy_is_named_as_the_reason() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0)
    bench.quiet.add("y")
    bench.want(PAUSED)
    assert bench.run(15, lambda: bench.engine().op is None)
    assert "y (has not acknowledged)" in bench.engine().problem


def test_an_engine_that_is_never_idle_is_the_reason_when_all_proxies_have_let_go() -> None:
    bench = Bench(drain_timeout=10.0)
    bench.truths["a"].busy = 1
    bench.want(PAUSED)
    assert bench.run(15, lambda: bench.engine().op is None)
    assert "does not say that it is idle" in bench.engine().problem


def test_a_new_generation_of_the_spec_tries_again() -> None:
    bench = Bench(proxies="x", drain_timeout=5.0)
    bench.in_flight["x", "a"] = 1
    bench.want(PAUSED)
    assert bench.run(15, lambda: bench.engine().given_up is not None)
    bench.in_flight.clear()
    bench.want(PAUSED)
    assert bench.run(10, lambda: bench.settled(PAUSED))
    assert bench.engine().problem == ""
    assert bench.engine().given_up is None


def test_another_goal_is_not_what_was_given_up() -> None:
    bench = Bench(proxies="x", drain_timeout=5.0)
    bench.in_flight["x", "a"] = 1
    bench.want(ASLEEP)
    assert bench.run(15, lambda: bench.engine().given_up is not None)
    bench.in_flight.clear()
    bench.want(PAUSED)
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_an_operation_that_is_given_up_half_way_puts_the_engine_back_and_stays_there() -> None:
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.end_call(Outcome.REFUSED)
    assert "refused to sleep" in bench.engine().problem
    bench.release()
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    bench.run(60)
    assert bench.called() == [PAUSE, SLEEP, RESUME], "it is not tried again and again"
    assert bench.settled(ACTIVE)
    assert "refused to sleep" in bench.engine().problem


def test_putting_back_is_not_a_licence_to_revert_what_others_do_later() -> None:
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.end_call(Outcome.REFUSED)
    bench.release()
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    bench.log.clear()
    bench.truths["a"].paused = True
    bench.run(20)
    assert bench.called() == []
    assert bench.engine().external


def test_abort_has_the_proxies_cut_what_still_runs_and_goes_on() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0, on_timeout=OnTimeout.ABORT)
    bench.in_flight["x", "a"] = 2
    bench.want(ASLEEP)
    assert bench.run(40, lambda: bench.settled(ASLEEP))
    cuts = [one for one in bench.log if isinstance(one, CutRequests)]
    assert [cut.engine for cut in cuts] == ["a"]
    first_call = next(i for i, one in enumerate(bench.log) if isinstance(one, Call))
    assert bench.log.index(cuts[0]) < first_call


def test_abort_cuts_nothing_while_a_proxy_has_not_acknowledged() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0, on_timeout=OnTimeout.ABORT)
    bench.in_flight["x", "a"] = 2
    bench.quiet.add("y")
    bench.want(ASLEEP)
    assert bench.run(15, lambda: bench.engine().op is None)
    assert not any(isinstance(one, CutRequests) for one in bench.log)
    assert bench.engine().gate.open


def test_abort_that_does_not_help_is_given_up() -> None:
    bench = Bench(proxies="x", drain_timeout=10.0, on_timeout=OnTimeout.ABORT)
    bench.truths["a"].busy = 1
    bench.want(ASLEEP)
    assert bench.run(60, lambda: bench.engine().op is None)
    assert bench.called() == []
    assert bench.engine().gate.open


def test_proceed_in_flight_goes_on_with_requests_in_flight() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0, on_timeout=OnTimeout.PROCEED)
    bench.in_flight["x", "a"] = 2
    bench.truths["a"].busy = 2
    bench.want(PAUSED)
    assert bench.run(20, lambda: bench.settled(PAUSED))
    assert "ProceedingInFlight" in bench.notes()


def test_proceed_in_flight_is_never_done_with_sleep() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0, on_timeout=OnTimeout.PROCEED)
    bench.in_flight["x", "a"] = 2
    bench.want(ASLEEP)
    assert bench.run(20, lambda: bench.engine().op is None)
    assert bench.called() == []


def test_proceed_in_flight_does_not_carry_over_to_sleep() -> None:
    bench = Bench(proxies="x", drain_timeout=10.0, on_timeout=OnTimeout.PROCEED)
    bench.in_flight["x", "a"] = 2
    bench.want(PAUSED)
    bench.quiet.add("store")
    assert bench.run(20, lambda: bench.op().in_flight_allowed)
    bench.want(ASLEEP)
    bench.release()
    bench.run(8)
    assert bench.called() == []


def test_proceed_in_flight_still_needs_every_acknowledgement() -> None:
    bench = Bench(proxies="xy", drain_timeout=10.0, on_timeout=OnTimeout.PROCEED)
    bench.quiet.add("y")
    bench.want(PAUSED)
    assert bench.run(20, lambda: bench.engine().op is None)
    assert bench.called() == []


def test_a_drain_has_its_time_anew_after_a_call() -> None:
    bench = Bench(proxies="x", drain_timeout=10.0)
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=PAUSE)
    bench.run(15)
    bench.end_call()
    bench.quiet.add("y")
    bench.stop = None
    bench.join("y")
    bench.run(8)
    assert bench.op().goal is ASLEEP
    bench.release()
    assert bench.run(10, lambda: bench.settled(ASLEEP))


def test_the_gate_never_opens_between_the_calls_of_one_operation() -> None:
    bench = Bench(state=ASLEEP)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.log.clear()
    bench.want(ACTIVE)
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    seen = [
        one.table.engines[0].gate.open if isinstance(one, Publish) else one.kind
        for one in bench.log
        if isinstance(one, Publish | Call)
    ]
    assert seen[-1] is True
    assert True not in seen[:-1]
    assert [one for one in seen if isinstance(one, CallKind)] == [WAKE, RESUME]
