"""Engines change by themselves: other hands, restarts, silence, and calls nobody answered."""

import pytest

from steersman.engine import Control, Trust
from steersman_operator.fleet.events import Observed, SpecChanged
from steersman_operator.fleet.facts import (
    ALL_TAGS,
    CallKind,
    Facts,
    Observation,
    Outcome,
    next_call,
)
from steersman_operator.fleet.spec import Drift
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench, Truth, engine_spec

PAUSE, RESUME, SLEEP, WAKE = CallKind.PAUSE, CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


# --- drift ----------------------------------------------------------------------------------------


def test_observe_closes_the_gate_of_what_others_have_paused_and_leaves_it_alone() -> None:
    bench = Bench()
    bench.truths["a"].paused = True
    assert bench.run(5, lambda: not bench.row().gate.open)
    assert bench.engine().external
    bench.run(30)
    assert bench.called() == []
    bench.truths["a"].paused = False
    assert bench.run(5, lambda: bench.row().gate.open)
    assert not bench.engine().external


def test_observe_closes_the_gate_of_what_others_have_put_to_sleep() -> None:
    bench = Bench()
    bench.truths["a"].released = ALL_TAGS
    assert bench.run(5, lambda: not bench.row().gate.open)
    assert bench.row().released == ALL_TAGS
    bench.run(30)
    assert bench.called() == []


def test_enforce_reverts_what_others_have_done() -> None:
    bench = Bench(drift=Drift.ENFORCE)
    bench.truths["a"].paused = True
    assert bench.run(10, lambda: bench.called() == [RESUME] and bench.settled(ACTIVE))


def test_enforce_pauses_again_what_others_have_resumed_and_only_behind_the_barrier() -> None:
    bench = Bench(drift=Drift.ENFORCE, state=PAUSED)
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.log.clear()
    bench.truths["a"].paused = False
    bench.truths["a"].busy = 1
    bench.run(10)
    assert bench.called() == []
    assert not bench.row().gate.open
    bench.truths["a"].busy = 0
    assert bench.run(10, lambda: bench.settled(PAUSED))
    assert bench.called() == [PAUSE]


def test_observe_keeps_a_resumed_engine_closed_that_is_to_be_paused() -> None:
    bench = Bench(state=PAUSED)
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.truths["a"].paused = False
    bench.run(10)
    assert not bench.row().gate.open
    assert bench.engine().external


def test_a_changed_spec_acts_on_what_is_and_not_on_what_was() -> None:
    bench = Bench()
    bench.truths["a"].paused = True
    assert bench.run(5, lambda: bench.engine().external)
    bench.want(ASLEEP)
    assert bench.run(10, lambda: bench.settled(ASLEEP))
    assert bench.called() == [SLEEP]


def test_what_others_did_while_the_intent_was_written_is_looked_at_again() -> None:
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.CLAIMING, call=SLEEP)
    bench.truths["a"].released = ALL_TAGS
    bench.do(
        Observed(
            now=bench.now,
            engine="a",
            asked=bench.looks.pop()[1] if bench.looks else bench.engine().looking or 0.0,
            seen=bench.truths["a"].seen(),
        )
    )
    bench.release()
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    assert bench.called() == [PAUSE]


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [PAUSED, ASLEEP])
@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
@pytest.mark.parametrize(
    "phase", [Phase.DRAINING, Phase.CLAIMING, Phase.EXECUTING, Phase.VERIFYING]
)
def test_an_engine_that_restarts_half_way_is_begun_with_anew(
    phase: Phase, goal: Control, *, readable: bool
) -> None:
    bench = Bench()
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = readable
    bench.want(goal)
    call = {PAUSED: PAUSE, ASLEEP: SLEEP}[goal] if phase is not Phase.DRAINING else None
    bench.until_phase(phase, call=call)
    bench.truths["a"].restart()
    bench.calls.clear()
    bench.release()
    assert bench.run(100, lambda: bench.settled(goal))
    assert "Restarted" in bench.notes()


