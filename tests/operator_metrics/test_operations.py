"""What is counted of operations, driven through the real core."""

import msgspec
import pytest

from steersman.engine import Control
from steersman_operator.fleet.events import CallEnded, Deposed, SpecChanged
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import OnTimeout, RolloutMode
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Truth, engine_spec
from tests.operator_metrics.support import Counted, attach, balanced, nonzero, text

ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [
        (ACTIVE, PAUSED, "pause"),
        (ACTIVE, ASLEEP, "sleep"),
        (PAUSED, ACTIVE, "resume"),
        (PAUSED, ASLEEP, "sleep"),
        (ASLEEP, ACTIVE, "wake"),
        (ASLEEP, PAUSED, "pause"),
    ],
)
def test_each_kind_begins_and_is_done(first: Control, then: Control, kind: str) -> None:
    bench = Counted("a")
    bench.want(first)
    assert bench.run(30, lambda: bench.settled(first))
    before = bench.started()
    bench.want(then)
    began = bench.now
    started = {one: count - before.get(one, 0) for one, count in bench.started().items()}
    assert {one: count for one, count in started.items() if count} == {kind: 1}
    assert bench.under_way() == {kind: 1}
    assert bench.run(30, lambda: bench.settled(then))
    assert bench.under_way() == {}
    assert bench.finished(kind)["done"] == bench.value("operation_seconds_count", kind=kind)
    total = bench.value("operation_seconds_sum", kind=kind)
    assert total is not None
    assert total >= bench.now - began - 1
    balanced(bench.metrics, bench.state)


def test_a_pool_of_engines_counts_each() -> None:
    bench = Counted("abc")
    bench.want(PAUSED)
    assert bench.under_way() == {"pause": 3}
    assert bench.closures() == {"operation": 3}
    assert nonzero(bench.metrics, "engines_by_phase") == {("Draining", "pool"): 3}
    bench.run(10)
    assert bench.finished() == {"done": 3}
    assert nonzero(bench.metrics, "engines") == {("paused", "pool"): 3}
    assert nonzero(bench.metrics, "engines_by_phase") == {("Settled", "pool"): 3}


def test_what_is_not_wanted_any_more_is_cancelled() -> None:
    bench = Counted(proxies="xy")
    bench.quiet.add("x")
    bench.want(PAUSED)
    bench.run(3)
    bench.want(ACTIVE)
    assert bench.finished() == {"cancelled": 1}
    assert bench.closures() == {"operation": 1}
    assert bench.value("gate_openings_total", pool="pool") == 2


def test_another_goal_on_the_way_ends_one_operation_and_begins_another() -> None:
    bench = Counted()
    bench.quiet.add("x")
    bench.want(PAUSED)
    bench.run(3)
    bench.want(ASLEEP)
    assert bench.finished() == {"retargeted": 1}
    assert bench.under_way() == {"sleep": 1}
    assert bench.closures() == {"operation": 1}
    bench.release()
    assert bench.run(10, lambda: bench.settled(ASLEEP))
    assert bench.finished("pause") == {"retargeted": 1}
    assert bench.finished("sleep") == {"done": 1}


@pytest.mark.parametrize("phase", [Phase.EXECUTING, Phase.VERIFYING])
def test_another_goal_while_the_engine_is_called(phase: Phase) -> None:
    bench = Counted()
    bench.want(PAUSED)
    bench.until_phase(phase)
    bench.want(ACTIVE)
    assert bench.finished() == {"retargeted": 1}
    assert bench.under_way() == {"resume": 1}
    bench.release()
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    assert bench.finished("resume") == {"done": 1}
    assert bench.value("phase_seconds_count", phase="Executing") == 2


def test_a_drain_that_times_out() -> None:
    bench = Counted(drain_timeout=5.0)
    bench.in_flight["x", "a"] = 1
    bench.want(PAUSED)
    bench.run(3)
    oldest = bench.value("phase_oldest_seconds", pool="pool", phase="Draining")
    assert oldest == pytest.approx(3)
    bench.run(3)
    assert "not drained within" in bench.engine().problem
    assert bench.finished("pause") == {"timed_out": 1}
    assert bench.value("phase_oldest_seconds", pool="pool", phase="Draining") == 0
    assert bench.value("gates_open", pool="pool") == 1


def test_an_intent_that_cannot_be_written_in_time_times_out_too() -> None:
    bench = Counted(drain_timeout=5.0)
    bench.quiet.add("store")
    bench.want(PAUSED)
    for _ in range(40):
        bench.run(0.5)
        while bench.stores:
            bench.stored(ok=False)
    assert "could not write down" in bench.engine().problem
    assert bench.finished("pause") == {"timed_out": 1}
    failures = bench.value("store_failures_total")
    assert failures is not None
    assert 0 < failures <= (bench.value("store_writes_total") or 0)


