"""A new leader: at every phase of every operation, and what it does before it knows enough."""

import pytest

from steersman.engine import Control
from steersman.table import Epoch
from steersman_operator.fleet.commands import Call, Forget, Publish, Store
from steersman_operator.fleet.events import (
    CallEnded,
    Deposed,
    Elected,
    LeaseRenewed,
    ProxiesRequired,
    ProxyJoined,
    SpecChanged,
    Stored,
)
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import RolloutMode
from steersman_operator.fleet.state import Phase
from tests.fleet.support import FOREVER, Bench

PAUSE, RESUME, SLEEP, WAKE = CallKind.PAUSE, CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP

STEPS = [
    (ACTIVE, PAUSED, PAUSE),
    (ACTIVE, ASLEEP, PAUSE),
    (ACTIVE, ASLEEP, SLEEP),
    (PAUSED, ACTIVE, RESUME),
    (ASLEEP, ACTIVE, WAKE),
    (ASLEEP, ACTIVE, RESUME),
    (ASLEEP, PAUSED, WAKE),
]


def at(phase: Phase, first: Control, goal: Control, call: CallKind, *, readable: bool) -> Bench:
    """An operator in the middle of an operation."""
    bench = Bench(proxies="xy", state=first)
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = readable
    assert bench.run(30, lambda: bench.settled(first))
    bench.want(goal)
    bench.until_phase(phase, call=call)
    return bench


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
@pytest.mark.parametrize(("first", "goal", "call"), STEPS)
@pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])
def test_a_takeover_while_the_intent_is_written(
    first: Control, goal: Control, call: CallKind, *, readable: bool, written: bool
) -> None:
    before = at(Phase.CLAIMING, first, goal, call, readable=readable)
    records = before.records()
    if not written:
        records = before.records_before_last()
    after = before.successor(written=records)
    # The record of a step may be of the one before it.
    blind = any(record.call in (SLEEP, WAKE) for record in records) and not readable
    if blind:
        # It may have been called; nobody can tell; it stays closed until it is restarted.
        assert after.run(100, lambda: bool(after.engine().problem))
        assert "unknown" in after.engine().problem
        assert not after.row().gate.open
        assert after.called() == []
        after.truths["a"].restart()
    assert after.run(150, lambda: after.settled(goal))
    undone = blind and first is ASLEEP  # by the restart
    assert after.called().count(call) == (0 if undone else 1)


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "unreadable"])
@pytest.mark.parametrize(("first", "goal", "call"), STEPS)
@pytest.mark.parametrize("happened", [True, False], ids=["done", "lost"])
def test_a_takeover_while_the_engine_is_called(
    first: Control, goal: Control, call: CallKind, *, readable: bool, happened: bool
) -> None:
    before = at(Phase.EXECUTING, first, goal, call, readable=readable)
    if happened:
        before.truths["a"].take(before.calls[0])
    after = before.successor()
    assert not after.engine().gate.open
    after.run(20)
    if not readable or not happened:
        assert after.called() == [], "it may still be running"
    if call in (SLEEP, WAKE) and not readable:
        assert after.run(100, lambda: bool(after.engine().problem))
        assert after.called() == []
        after.truths["a"].restart()
    assert after.run(150, lambda: after.settled(goal))


@pytest.mark.parametrize(("first", "goal", "call"), STEPS)
def test_a_takeover_while_it_is_verified_goes_on_from_what_is_seen(
    first: Control, goal: Control, call: CallKind
) -> None:
    before = at(Phase.VERIFYING, first, goal, call, readable=True)
    after = before.successor()
    assert after.run(100, lambda: after.settled(goal))
    assert call not in after.called(), "what is done is done"


@pytest.mark.parametrize("goal", [PAUSED, ASLEEP])
def test_a_takeover_while_draining_begins_the_drain_anew(goal: Control) -> None:
    before = Bench(proxies="xy")
    before.want(goal)
    before.until_phase(Phase.DRAINING)
    after = before.successor()
    after.quiet.add("y")
    after.run(20)
    assert after.called() == []
    after.release()
    assert after.run(30, lambda: after.settled(goal))


def test_a_takeover_with_an_intent_waits_for_the_proxies_of_the_new_term() -> None:
    before = at(Phase.EXECUTING, ACTIVE, ASLEEP, PAUSE, readable=True)
    before.truths["a"].take(before.calls[0])
    after = before.successor()
    after.quiet.add("y")
    after.run(100)
    assert after.called() == [], "nobody has said that y has let go"
    assert after.engine().op is not None, "it was not given up at once"
    after.release()
    assert after.run(30, lambda: after.settled(ASLEEP))
    assert after.called() == [SLEEP]


def test_a_takeover_proves_an_engine_idle_anew_before_it_sleeps() -> None:
    before = at(Phase.EXECUTING, ACTIVE, ASLEEP, PAUSE, readable=True)
    before.truths["a"].take(before.calls[0])
    after = before.successor()
    after.truths["a"].busy = 1
    after.run(100)
    assert after.called() == []