@pytest.mark.parametrize("state", [ACTIVE, PAUSED, ASLEEP])
@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
def test_a_restarted_engine_is_brought_where_the_spec_wants_it(
    state: Control, *, readable: bool
) -> None:
    bench = Bench(state=state)
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = readable
    assert bench.run(20, lambda: bench.settled(state))
    bench.log.clear()
    bench.truths["a"].restart()
    bench.run(3)
    assert bench.run(20, lambda: bench.settled(state))
    assert bench.called() == {ACTIVE: [], PAUSED: [PAUSE], ASLEEP: [PAUSE, SLEEP]}[state]


def test_the_answer_of_a_process_that_is_gone_is_no_answer() -> None:
    bench = Bench()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    call = bench.calls.pop()
    bench.truths["a"].restart()
    bench.stop = None
    bench.run(5)
    assert "Restarted" in bench.notes()
    bench.calls.insert(0, call)
    bench.end_call(Outcome.OK, happens=False)
    bench.release()
    assert bench.run(20, lambda: bench.settled(PAUSED))
    assert bench.truths["a"].paused


def test_a_platform_that_knows_the_boot_better_is_believed() -> None:
    bench = Bench("a", state=ASLEEP)
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = False
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.truths["a"] = Truth(boot="boot-1", shows_paused=False, shows_released=False)
    bench.quiet.add("a")
    bench.run(5)
    before = bench.looks.pop()
    bench.now += 1
    bench.want(engines=(engine_spec("a", boot_id="container-2"),))
    bench.looks.insert(0, before)
    bench.look("a", paused=True)
    assert bench.engine().facts.boot_id != "container-2", "that look may be of the one before"
    bench.release()
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    assert bench.called()[-2:] == [PAUSE, SLEEP]


def test_an_engine_that_stops_answering_is_failed_and_comes_back() -> None:
    bench = Bench("ab")
    bench.truths["a"].answers = False
    assert bench.run(20, lambda: bench.row().failed)
    assert not bench.row().gate.open
    assert "Unreachable" in bench.notes()
    bench.truths["a"].answers = True
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    assert not bench.row().failed


def test_looks_whose_answers_get_lost_count_as_misses_and_are_published() -> None:
    bench = Bench("ab")
    bench.quiet.add("a")
    assert bench.run(60, lambda: bench.row().failed)
    assert not bench.row().gate.open


def test_one_missed_look_is_no_failure() -> None:
    bench = Bench()
    bench.truths["a"].answers = False
    bench.run(2)
    bench.truths["a"].answers = True
    bench.run(5)
    assert not bench.row().failed
    assert bench.settled(ACTIVE)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("happened", [True, False], ids=["done", "lost"])
@pytest.mark.parametrize("goal", [PAUSED, ASLEEP])
def test_a_call_without_an_answer_is_not_made_again_while_it_may_still_run(
    goal: Control, *, happened: bool
) -> None:
    bench = Bench()
    call = {PAUSED: PAUSE, ASLEEP: SLEEP}[goal]
    bench.want(goal)
    bench.until_phase(Phase.EXECUTING, call=call)
    bench.stop = None
    bench.end_call(Outcome.UNKNOWN, happens=happened)
    if happened:
        assert bench.run(5, lambda: bench.settled(goal))
        assert bench.called().count(call) == 1
    else:
        bench.run(bench.timing.call_timeout - 5)
        assert bench.called().count(call) == 1
        assert bench.run(20, lambda: bench.settled(goal))
        assert bench.called().count(call) == 2


@pytest.mark.parametrize("call", [SLEEP, WAKE])
@pytest.mark.parametrize("happened", [True, False], ids=["done", "lost"])
def test_an_unknown_change_of_memory_that_cannot_be_read_stays_closed_until_a_restart(
    call: CallKind, *, happened: bool
) -> None:
    first, goal = (ACTIVE, ASLEEP) if call is SLEEP else (ASLEEP, ACTIVE)
    bench = Bench(state=first)
    bench.truths["a"].shows_released = False
    assert bench.run(20, lambda: bench.settled(first))
    bench.want(goal)
    bench.until_phase(Phase.EXECUTING, call=call)
    bench.stop = None
    before = bench.called()
    bench.end_call(Outcome.UNKNOWN, happens=happened)
    bench.run(200)
    assert bench.called() == before
    assert "stays closed until it is restarted" in bench.engine().problem
    assert not bench.row().gate.open
    assert bench.row().released == ("unknown",)
    bench.truths["a"].restart()
    assert bench.run(20, lambda: bench.settled(goal))


