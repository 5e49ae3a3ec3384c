"""What the table says: rows that come and go, the brake on going, and the fleet max."""

from typing import Any

import msgspec
import pytest

from steersman.engine import Control, Role
from steersman_operator.fleet.commands import Forget
from steersman_operator.fleet.events import SpecChanged, Tick
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.membership import REMEMBERED
from steersman_operator.fleet.plan import may_close
from steersman_operator.fleet.spec import PoolSpec, PromoteAt
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench, Truth, engine_spec

PAUSE, RESUME, SLEEP, WAKE = CallKind.PAUSE, CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


def rows(bench: Bench) -> str:
    assert bench.table is not None
    return "".join(sorted(row.id for row in bench.table.engines))


def keep(bench: Bench, names: str, *, deliberate: bool = False) -> None:
    pool = msgspec.structs.replace(bench.pool, engines=tuple(engine_spec(name) for name in names))
    bench.do(SpecChanged(now=bench.now, pools=(pool,), deliberate=deliberate))


def test_few_engines_may_go_at_once() -> None:
    bench = Bench("abcd")
    keep(bench, "ab")
    assert rows(bench) == "ab"


def test_most_of_a_fleet_does_not_go_at_once() -> None:
    bench = Bench("abcd")
    keep(bench, "a")
    assert rows(bench) == "abcd"
    assert all(bench.row(name).gate.open for name in "abcd")
    assert "RemovalHeldBack" in bench.notes()
    bench.run(bench.timing.brake - 1)
    assert rows(bench) == "abcd"
    bench.run(2)
    assert rows(bench) == "a"


def test_the_brake_does_not_bind_who_means_it() -> None:
    bench = Bench("abcd")
    keep(bench, "a", deliberate=True)
    assert rows(bench) == "a"


def test_engines_that_come_back_in_time_have_never_been_away() -> None:
    bench = Bench("abcd")
    keep(bench, "")
    bench.run(5)
    keep(bench, "abcd")
    before = bench.state.epoch
    bench.run(60)
    assert rows(bench) == "abcd"
    assert bench.state.epoch == before
    assert bench.state.brake_until is None


def test_a_later_fault_is_braked_for_its_own_time() -> None:
    bench = Bench("abcd")
    keep(bench, "a")
    bench.run(5)
    keep(bench, "abcd")
    bench.run(4)
    keep(bench, "a")
    bench.run(bench.timing.brake - 1)
    assert rows(bench) == "abcd"


def test_the_brake_cannot_be_loosened_by_engines_that_come() -> None:
    bench = Bench("abcd")
    keep(bench, "a")
    keep(bench, "aefghijk")
    assert rows(bench) == "abcdefghijk"
    keep(bench, "efghijk")
    assert rows(bench) == "bcdefghijk", "one more may go, those that are held stay"
    bench.run(bench.timing.brake + 1)
    assert rows(bench) == "efghijk"


def test_a_pool_that_vanishes_is_kept_with_its_engines() -> None:
    bench = Bench("abc")
    bench.do(SpecChanged(now=bench.now, pools=()))
    assert rows(bench) == "abc"
    assert bench.table is not None and [pool.name for pool in bench.table.pools] == ["pool"]
    bench.run(bench.timing.brake + 1)
    assert rows(bench) == ""
    assert bench.table.pools == ()


def test_two_pools_that_claim_an_engine_both_stay_and_the_first_has_it() -> None:
    bench = Bench("abcd")
    twin = PoolSpec(name="twin", models=("n",), engines=(engine_spec("a"),))
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool, twin)))
    first = msgspec.structs.replace(bench.pool, engines=(engine_spec("a"),))
    bench.do(SpecChanged(now=bench.now, pools=(first, twin)))
    bench.run(bench.timing.brake + 1)
    assert rows(bench) == "a"
    assert bench.row().pool == "pool"
    assert bench.table is not None
    assert [pool.name for pool in bench.table.pools] == ["pool", "twin"]


def test_a_fleet_that_was_held_back_before_an_election_is_not_held_after_it() -> None:
    bench = Bench("abcd")
    keep(bench, "a")
    bench.elect(2)
    bench.run(3)
    assert rows(bench) == "a"


def test_an_engine_that_is_gone_is_forgotten_if_we_left_it_as_it_was() -> None:
    bench = Bench("ab", overrides={"a": PAUSED})
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.want(overrides={})
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    keep(bench, "b")
    assert Forget(engine="a") in bench.log
    assert bench.records() == ()