def test_the_call_of_a_leader_before_is_waited_for_before_another_is_made() -> None:
    before = at(Phase.EXECUTING, ACTIVE, PAUSED, PAUSE, readable=True)
    after = before.successor()
    after.run(before.timing.call_timeout - 2)
    assert after.called() == []
    assert after.engine().op is not None
    assert after.run(30, lambda: after.settled(PAUSED))
    assert after.called() == [PAUSE]


def test_nothing_is_called_before_the_first_table_not_even_with_nobody_listed() -> None:
    before = Bench(proxies="x", state=ACTIVE)
    after = before.successor()
    fresh = Bench("a", truths=before.truths, started=False)
    fresh.elect(9)
    fresh.pool = after.pool
    fresh.want(PAUSED)
    fresh.run(60)
    assert fresh.table is None
    assert fresh.called() == []
    fresh.proxies = before.proxies
    fresh.require()
    fresh.do(ProxyJoined(now=fresh.now, proxy=fresh.proxies["x"]))
    assert fresh.run(30, lambda: fresh.settled(PAUSED))


def test_a_follower_says_and_does_nothing() -> None:
    bench = Bench("abcde", started=False)
    bench.do(SpecChanged(now=1, pools=(bench.pool,)))
    bench.require()
    bench.do(ProxyJoined(now=1, proxy=bench.proxies["x"]))
    bench.want(PAUSED, engines=bench.pool.engines[:1])
    bench.tick(100)
    assert bench.log == []


def test_a_deposed_operator_calls_no_engine_though_its_intent_is_written() -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.do(Deposed(now=bench.now))
    bench.log.clear()
    bench.stored()
    bench.release()
    bench.run(30)
    assert bench.log == []


@pytest.mark.parametrize("phase", [Phase.CLAIMING, Phase.EXECUTING, Phase.VERIFYING])
def test_an_operator_that_is_elected_again_begins_from_the_records(phase: Phase) -> None:
    bench = Bench(proxies="x")
    bench.want(PAUSED)
    bench.until_phase(phase)
    call = next((one for one in bench.log if isinstance(one, Call)), None)
    bench.do(Deposed(now=bench.now))
    bench.do(Elected(now=bench.now, term=7, durable=bench.records()))
    assert bench.state.epoch.term == 7
    assert bench.engine().known is False
    if call is not None:
        # An answer to the call of the term before is no answer to anything of this one.
        bench.do(
            CallEnded(now=bench.now, engine="a", number=call.number, outcome=Outcome.OK, detail="")
        )
        assert bench.op().phase is Phase.VERIFYING
        assert bench.op().unknown
    bench.release()
    bench.do(LeaseRenewed(now=bench.now, valid_until=FOREVER))
    assert bench.run(200, lambda: bench.settled(PAUSED))


@pytest.mark.parametrize(
    "phase", [Phase.DRAINING, Phase.CLAIMING, Phase.EXECUTING, Phase.VERIFYING]
)
def test_a_leader_that_is_given_a_later_term_begins_anew_under_it(phase: Phase) -> None:
    """A proxy follows a term of which this operator knew nothing; it never ceased to lead."""
    bench = Bench(proxies="xy")
    bench.want(PAUSED)
    bench.until_phase(phase)
    stores, calls = bench.stores, bench.calls
    bench.stores, bench.calls, bench.looks = [], [], []
    old = bench.state.epoch

    bench.do(Elected(now=bench.now, term=7, durable=bench.records()))
    assert bench.state.leading and not bench.state.published
    # What the term before had asked for is answered yet, and changes nothing.
    for store in stores:
        bench.do(Stored(now=bench.now, engine="a", number=store.number))
    for call in calls:
        bench.truths["a"].take(call)
        bench.do(CallEnded(now=bench.now, engine="a", number=call.number, outcome=Outcome.OK))
    bench.ack("x", old)
    assert not bench.calls and bench.state.proxies["x"].acked is None

    bench.release()
    bench.quiet.add("y")
    bench.run(3)
    assert bench.state.epoch > Epoch(7, 0)
    assert not bench.calls and bench.called().count(PAUSE) <= 1, "y has not acknowledged it"
    bench.release()
    assert bench.run(100, lambda: bench.settled(PAUSED))


def test_an_election_to_a_term_that_has_been_is_none() -> None:
    bench = Bench(term=5)
    bench.do(Elected(now=bench.now, term=5))
    bench.do(Elected(now=bench.now, term=4))
    assert bench.state.term == 5
    assert bench.state.published


