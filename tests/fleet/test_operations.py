"""From one state to another: the steps, their order, and what has to hold before each."""

import pytest

from steersman.engine import Control
from steersman.table import Epoch
from steersman_operator.fleet.commands import Publish
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import PauseMode, RolloutMode
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench

PAUSE, RESUME, SLEEP, WAKE = CallKind.PAUSE, CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


@pytest.mark.parametrize(
    ("first", "then", "calls"),
    [
        (ACTIVE, PAUSED, [PAUSE]),
        (ACTIVE, ASLEEP, [PAUSE, SLEEP]),
        (PAUSED, ACTIVE, [RESUME]),
        (PAUSED, ASLEEP, [SLEEP]),
        (ASLEEP, ACTIVE, [WAKE, RESUME]),
        (ASLEEP, PAUSED, [WAKE]),
    ],
)
@pytest.mark.parametrize("shows", [True, False], ids=["readable", "unreadable"])
def test_every_state_is_reached_from_every_other(
    first: Control, then: Control, calls: list[CallKind], shows: bool
) -> None:
    bench = Bench("a", proxies="xy", state=first)
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = shows
    assert bench.run(30, lambda: bench.settled(first))
    bench.log.clear()
    bench.want(then)
    assert bench.run(30, lambda: bench.settled(then))
    assert bench.called() == calls
    assert bench.row().gate.open is (then is ACTIVE)


def test_the_gate_closes_in_the_step_that_begins_and_must_not_wait() -> None:
    bench = Bench("ab")
    before = bench.state.epoch
    bench.want(PAUSED)
    published = [one for one in bench.log if isinstance(one, Publish)][-1]
    assert published.urgent
    assert published.table.epoch == bench.state.epoch > before
    assert not any(row.gate.open for row in published.table.engines)
    assert bench.engine().closed_at == bench.state.epoch


def test_all_engines_of_a_pool_close_at_once_because_state_is_done_as_told() -> None:
    bench = Bench("abcd", max_unavailable="1")
    bench.want(PAUSED)
    assert not any(bench.row(name).gate.open for name in "abcd")


def test_an_engine_is_not_paused_before_every_proxy_has_acknowledged() -> None:
    bench = Bench(proxies="xyz")
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.run(30)
    assert bench.called() == []
    assert bench.op().phase is Phase.DRAINING
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_an_acknowledgement_of_an_older_table_does_not_count() -> None:
    bench = Bench(proxies="x")
    old = bench.state.epoch
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.ack("x", old)
    bench.report("x", a=0, epoch=old)
    bench.run(5)
    assert bench.called() == []


def test_an_acknowledgement_of_another_term_does_not_count() -> None:
    bench = Bench(proxies="x", term=5)
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.ack("x", Epoch(4, 900))
    bench.ack("x", Epoch(6, 1))
    bench.report("x", a=0, epoch=Epoch(4, 900))
    bench.report("x", a=0, epoch=Epoch(6, 1))
    bench.run(5)
    assert bench.called() == []


def test_an_acknowledgement_of_a_table_that_was_never_published_does_not_count() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.ack("x", Epoch(bench.state.term, bench.state.epoch.seq + 1))
    bench.report("x", a=0)
    bench.run(5)
    assert bench.called() == []


def test_an_engine_is_not_paused_before_every_proxy_reports_nothing_in_flight() -> None:
    bench = Bench(proxies="xy")
    bench.in_flight["y", "a"] = 2
    bench.want(PAUSED)
    bench.run(30)
    assert bench.called() == []
    bench.in_flight["y", "a"] = 0
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_zero_that_was_reported_under_an_older_table_is_not_believed() -> None:
    bench = Bench(proxies="x")
    old = bench.state.epoch
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.ack("x")
    bench.report("x", a=0, epoch=old)
    bench.run(5)
    assert bench.called() == []
    bench.report("x", a=0)
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_zero_without_an_acknowledgement_is_not_enough() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.report("x", a=0)
    bench.run(5)
    assert bench.called() == []


def test_an_older_report_does_not_replace_a_newer_one() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"x"}
    old = bench.state.epoch
    bench.want(PAUSED)
    bench.ack("x")
    bench.report("x", a=1)
    bench.report("x", a=0, epoch=old)
    bench.run(5)
    assert bench.called() == []


def test_in_place_waits_for_acknowledgements_only() -> None:
    bench = Bench(proxies="xy", mode=RolloutMode.IN_PLACE, pause_mode=PauseMode.KEEP)
    bench.in_flight["x", "a"] = 3
    bench.truths["a"].busy = 3
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.run(10)
    assert bench.called() == []
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_in_place_never_puts_to_sleep_with_requests_in_flight() -> None:
    bench = Bench(proxies="x", mode=RolloutMode.IN_PLACE)
    bench.in_flight["x", "a"] = 1
    bench.want(ASLEEP)
    bench.run(30)
    assert bench.called() == []