def test_an_engine_that_we_put_to_sleep_is_remembered_after_it_has_left_the_spec() -> None:
    bench = Bench("ab", overrides={"a": ASLEEP})
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = False
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    keep(bench, "b")
    assert bench.records() != ()
    bench.run(5)
    bench.looks.clear()
    bench.want(overrides={})
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    assert bench.called() == [PAUSE, SLEEP, WAKE, RESUME]


def test_what_is_remembered_of_an_engine_is_never_older_than_what_was_done_to_it() -> None:
    before = Bench("ab", proxies="x", overrides={"a": ASLEEP})
    before.truths["a"].shows_paused = before.truths["a"].shows_released = False
    assert before.run(20, lambda: before.settled(ASLEEP))
    after = before.successor()
    after.want(overrides={})
    assert after.run(20, lambda: after.settled(ACTIVE))
    keep(after, "b")
    after.looks.clear()
    after.want(overrides={})
    after.run(20)
    assert after.settled(ACTIVE)
    assert after.called() == [WAKE, RESUME], "it is not woken twice"


def test_an_engine_that_leaves_and_returns_while_it_is_called_is_not_called_again() -> None:
    bench = Bench("ab")
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = False
    bench.want(overrides={"a": ASLEEP})
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    keep(bench, "b")
    bench.looks.clear()
    bench.do(SpecChanged(now=bench.now, pools=(bench.pool,)))
    bench.stop = None
    bench.end_call()
    bench.run(200)
    assert bench.called() == [PAUSE, SLEEP]
    assert not bench.row().gate.open


def test_an_engine_that_left_before_it_was_put_back_is_put_back_when_it_returns() -> None:
    bench = Bench("ab", overrides={"a": ASLEEP})
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = False
    bench.until_phase(Phase.EXECUTING, call=SLEEP)
    bench.quiet.add("store")
    bench.end_call(Outcome.REFUSED)
    keep(bench, "b")
    bench.release()
    bench.looks.clear()
    bench.want(overrides={})
    assert bench.run(100, lambda: bench.settled(ACTIVE))
    assert bench.truths["a"].paused is False


def test_records_of_engines_that_are_gone_do_not_pile_up() -> None:
    bench = Bench("ab")
    for number in range(REMEMBERED + 6):
        name = f"pod-{number}"
        engines = (engine_spec(name), engine_spec("b"))
        bench.want(engines=engines, overrides={name: PAUSED})
        assert bench.run(20, lambda name=name: bench.settled(PAUSED, name))
    keep(bench, "b")
    assert len(bench.records()) == REMEMBERED
    assert bench.records()[-1].engine == name


def test_an_engine_at_another_address_is_met_anew_and_its_gate_counts_on() -> None:
    bench = Bench("ab", overrides={"a": ASLEEP})
    bench.truths["a"].shows_paused = bench.truths["a"].shows_released = False
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    count = bench.row().gate.count
    moved = msgspec.structs.replace(engine_spec("a"), url="http://elsewhere:1")
    bench.looks.clear()
    bench.want(engines=(moved, engine_spec("b")), overrides={})
    assert bench.row().url == "http://elsewhere:1"
    assert not bench.row().gate.open
    assert bench.row().gate.count >= count
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    assert bench.called()[-2:] == [WAKE, RESUME]


def test_gates_count_every_change() -> None:
    bench = Bench()
    counts = [bench.row().gate.count]
    for goal in (PAUSED, ACTIVE, PAUSED):
        bench.want(goal)
        assert bench.run(10, lambda goal=goal: bench.settled(goal))
        counts.append(bench.row().gate.count)
    assert counts == sorted(set(counts))


# --- fleet max ------------------------------------------------------------------------------------


def fleet(*versions: str | None, **pool: Any) -> Bench:
    names = "abcde"[: len(versions)]
    truths = {name: Truth(version=version) for name, version in zip(names, versions, strict=True)}
    return Bench(names, truths=truths, **pool)


def test_the_newest_version_counts_from_the_first_engine_that_opens_with_it() -> None:
    bench = fleet("1", "1")
    bench.want(overrides={"a": PAUSED})
    assert bench.run(10, lambda: bench.settled(PAUSED))
    bench.truths["a"].version = "2"
    assert bench.run(10, lambda: bench.row().version == "2")
    assert bench.fleet_max() == "1", "it has not opened with it"
    bench.want(overrides={})
    assert bench.run(10, lambda: bench.settled(ACTIVE))
    assert bench.fleet_max() == "2"


def test_a_paused_engine_keeps_counting() -> None:
    bench = fleet("2", "1")
    bench.want(overrides={"a": PAUSED})
    assert bench.run(10, lambda: bench.settled(PAUSED))
    assert bench.fleet_max() == "2"


