"""Which proxies an operation waits for: what exists, not what can be reached."""

import pytest

from steersman.engine import Control
from steersman_operator.fleet.barrier import barrier
from steersman_operator.fleet.events import (
    Acked,
    InFlight,
    Nacked,
    ProxiesRequired,
    ProxyHeard,
    ProxyJoined,
    ProxyLost,
)
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.spec import OnUnreachable
from steersman_operator.fleet.state import Phase
from tests.fleet.support import Bench, ref

PAUSE, SLEEP = CallKind.PAUSE, CallKind.SLEEP
ACTIVE, PAUSED, ASLEEP = Control.ACTIVE, Control.PAUSED, Control.ASLEEP


def sentence(bench: Bench) -> str:
    engine = bench.engine()
    stands = barrier(
        engine,
        proxies=bench.state.proxies,
        on_unreachable=bench.pool.on_unreachable,
        now=bench.now,
        since=bench.state.elected_at,
        timing=bench.timing,
    )
    return stands.sentence(now=bench.now, proxies=bench.state.proxies)


def test_silence_is_not_death() -> None:
    bench = Bench(proxies="xy", drain_timeout=1e6)
    bench.quiet.add("y")
    bench.want(PAUSED)
    for _ in range(60):
        bench.tick(60)
        bench.turn()
    assert bench.called() == []


def test_a_lost_connection_is_not_death() -> None:
    bench = Bench(proxies="xy")
    bench.quiet.add("y")
    bench.do(ProxyLost(now=bench.now, proxy=ref("y")))
    bench.want(PAUSED)
    bench.run(60)
    assert bench.called() == []
    assert "y (unreachable, silent for" in sentence(bench)


def test_what_a_proxy_acknowledged_stays_true_after_its_connection_is_gone() -> None:
    bench = Bench(proxies="xy")
    bench.quiet |= {"x"}
    bench.want(PAUSED)
    bench.run(1)
    bench.do(ProxyLost(now=bench.now, proxy=ref("y")))
    bench.quiet = {"y"}
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_a_proxy_that_was_listed_and_is_no_more_has_ended() -> None:
    bench = Bench(proxies="xy")
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.run(10)
    assert bench.called() == []
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x"),)))
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_hello_that_comes_after_the_platform_told_the_end_does_not_stay_for_ever() -> None:
    bench = Bench(proxies="xy")
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x"),)))
    bench.quiet.add("y")
    bench.do(ProxyJoined(now=bench.now, proxy=ref("y")))
    bench.want(PAUSED)
    bench.run(5)
    assert bench.called() == [], "it says that it lives"
    bench.do(ProxyLost(now=bench.now, proxy=ref("y")))
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_proxy_that_is_listed_and_never_said_hello_is_waited_for() -> None:
    bench = Bench(proxies="x")
    bench.require(ref("new"))
    bench.want(PAUSED)
    bench.run(30)
    assert bench.called() == []
    assert "new (unreachable, never heard)" in sentence(bench)


def test_a_proxy_that_said_hello_counts_before_the_platform_has_listed_it() -> None:
    bench = Bench(proxies="x")
    bench.quiet.add("y")
    bench.do(ProxyJoined(now=bench.now, proxy=ref("y")))
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x"),)))
    bench.want(PAUSED)
    bench.run(30)
    assert bench.called() == []


def test_a_proxy_that_joins_while_others_drain_is_waited_for() -> None:
    bench = Bench(proxies="x")
    bench.quiet.add("loads")
    bench.want(PAUSED)
    bench.run(3)
    bench.quiet |= {"y"}
    bench.join("y", listed=True)
    bench.quiet.discard("loads")
    bench.run(10)
    assert bench.called() == []
    bench.ack("y")
    bench.run(3)
    assert bench.called() == [], "nothing is known of its requests"
    bench.report("y", a=0)
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_proxy_that_connects_again_acknowledges_anew() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(PAUSED)
    bench.run(3)
    bench.quiet |= {"x"}
    bench.do(ProxyJoined(now=bench.now, proxy=ref("x")))
    bench.quiet.discard("loads")
    bench.run(10)
    assert bench.called() == []
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_restarted_proxy_does_not_inherit_what_its_predecessor_said() -> None:
    bench = Bench(proxies="x")
    bench.quiet |= {"loads"}
    bench.want(PAUSED)
    bench.run(3)
    bench.quiet |= {"x"}
    bench.join("x", "2")
    bench.do(Acked(now=bench.now, proxy=ref("x", "1"), epoch=bench.state.epoch))
    bench.do(InFlight(now=bench.now, proxy=ref("x", "1"), epoch=bench.state.epoch, counts={"a": 0}))
    bench.quiet.discard("loads")
    bench.run(10)
    assert bench.called() == []
    bench.require()
    bench.release()
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_while_platform_and_socket_name_different_processes_both_are_waited_for() -> None:
    bench = Bench(proxies="x")
    bench.join("x", "2")
    bench.want(PAUSED)
    bench.run(10)
    assert bench.called() == []
    assert "x (is boot 2, the platform still lists 1)" in sentence(bench)
    bench.require()
    assert bench.run(5, lambda: bench.settled(PAUSED)), "and what it said meanwhile counts"