def test_a_refused_call() -> None:
    bench = Counted()
    bench.quiet.add("calls")
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.end_call(Outcome.REFUSED)
    assert bench.finished("pause") == {"refused": 1}
    calls = nonzero(bench.metrics, "engine_calls_total")
    assert calls == {("pause", "refused", "unknown"): 1}


def test_a_pause_that_nothing_is_seen_of_has_failed() -> None:
    bench = Counted()
    bench.quiet.add("calls")
    bench.want(PAUSED)

    def pretend() -> bool:
        while bench.calls:
            bench.end_call(Outcome.OK, happens=False)
        return bench.engine().given_up is not None

    assert bench.run(600, pretend)
    assert "did not pause" in bench.engine().problem
    assert bench.finished("pause") == {"failed": 1}
    calls = nonzero(bench.metrics, "engine_calls_total")
    assert calls == {("pause", "ok", "unknown"): len(bench.called())}


def test_a_sleep_whose_outcome_nobody_knows() -> None:
    bench = Counted(truths={"a": Truth(shows_paused=False, shows_released=False)})
    bench.quiet.add("calls")
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=CallKind.PAUSE)
    bench.end_call()
    bench.until_phase(Phase.EXECUTING, call=CallKind.SLEEP)
    bench.end_call(Outcome.UNKNOWN)
    bench.stop = None
    assert bench.run(200, lambda: bench.engine().op is None)
    assert bench.finished("sleep") == {"unknown": 1}
    assert nonzero(bench.metrics, "engines") == {("unknown", "pool"): 1}
    assert nonzero(bench.metrics, "engines_by_phase") == {("GivenUp", "pool"): 1}
    assert nonzero(bench.metrics, "engine_calls_total") == {
        ("pause", "ok", "unknown"): 1,
        ("sleep", "unknown", "unknown"): 1,
    }


def test_an_engine_that_is_gone_after_the_call() -> None:
    bench = Counted()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.truths["a"].answers = False
    bench.end_call(Outcome.UNKNOWN)
    bench.release()
    assert bench.run(300, lambda: bench.engine().op is None)
    assert bench.finished("pause") == {"unknown": 1}
    assert (bench.value("looks_failed_total", pool="pool") or 0) >= 3
    assert nonzero(bench.metrics, "engines_by_phase") == {("Unreachable", "pool"): 1}


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.CLAIMING, Phase.VERIFYING])
def test_an_engine_that_restarts_half_way(phase: Phase) -> None:
    bench = Counted()
    bench.want(PAUSED)
    bench.until_phase(phase)
    bench.truths["a"].restart()
    bench.release()
    assert bench.run(20, lambda: bench.settled(PAUSED))
    assert bench.finished("pause") == {"restarted": 1, "done": 1}
    assert bench.started() == {"pause": 2}


def test_what_is_given_up_half_way_is_put_back_by_an_operation_of_its_own() -> None:
    bench = Counted()
    bench.want(ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=CallKind.SLEEP)
    bench.end_call(Outcome.REFUSED)
    bench.release()
    assert bench.run(60, lambda: bench.settled(ACTIVE))
    assert bench.finished("sleep") == {"refused": 1}
    assert bench.finished("resume") == {"done": 1}
    assert bench.closures() == {"operation": 1}


def test_an_engine_that_is_taken_out_ends_its_operation() -> None:
    bench = Counted("abcd", proxies="x")
    bench.quiet.add("x")
    bench.want(overrides={"a": PAUSED})
    bench.want(engines=bench.pool.engines[1:])
    assert bench.finished() == {"removed": 1}
    assert bench.under_way() == {}
    assert bench.closures() == {"operation": 1}
    bench.want(engines=bench.pool.engines[1:])
    assert bench.closures() == {"operation": 1, "removed": 1}
    balanced(bench.metrics, bench.state)


def test_an_engine_at_another_address_is_met_anew() -> None:
    bench = Counted("a")
    bench.quiet.add("x")
    bench.want(PAUSED)
    bench.quiet.add("a")
    moved = msgspec.structs.replace(engine_spec("a"), url="http://elsewhere:1")
    bench.want(engines=(moved,))
    assert bench.finished() == {"removed": 1}
    assert bench.under_way() == {}
    balanced(bench.metrics, bench.state)