def test_a_call_whose_end_is_never_told_counts_as_unknown() -> None:
    bench = Bench()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.calls.clear()
    bench.truths["a"].paused = True
    bench.stop = None
    bench.quiet.add("calls")
    assert bench.run(80, lambda: bench.settled(PAUSED))
    assert bench.called() == [PAUSE]


@pytest.mark.parametrize("shows", [True, False], ids=["readable", "unreadable"])
def test_a_resume_that_fails_is_tried_until_it_works_ever_more_slowly(*, shows: bool) -> None:
    bench = Bench(state=PAUSED)
    bench.truths["a"].shows_paused = shows
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.log.clear()
    bench.want(ACTIVE)
    bench.quiet.add("calls")

    def fail() -> bool:
        while bench.calls:
            bench.end_call(Outcome.REFUSED)
        return False

    bench.run(200, fail)
    assert 5 < len(bench.called()) < 20
    assert not bench.row().gate.open
    assert "refused to resume" in bench.engine().problem
    bench.release()
    assert bench.run(40, lambda: bench.settled(ACTIVE))
    assert bench.engine().problem == ""


def test_a_refused_pause_opens_the_gate_again() -> None:
    bench = Bench()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.end_call(Outcome.REFUSED)
    assert bench.settled(ACTIVE)
    assert "refused to pause" in bench.engine().problem
    bench.release()
    bench.run(30)
    assert bench.called() == [PAUSE]


def test_a_pause_that_reports_success_and_shows_nothing_is_given_up_in_the_end() -> None:
    bench = Bench()
    bench.want(PAUSED)
    bench.quiet.add("calls")

    def pretend() -> bool:
        while bench.calls:
            bench.end_call(Outcome.OK, happens=False)
        return bench.engine().given_up is not None

    assert bench.run(600, pretend)
    bench.release()
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    assert "did not pause" in bench.engine().problem


def test_a_failed_sleep_is_looked_at_and_not_believed() -> None:
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.stop = None
    bench.end_call(Outcome.FAILED, happens=True)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    assert bench.called() == [PAUSE, SLEEP]


def test_an_engine_that_dies_of_a_sleep_that_it_reported_is_not_asleep() -> None:
    """field-failures A.6: the engine says 200 and is dying."""
    bench = Bench()
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.truths["a"].answers = False
    bench.stop = None
    bench.end_call(Outcome.OK, happens=False)
    bench.run(100)
    assert not bench.settled(ASLEEP)
    assert bench.row().failed
    assert "does not answer after sleep" in bench.engine().problem


def test_wake_names_exactly_the_memory_that_was_given_up() -> None:
    bench = Bench(state=ASLEEP)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.truths["a"].released = ("kv_cache",)
    bench.run(5)
    bench.want(ACTIVE)
    bench.until_phase(Phase.EXECUTING, call=WAKE)
    assert bench.calls[0].tags == ("kv_cache",)
    assert bench.calls[0].boot_id == "boot-1"


def test_an_engine_that_wakes_unpaused_is_paused_if_that_is_wanted() -> None:
    bench = Bench(state=ASLEEP)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.log.clear()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING, call=WAKE)
    bench.truths["a"].paused = False
    bench.release()
    assert bench.run(20, lambda: bench.settled(PAUSED))
    assert bench.called() == [WAKE, PAUSE]
    assert not bench.row().gate.open


def test_a_goal_that_was_given_up_is_not_tried_for_ever_because_drift_is_enforced() -> None:
    bench = Bench(state=PAUSED, drift=Drift.ENFORCE, drain_timeout=5.0)
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.truths["a"].paused = False
    bench.truths["a"].busy = 1
    bench.run(60)
    assert bench.notes().count("GivenUp") == 1
    assert not bench.row().gate.open
    assert "idle" in bench.engine().problem