def test_a_hello_that_comes_after_that_of_its_successor_takes_nothing_over() -> None:
    bench = Bench(proxies="x")
    bench.join("x", "2", listed=True)
    bench.run(2)
    bench.do(ProxyJoined(now=bench.now, proxy=ref("x", "1")))
    bench.want(PAUSED)
    bench.do(Acked(now=bench.now, proxy=ref("x", "1"), epoch=bench.state.epoch))
    bench.do(InFlight(now=bench.now, proxy=ref("x", "1"), epoch=bench.state.epoch, counts={"a": 0}))
    bench.run(5)
    assert bench.called() == []
    bench.do(ProxyLost(now=bench.now, proxy=ref("x", "1")))
    bench.do(ProxyHeard(now=bench.now, proxy=ref("x", "2")))
    assert bench.state.proxies["x"].ref == ref("x", "2")
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_platform_that_does_not_tell_boots_apart_means_whoever_has_the_uid() -> None:
    bench = Bench(proxies="x")
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x", ""),)))
    bench.want(PAUSED)
    assert bench.run(5, lambda: bench.settled(PAUSED))
    bench.want(ACTIVE)
    assert bench.run(5, lambda: bench.settled(ACTIVE))
    bench.join("x", "2")
    bench.want(PAUSED)
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_a_refused_table_is_not_an_acknowledgement() -> None:
    bench = Bench(proxies="x")
    bench.quiet.add("x")
    bench.want(PAUSED)
    bench.do(Nacked(now=bench.now, proxy=ref("x"), epoch=bench.state.epoch, detail="skew"))
    bench.report("x", a=0)
    bench.run(10)
    assert bench.called() == []


def test_messages_of_strangers_change_nothing() -> None:
    bench = Bench(proxies="x")
    before = bench.state.proxies
    stranger = ref("who")
    for event in (
        Acked(now=bench.now, proxy=stranger, epoch=bench.state.epoch),
        InFlight(now=bench.now, proxy=stranger, epoch=bench.state.epoch, counts={"a": 0}),
        ProxyHeard(now=bench.now, proxy=stranger),
        ProxyLost(now=bench.now, proxy=stranger),
        Nacked(now=bench.now, proxy=stranger, epoch=bench.state.epoch),
    ):
        bench.do(event)
    assert bench.state.proxies == before


def test_without_any_proxy_nobody_is_waited_for() -> None:
    bench = Bench(proxies="")
    bench.want(PAUSED)
    assert bench.run(5, lambda: bench.settled(PAUSED))


def test_an_acknowledgement_of_a_later_table_is_one_of_the_closing_table_too() -> None:
    bench = Bench("ab", proxies="x")
    bench.quiet.add("x")
    bench.want(overrides={"a": PAUSED})
    bench.want(overrides={"a": PAUSED, "b": PAUSED})
    assert bench.state.epoch > bench.engine("a").closed_at  # type: ignore[operator]
    bench.ack("x")
    bench.report("x", a=0, b=0)
    assert bench.run(5, lambda: bench.settled(PAUSED) and bench.settled(PAUSED, "b"))


# --- Fence ----------------------------------------------------------------------------------------


def fencing(**more: object) -> Bench:
    return Bench(proxies="xy", on_unreachable=OnUnreachable.FENCE, **more)


def test_fence_counts_a_silent_proxy_out_after_the_grant_and_a_margin() -> None:
    bench = fencing()
    bench.quiet.add("y")
    heard = bench.state.proxies["y"].heard
    assert heard is not None
    bench.want(PAUSED)
    wait = bench.timing.grant + bench.timing.fence_margin
    bench.run(wait - (bench.now - heard) - 0.5)
    assert bench.called() == []
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_a_sign_of_life_ends_being_counted_out() -> None:
    bench = fencing()
    bench.quiet.add("y")
    bench.want(PAUSED)
    for _ in range(20):
        bench.run(5)
        bench.do(ProxyHeard(now=bench.now, proxy=ref("y")))
    assert bench.called() == []


def test_a_counted_out_proxy_that_comes_back_before_the_call_is_waited_for() -> None:
    bench = fencing()
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.until_phase(Phase.CLAIMING)
    bench.do(ProxyJoined(now=bench.now, proxy=ref("y")))
    bench.stored()
    bench.run(5)
    assert bench.called() == []


def test_a_new_leader_counts_nobody_out_before_its_own_grant_time() -> None:
    before = fencing()
    before.quiet.add("y")
    before.run(60)
    after = before.successor()
    after.do(ProxyLost(now=after.now, proxy=ref("y")))
    after.state.proxies["y"]
    after.quiet.add("y")
    after.want(PAUSED)
    after.run(after.timing.grant)
    assert after.called() == []


def test_a_proxy_that_has_just_been_named_is_not_counted_out_at_once() -> None:
    bench = fencing()
    bench.run(60)
    bench.require(ref("z"))
    bench.want(PAUSED)
    bench.run(bench.timing.grant)
    assert bench.called() == []
    assert bench.run(10, lambda: bench.settled(PAUSED))


def test_a_counted_out_proxy_leaves_it_to_the_engine_to_say_what_still_runs() -> None:
    bench = fencing()
    bench.quiet.add("y")
    bench.truths["a"].busy = 1
    bench.want(PAUSED)
    bench.run(60)
    assert bench.called() == []
    bench.truths["a"].busy = 0
    assert bench.run(10, lambda: bench.settled(PAUSED))


@pytest.mark.parametrize("goal", [PAUSED, ASLEEP])
def test_wait_never_counts_out(goal: Control) -> None:
    bench = Bench(proxies="xy", drain_timeout=1e6)
    bench.quiet.add("y")
    bench.do(ProxyLost(now=bench.now, proxy=ref("y")))
    bench.want(goal)
    bench.run(100)
    assert bench.called() == []