def test_the_first_table_waits_for_the_spec_the_proxies_and_every_engine() -> None:
    bench = Bench("ab", started=False)
    bench.quiet |= {"a", "b"}
    bench.elect(1)
    bench.tick(60)
    assert bench.table is None
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool,)))
    bench.tick(60)
    assert bench.table is None, "the proxies are not known"
    again = Bench("ab", started=False)
    again.quiet |= {"b"}
    again.elect(1)
    again.do(SpecChanged(now=again.now, pools=(again.pool,)))
    again.require()
    again.run(5)
    assert again.table is None, "b has not been looked at"
    again.release()
    again.turn()
    assert again.table is not None
    assert again.row("a").gate.open and again.row("b").gate.open


def test_engines_that_do_not_answer_are_published_closed_after_a_while() -> None:
    bench = Bench("ab", started=False)
    bench.truths["b"].answers = False
    bench.elect(1)
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool,)))
    bench.require()
    bench.run(bench.timing.first_look + 1)
    assert bench.row("a").gate.open
    assert not bench.row("b").gate.open
    bench.truths["b"].answers = True
    assert bench.run(10, lambda: bench.row("b").gate.open)


def test_a_new_leader_opens_nothing_that_the_one_before_had_closed() -> None:
    before = Bench("ab", proxies="x", overrides={"a": ASLEEP})
    before.truths["a"].shows_released = before.truths["a"].shows_paused = False
    assert before.run(30, lambda: before.settled(ASLEEP) and before.settled(ACTIVE, "b"))
    after = before.successor()
    assert after.run(10, lambda: after.table is not None)
    tables = [one.table for one in after.log if isinstance(one, Publish)]
    for table in tables:
        rows = {row.id: row for row in table.engines}
        assert not rows["a"].gate.open
        assert rows["b"].gate.open
    assert after.settled(ASLEEP)
    assert after.called() == []


def test_clocks_of_two_operators_have_nothing_to_do_with_each_other() -> None:
    before = at(Phase.EXECUTING, ACTIVE, PAUSED, PAUSE, readable=True)
    after = Bench("a", proxies="xy", truths=before.truths, started=False)
    after.now = 3.0
    after.pool = before.pool
    after.elect(2, before.records())
    after.do(SpecChanged(now=after.now, pools=(after.pool,)))
    after.require()
    for proxy in after.proxies.values():
        after.do(ProxyJoined(now=after.now, proxy=proxy))
    after.run(before.timing.call_timeout - 2)
    assert after.called() == []
    assert after.run(30, lambda: after.settled(PAUSED))


def test_a_clock_that_goes_back_does_not_move_time_back() -> None:
    bench = Bench()
    now = bench.state.now
    bench.now -= 50
    bench.tick(0)
    assert bench.state.now == now


def test_what_a_leader_before_left_of_an_engine_is_found_when_the_spec_names_it_later() -> None:
    before = Bench("ab", proxies="x", overrides={"b": ASLEEP})
    before.truths["b"].shows_released = before.truths["b"].shows_paused = False
    assert before.run(30, lambda: before.settled(ASLEEP, "b"))
    after = before.successor(written=before.records())
    only_a = Bench("a", proxies="x", truths=before.truths, started=False)
    only_a.elect(9, before.records())
    only_a.do(SpecChanged(now=only_a.now, pools=(only_a.pool,)))
    only_a.require()
    only_a.run(2)
    only_a.want(engines=after.pool.engines, overrides={})
    assert only_a.run(30, lambda: only_a.settled(ACTIVE, "b"))
    assert only_a.called("b") == [WAKE, RESUME]


def test_a_given_up_goal_is_tried_once_more_by_a_new_leader() -> None:
    before = Bench(proxies="x", drain_timeout=5.0)
    before.in_flight["x", "a"] = 1
    before.want(PAUSED)
    assert before.run(20, lambda: before.engine().given_up is not None)
    before.in_flight.clear()
    after = before.successor()
    assert after.run(30, lambda: after.settled(PAUSED))


def test_the_removal_of_an_engine_by_a_follower_forgets_nothing() -> None:
    bench = Bench("ab", started=False)
    bench.do(SpecChanged(now=1, pools=(bench.pool,)))
    bench.want(engines=bench.pool.engines[:1])
    bench.elect(1)
    assert not [one for one in bench.log if isinstance(one, Forget | Store)]


def test_in_place_operations_survive_a_takeover_too() -> None:
    before = Bench(proxies="xy", mode=RolloutMode.IN_PLACE)
    before.in_flight["x", "a"] = 2
    before.want(PAUSED)
    before.until_phase(Phase.EXECUTING)
    after = before.successor()
    assert after.run(150, lambda: after.engine().op is None)
    after.want(PAUSED)
    assert after.run(30, lambda: after.settled(PAUSED))


def test_listing_proxies_again_after_the_election_is_enough() -> None:
    before = Bench(proxies="x")
    after = before.successor()
    after.do(ProxiesRequired(now=after.now, proxies=(after.proxies["x"],)))
    assert after.run(10, lambda: after.settled(ACTIVE))