def test_the_engine_itself_must_say_that_it_is_idle() -> None:
    bench = Bench(proxies="x")
    bench.truths["a"].busy = 1
    bench.want(PAUSED)
    bench.run(20)
    assert bench.called() == []
    bench.truths["a"].busy = None
    bench.run(20)
    assert bench.called() == []
    bench.truths["a"].busy = 0
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_sleep_needs_the_engine_idle_twice_a_gap_apart() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(ASLEEP)
    assert bench.run(5, lambda: bool(bench.loads))
    bench.load(0)
    bench.run(0.5)
    assert bench.loads == [], "asked again at once"
    assert bench.run(2, lambda: bool(bench.loads))
    bench.load(0)
    seen = bench.op().idle_seen
    assert len(seen) == 2 and seen[1] - seen[0] >= bench.timing.idle_gap
    assert bench.run(10, lambda: bench.settled(ASLEEP))


def test_a_busy_answer_between_begins_the_proof_of_idleness_anew() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(ASLEEP)
    bench.run(5)
    bench.load(0)
    bench.run(2)
    bench.load(1)
    assert bench.op().idle_seen == ()
    bench.run(2)
    bench.load(0)
    assert len(bench.op().idle_seen) == 1
    assert bench.called() == []


def test_an_answer_to_a_question_asked_before_the_gate_closed_proves_nothing() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(ASLEEP)
    bench.run(5)
    old = bench.loads.pop()
    bench.want(ACTIVE)
    bench.run(2)
    assert bench.settled(ACTIVE)
    bench.want(ASLEEP)
    bench.turn()
    bench.loads.insert(0, old)
    bench.load(0)
    assert bench.op().idle_seen == ()


def test_a_question_for_the_load_whose_answer_got_lost_is_asked_again() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(PAUSED)
    bench.run(5)
    bench.loads.clear()
    bench.run(bench.timing.look_timeout + 1)
    assert bench.loads
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_the_barrier_breaking_begins_the_proof_of_idleness_anew() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(ASLEEP)
    bench.run(5)
    bench.load(0)
    assert bench.op().idle_seen
    bench.quiet.add("y")
    bench.join("y")
    assert bench.op().idle_seen == ()


def test_nothing_is_called_before_the_intent_is_written() -> None:
    bench = Bench(proxies="x")
    bench.quiet.add("store")
    bench.want(PAUSED)
    bench.run(10)
    assert bench.op().phase is Phase.CLAIMING
    assert bench.called() == []
    command = bench.stored()
    assert bench.called() == [PAUSE]
    record = command.record
    assert record.call is PAUSE and record.goal is PAUSED and record.term == bench.state.term
    assert record.facts.boot_id == "boot-1" and record.facts.paused is False


def test_an_intent_that_could_not_be_written_is_tried_again_later() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.stored(ok=False)
    assert bench.called() == []
    assert bench.op().phase is Phase.DRAINING
    bench.turn()
    assert bench.stores == []
    bench.release()
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_a_store_that_never_works_ends_in_giving_up_and_opening() -> None:
    bench = Bench(proxies="x", drain_timeout=20.0)
    bench.quiet.add("store")
    bench.want(PAUSED)

    def refuse() -> bool:
        while bench.stores:
            bench.stored(ok=False)
        return bench.engine().op is None

    assert bench.run(60, refuse)
    assert bench.engine().gate.open
    assert "write down" in bench.engine().problem
    assert bench.called() == []


def test_a_store_that_does_not_answer_is_asked_again_and_its_late_answer_is_ignored() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.quiet.add("store")
    old = bench.stores[0]
    bench.run(bench.timing.call_timeout + 5)
    assert len(bench.stores) >= 2
    bench.stored()
    assert bench.called() == []
    assert bench.stores[0].number != old.number
    bench.release()
    assert bench.run(10, lambda: bench.settled(PAUSED))
    assert bench.called() == [PAUSE]


def test_a_record_of_rest_that_could_not_be_written_is_written_again() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.VERIFYING)
    bench.release()
    bench.quiet.add("store")
    assert bench.run(5, lambda: bench.settled(PAUSED))
    assert bench.stored(ok=False).record.call is None
    assert bench.run(5, lambda: bool(bench.stores))
    assert bench.stores[0].record.goal is PAUSED
    bench.stored()
    bench.run(10)
    assert bench.stores == []


def test_no_call_is_begun_with_little_of_the_lease_left() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.lease(bench.timing.lease_margin - 0.1)
    bench.stored()
    assert bench.called() == []
    assert "LeaseTooShort" in bench.notes()
    bench.lease(1000)
    bench.release()
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_a_proxy_that_joins_while_the_intent_is_written_is_waited_for() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.quiet.add("y")
    bench.join("y")
    bench.stored()
    bench.run(5)
    assert bench.called() == []
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_late_and_duplicate_answers_change_nothing() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    store = bench.stores[0]
    bench.stored()
    bench.stores.append(store)
    bench.stored()
    assert bench.called() == [PAUSE]
    call = bench.calls[0]
    bench.end_call()
    bench.calls.append(call)
    bench.end_call(Outcome.FAILED, happens=False)
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))
    bench.calls.append(call)
    bench.end_call(Outcome.FAILED, happens=False)
    assert bench.settled(PAUSED)
    assert bench.called() == [PAUSE]