def test_two_goals_that_cannot_be_reached_do_not_alternate() -> None:
    bench = Bench(state=ASLEEP, drain_timeout=5.0)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING, call=WAKE)
    bench.release()
    bench.truths["a"].paused = False
    bench.quiet.add("y")
    bench.join("y")
    bench.run(100)
    assert bench.notes().count("GivenUp") == 2
    assert bench.engine().op is None
    assert bench.engine().problem


@pytest.mark.parametrize("why", ["silence", "refusal"])
def test_unknown_memory_is_told_whatever_ended_the_operation(why: str) -> None:
    bench = Bench()
    bench.truths["a"].shows_released = False
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.release()
    bench.truths["a"].answers = why == "refusal"
    bench.end_call(Outcome.UNKNOWN)
    bench.run(100)
    bench.truths["a"].answers = True
    bench.run(5)
    assert "stays closed until it is restarted" in bench.engine().problem
    assert not bench.row().gate.open


def test_a_look_that_began_before_the_call_ended_decides_nothing() -> None:
    bench = Bench()
    bench.quiet.add("a")
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.stop = None
    bench.quiet.add("calls")
    assert bench.run(5, lambda: bool(bench.looks))
    bench.turn()
    bench.end_call()
    bench.look("a", paused=False)
    assert bench.op().phase is Phase.VERIFYING
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_an_answer_to_a_look_that_was_given_up_is_ignored() -> None:
    bench = Bench()
    bench.quiet.add("a")
    assert bench.run(5, lambda: bool(bench.looks))
    old = bench.looks[0]
    bench.run(bench.timing.look_timeout + 1)
    bench.do(
        Observed(
            now=bench.now, engine="a", asked=old[1], seen=Observation(reachable=True, paused=True)
        )
    )
    assert bench.engine().facts.paused is False


def test_answers_about_engines_that_nobody_knows_change_nothing() -> None:
    bench = Bench()
    before = bench.state.engines
    bench.do(Observed(now=bench.now, engine="who", asked=1.0, seen=Observation(reachable=True)))
    assert bench.state.engines == before


def test_next_call_needs_to_know_the_memory() -> None:
    with pytest.raises(ValueError, match="not known"):
        next_call(Facts(paused=True), ACTIVE)


# --- trust ----------------------------------------------------------------------------------------


def test_a_restarted_engine_is_unsynced_until_it_shows_the_version_of_its_pool() -> None:
    bench = Bench("ab")
    bench.truths["a"].restart()
    assert bench.run(5, lambda: bench.row().trust is Trust.UNSYNCED)
    assert bench.row().version is None
    assert bench.fleet_max() == "1"
    bench.truths["a"].version = "1"
    assert bench.run(5, lambda: bench.row().trust is Trust.VERIFIED)


def test_the_version_of_a_process_that_is_gone_is_not_shown_for_its_successor() -> None:
    bench = Bench("ab")
    bench.quiet.add("a")
    assert bench.run(5, lambda: bool(bench.looks))
    bench.truths["a"].restart()
    bench.look("a", version_known=False)
    assert bench.row().version is None
    assert bench.row().trust is Trust.UNSYNCED


def test_restarting_every_engine_does_not_make_their_first_weights_right() -> None:
    bench = Bench("ab")
    for truth in bench.truths.values():
        truth.restart()
    bench.run(20)
    assert {bench.row(name).trust for name in "ab"} == {Trust.UNSYNCED}


def test_without_any_version_in_the_pool_nobody_is_suspect() -> None:
    truths = {name: Truth(version=None) for name in "ab"}
    bench = Bench("ab", truths=truths)
    bench.truths["a"].restart()
    bench.run(10)
    assert {bench.row(name).trust for name in "ab"} == {Trust.UNKNOWN}


def test_a_spec_that_says_the_same_again_publishes_nothing() -> None:
    bench = Bench("ab")
    before = bench.state.epoch
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool,)))
    bench.run(10)
    assert bench.state.epoch == before