def test_the_pool_of_an_operation_follows_its_engine() -> None:
    bench = Counted("ab")
    bench.quiet.add("x")
    bench.want(overrides={"a": PAUSED})
    rest = msgspec.structs.replace(bench.pool, engines=bench.pool.engines[1:], overrides={})
    other = msgspec.structs.replace(
        bench.pool, name="other", models=("n",), engines=bench.pool.engines[:1]
    )
    bench.do(SpecChanged(now=bench.now, pools=(rest, other)))
    assert nonzero(bench.metrics, "operations_under_way") == {("pause", "other"): 1}
    assert nonzero(bench.metrics, "operations_finished_total") == {("pause", "removed", "pool"): 1}
    balanced(bench.metrics, bench.state)


def test_a_pool_that_goes_takes_its_series_along_and_begins_anew() -> None:
    bench = Counted("ab")
    bench.want(PAUSED)
    bench.run(10)
    assert bench.finished() == {"done": 2}
    bench.do(SpecChanged(now=bench.now, pools=(), deliberate=True))
    assert not any('pool="' in line for line in text(bench).splitlines())
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool,)))
    assert bench.finished() == {}
    balanced(bench.metrics, bench.state)


def test_series_of_pools_do_not_pile_up() -> None:
    bench = Counted("ab")
    sizes = []
    for number in range(40):
        bench.pool = msgspec.structs.replace(
            bench.pool, name=f"pool-{number}", state=(PAUSED, ACTIVE)[number % 2]
        )
        bench.want()
        bench.run(10)
        balanced(bench.metrics, bench.state)
        sizes.append(len(text(bench).splitlines()))
    assert max(sizes[10:]) == max(sizes[:10])


def test_who_is_deposed_hands_over_and_the_next_takes_over() -> None:
    bench = Counted()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    records = bench.records()
    after = Counted("a", truths=bench.truths, started=False)
    bench.do(Deposed(now=bench.now))
    assert bench.finished() == {"deposed": 1}
    assert bench.value("leading") == 0
    assert bench.value("proxies_acked") == 0
    after.pool = bench.pool
    after.elect(2, records)
    after.want()
    assert after.under_way() == {"pause": 1}
    after.require()
    after.join("x")
    assert after.run(200, lambda: after.settled(PAUSED))
    assert after.finished("pause") == {"done": 1}
    balanced(after.metrics, after.state)


def test_a_new_term_of_the_same_process() -> None:
    bench = Counted("ab")
    bench.quiet.add("x")
    bench.want(overrides={"a": PAUSED})
    bench.elect(2)
    assert bench.finished() == {"deposed": 1}
    assert bench.closures() == {"operation": 1, "election": 1}
    assert bench.value("epoch", part="term") == 2
    balanced(bench.metrics, bench.state)
    bench.release()
    bench.run(5)
    assert bench.finished() == {"deposed": 1, "done": 1}
    balanced(bench.metrics, bench.state)


def test_the_end_of_a_call_is_counted_even_if_nobody_waits_for_it() -> None:
    bench = Counted()
    bench.want(PAUSED)
    bench.until_phase(Phase.EXECUTING)
    bench.now += 2
    bench.do(Deposed(now=bench.now))
    call = bench.end_call(Outcome.OK)
    seconds = bench.value("engine_call_seconds_sum", runtime="unknown", kind="pause")
    assert seconds == pytest.approx(2, abs=0.3)
    # And only once.
    again = CallEnded(now=bench.now, engine="a", number=call.number, outcome=Outcome.OK)
    bench.do(again)
    assert nonzero(bench.metrics, "engine_calls_total") == {("pause", "ok", "unknown"): 1}


@pytest.mark.parametrize("mode", RolloutMode)
def test_phases_last_as_long_as_they_do(mode: RolloutMode) -> None:
    bench = Counted(mode=mode, on_timeout=OnTimeout.PROCEED)
    bench.quiet.add("x")
    bench.want(PAUSED)
    bench.run(7)
    bench.release()
    assert bench.run(10, lambda: bench.settled(PAUSED))
    total = 0.0
    for phase in ("Draining", "Claiming", "Executing", "Verifying"):
        seconds = bench.value("phase_seconds_sum", phase=phase)
        assert seconds is not None
        total += seconds
    assert total == pytest.approx(bench.value("operation_seconds_sum", kind="pause"))
    assert (bench.value("phase_seconds_sum", phase="Draining") or 0) >= 7


def test_a_fleet_that_was_there_before_the_metrics() -> None:
    bench = Counted("ab")
    bench.quiet.add("x")
    bench.want(overrides={"a": PAUSED})
    late = type(bench.metrics)(clock=bench.metrics._clock)
    late.watch(lambda: bench.state)
    attach(late, bench.state)
    balanced(late, bench.state)