@pytest.mark.parametrize("state", [PAUSED, ASLEEP])
def test_a_paused_engine_keeps_counting_under_a_new_leader(state: Control) -> None:
    before = fleet("2", "1")
    before.want(overrides={"a": state})
    assert before.run(20, lambda: before.settled(state))
    before.truths["a"].version = "3"
    after = before.successor()
    after.run(3)
    assert after.fleet_max() == "2", "not what it has got since it was closed"


def test_an_engine_paused_by_others_keeps_counting_under_a_new_leader() -> None:
    before = fleet("2", "1")
    before.truths["a"].paused = True
    assert before.run(5, lambda: before.engine().external)
    after = before.successor()
    after.run(3)
    assert after.fleet_max() == "2"


def test_a_failed_engine_counts_no_more() -> None:
    bench = fleet("2", "1")
    bench.truths["a"].answers = False
    assert bench.run(20, lambda: bench.fleet_max() == "1")


def test_an_engine_that_is_gone_counts_no_more() -> None:
    bench = fleet("2", "1")
    keep(bench, "b")
    assert bench.fleet_max() == "1"


def test_all_open_waits_for_the_last_engine() -> None:
    bench = fleet("1", "1", promote_at=PromoteAt.ALL_OPEN)
    bench.truths["a"].version = "2"
    bench.run(5)
    assert bench.fleet_max() == "1"
    bench.truths["b"].version = "2"
    assert bench.run(5, lambda: bench.fleet_max() == "2")


def test_all_open_does_not_wait_for_the_failed() -> None:
    bench = fleet("1", "1", promote_at=PromoteAt.ALL_OPEN)
    bench.truths["a"].version = "2"
    bench.truths["b"].answers = False
    assert bench.run(20, lambda: bench.fleet_max() == "2")


def test_all_open_is_not_forgotten_by_a_new_leader() -> None:
    before = fleet("1", "1", "1", promote_at=PromoteAt.ALL_OPEN)
    before.truths["a"].version = "2"
    before.run(5)
    after = before.successor()
    after.run(3)
    assert after.fleet_max() == "1"


def test_ordinals_decide_where_there_are_any() -> None:
    bench = fleet("new", "old", ordinals={"new": 2, "old": 1})
    assert bench.fleet_max() == "new"


def test_a_fleet_without_versions_has_no_max() -> None:
    assert fleet(None, None).fleet_max() is None


# --- the plan -------------------------------------------------------------------------------------


def planned(bench: Bench, candidates: str = "abcde") -> str:
    return "".join(may_close(bench.pool, candidates, engines=bench.state.engines))


@pytest.mark.parametrize(
    ("limit", "closes"), [("1", "a"), ("2", "ab"), ("50%", "ab"), ("1%", "a"), ("0", "a")]
)
def test_no_more_close_than_may_be_unavailable(limit: str, closes: str) -> None:
    assert planned(Bench("abcde", max_unavailable=limit)) == closes


def test_whatever_is_closed_counts_whatever_closed_it() -> None:
    bench = Bench("abcde", max_unavailable="2")
    bench.truths["e"].answers = False
    assert bench.run(20, lambda: bench.row("e").failed)
    assert planned(bench, "abcd") == "a"
    bench.truths["d"].paused = True
    assert bench.run(5, lambda: bench.engine("d").external)
    assert planned(bench, "abc") == ""


def test_the_last_open_engine_is_not_closed() -> None:
    bench = Bench("ab", max_unavailable="2")
    assert planned(bench, "ab") == "a"


def test_the_last_open_engine_of_a_role_is_not_closed() -> None:
    bench = Bench("abc", max_unavailable="3")
    roles = {"a": Role.PREFILL, "b": Role.DECODE, "c": Role.DECODE}
    bench.want(engines=tuple(engine_spec(name, role=role) for name, role in roles.items()))
    bench.run(2)
    assert planned(bench, "bca") == "ba", "a is the only one that its role has"


def test_the_only_engine_of_a_pool_may_be_closed() -> None:
    assert planned(Bench("a"), "a") == "a"


# --- purity ---------------------------------------------------------------------------------------


def test_a_step_changes_nothing_of_the_state_that_it_came_from() -> None:
    bench = Bench("abc", proxies="xy")
    before = bench.state
    copy = msgspec.json.encode(before)
    bench.want(ASLEEP)
    bench.run(20)
    assert msgspec.json.encode(before) == copy
    bench.do(Tick(now=bench.now))
