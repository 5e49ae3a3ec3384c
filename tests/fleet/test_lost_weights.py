"""Engines whose weights do not survive a sleep are not resumed until somebody has loaded new ones."""

import pytest

from steersman.engine import Control
from steersman_operator.fleet.facts import CallKind, Facts, Observation
from steersman_operator.fleet.spec import Drift, RolloutMode
from tests.fleet.support import Bench, Truth

ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


def bench_of(*, backup: bool | None = False, shows_released: bool = False, **pool: object) -> Bench:
    return Bench(truths={"a": Truth(backup=backup, shows_released=shows_released)}, **pool)


def asleep_and_woken(bench: Bench) -> None:
    bench.want(ASLEEP)
    assert bench.run(20, lambda: bench.settled(ASLEEP))
    bench.want(ACTIVE)
    bench.run(20)


@pytest.mark.parametrize("mode", list(RolloutMode))
@pytest.mark.parametrize("backup", [False, None])
def test_it_is_woken_but_not_resumed_and_stays_closed(
    backup: bool | None, mode: RolloutMode
) -> None:
    bench = bench_of(backup=backup, mode=mode)
    asleep_and_woken(bench)

    assert bench.truths["a"].released == ()
    assert bench.truths["a"].paused
    assert bench.called()[-1] is CallKind.WAKE
    assert CallKind.RESUME not in bench.called()
    assert not bench.engine().gate.open
    assert bench.engine().op is None
    assert bench.engine().problem == ""
    assert bench.notes().count("AwaitingWeights") == 1


def test_it_opens_once_somebody_has_let_it_go_on() -> None:
    bench = bench_of()
    asleep_and_woken(bench)
    truth = bench.truths["a"]

    truth.version = "2"
    bench.run(20)
    assert not bench.engine().gate.open, (
        "a version may be shown before all of the weights are there"
    )

    truth.paused = False
    assert bench.run(20, lambda: bench.settled(ACTIVE))
    assert bench.engine().gate.open
    assert bench.engine().counted_version == "2"
    assert bench.notes().count("WeightsLoaded") == 1


def test_weights_that_are_backed_up_are_resumed_as_before() -> None:
    bench = bench_of(backup=True)
    asleep_and_woken(bench)

    assert bench.engine().gate.open
    assert bench.called()[-2:] == [CallKind.WAKE, CallKind.RESUME]


def test_it_may_sleep_again_and_is_still_without_weights_afterwards() -> None:
    bench = bench_of()
    asleep_and_woken(bench)
    asleep_and_woken(bench)

    assert not bench.engine().gate.open
    assert bench.engine().facts.lost


def test_enforced_drift_does_not_resume_it() -> None:
    bench = bench_of(drift=Drift.ENFORCE)
    asleep_and_woken(bench)
    bench.run(30)

    assert CallKind.RESUME not in bench.called()
    assert bench.notes().count("AwaitingWeights") == 1


def test_a_new_leader_knows_it() -> None:
    bench = bench_of()
    asleep_and_woken(bench)
    durable = bench.engine().durable
    assert durable is not None

    after = Bench(truths=bench.truths, durable=(durable,), term=2)
    after.run(20)
    assert not after.engine().gate.open
    after.truths["a"].paused = False
    assert after.run(20, lambda: after.settled(ACTIVE))


def test_a_restarted_engine_has_its_weights() -> None:
    bench = bench_of()
    asleep_and_woken(bench)
    bench.truths["a"].restart()
    bench.run(20)

    assert not bench.engine().facts.lost


def test_weights_that_somebody_else_gave_up_are_lost_too() -> None:
    bench = bench_of(shows_released=True)
    bench.truths["a"].released = ("kv_cache", "weights")
    bench.run(10)
    bench.truths["a"].released = ()
    bench.truths["a"].paused = True
    bench.run(10)

    assert bench.engine().facts.lost
    assert not bench.engine().gate.open


def test_what_is_not_known_to_be_backed_up_is_lost() -> None:
    facts = Facts(boot_id="b", paused=True, released=())

    assert facts.after(CallKind.SLEEP).lost
    assert facts.during(CallKind.SLEEP).lost
    kept = facts.seen(Observation(reachable=True, backup=True), boot_id="b")
    assert not kept.after(CallKind.SLEEP).lost
