"""How long the leader's word is good, and what a proxy does that is out of contact."""

import pytest

from steersman.clock import FakeClock
from steersman.control import Pong
from steersman.engine import Gate
from steersman.errors import ControlStale, HoldTimeout
from steersman.policy import LatestOnly
from steersman.settings import HoldSettings, PoolSettings
from steersman_proxy.routing.explain import explain
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import Selected, Wait
from tests.control.operators import Stage
from tests.control.support import fleet, row, table, take
from tests.routing.support import Waiter, pump_all, request

STRICT = PoolSettings(version_policy=LatestOnly())
FENCED = PoolSettings(fence=True)


def ask(policy: str | None = None, **changes: object):
    return request(policy, pool="p", **changes)


# --- how long ---------------------------------------------------------------------------------------


def test_a_welcome_counts_from_the_hello() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.connect()
    stage.clock.advance(1.5)
    operator.welcome(grant=10.0)
    assert not stage.follower.fresh, "no table of this operator is in force yet"
    operator.sends(table(row("a")))
    assert stage.follower.fresh

    stage.pass_time(8.4)
    assert stage.follower.fresh
    stage.pass_time(0.2)
    assert not stage.follower.fresh


def test_pings_that_confirm_a_pong_keep_it_fresh() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a")))
    for n in range(20):
        stage.pass_time(2.0)
        operator.ping(heard=n)
        assert stage.follower.fresh

    # The last pong that was confirmed is two seconds old.
    stage.pass_time(7.9)
    assert stage.follower.fresh
    stage.pass_time(0.2)
    assert not stage.follower.fresh


def test_pings_that_confirm_nothing_do_not() -> None:
    """A link that works one way: the operator counts this proxy out all the same."""
    stage = Stage()
    operator = stage.operator()
    operator.join()
    for _ in range(6):
        stage.pass_time(2.0)
        operator.ping()

    assert not stage.follower.fresh


def test_after_a_stall_old_messages_in_the_socket_prove_nothing() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    stage.pass_time(2.0)
    operator.ping()
    assert operator.last(Pong).n == 1

    stage.clock.advance(60.0)  # the process was stopped; no timer has run
    operator.ping(heard=1)
    operator.sends(table(row("a")))

    assert not stage.follower.fresh
    operator.ping(heard=2)
    assert stage.follower.fresh


@pytest.mark.parametrize("settings", [STRICT, FENCED])
def test_after_a_stall_the_first_request_is_judged_before_any_timer(settings) -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a"), settings=settings))
    take(stage.fleet)

    stage.clock.advance(60.0)

    assert isinstance(stage.fleet.select(ask()), ControlStale)


def test_a_reconnect_makes_it_fresh_again() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(row("a"), settings=STRICT))
    operator.disconnect()
    stage.pass_time(11.0)
    assert isinstance(stage.fleet.select(ask()), ControlStale)

    operator.join()
    # It may have been counted out: by this table engines may serve that were put to sleep since.
    assert isinstance(stage.fleet.select(ask()), ControlStale)
    operator.sends(table(row("a"), seq=2, settings=STRICT))

    take(stage.fleet)


def test_a_proxy_without_an_operator_is_always_fresh() -> None:
    clock = FakeClock()
    made = fleet(clock)
    made.apply(table(row("a"), settings=FENCED))
    clock.advance(1e6)

    take(made)


# --- what follows -----------------------------------------------------------------------------------


def stale(settings: PoolSettings | None, *rows, clock: FakeClock | None = None):
    made = fleet(clock or FakeClock())
    made.apply(table(*(rows or (row("a"),)), settings=settings))
    made.set_control(False)
    return made


def test_any_version_is_served_by_the_last_table() -> None:
    made = stale(None)

    assert isinstance(made.select(ask()), Selected)
    assert isinstance(made.select(ask("any")), Selected)


@pytest.mark.parametrize("policy", ["latest-only", "min-version:1", "max-staleness:5"])
def test_what_insists_on_a_version_is_refused(policy: str) -> None:
    refusal = stale(None).select(ask(policy))

    assert isinstance(refusal, ControlStale)
    assert (refusal.status, refusal.code) == (503, "control_stale")
    assert refusal.retry_after is not None
    assert policy in str(refusal)


def test_the_pools_own_policy_counts_unless_the_request_says_otherwise() -> None:
    made = stale(STRICT)

    assert isinstance(made.select(ask()), ControlStale)
    assert isinstance(made.select(ask("any")), Selected)


def test_a_fenced_pool_starts_nothing() -> None:
    made = stale(FENCED)

    for asked in (ask(), ask("any"), ask(target="a"), ask(affinity="k")):
        refusal = made.select(asked)
        assert isinstance(refusal, ControlStale)
        assert "starts nothing" in str(refusal)


def test_explain_says_the_same() -> None:
    made = stale(STRICT)

    explained = explain(made, ask())

    assert explained.outcome == "refuse"
    assert explained.summary == str(made.select(ask()))


def test_a_plain_relay_knows_no_versions_to_prove() -> None:
    from steersman_proxy.routing.fleet import Fleet

    made = Fleet(clock=FakeClock(), defaults=FENCED, pool_settings={}, rl_enabled=False)
    made.apply(table(row("a")))
    made.set_control(False)

    assert isinstance(made.select(ask()), Selected)


def test_what_would_only_wait_is_refused_as_well() -> None:
    made = stale(FENCED, row("a", open_=False))

    assert isinstance(made.select(ask()), ControlStale)
    made.set_control(True)
    assert isinstance(made.select(ask()), Wait)


@pytest.mark.parametrize("settings", [STRICT, FENCED])
def test_who_waits_goes_on_waiting_and_is_released_in_contact(settings) -> None:
    clock = FakeClock()
    made = fleet(clock)
    made.apply(table(row("a", open_=False), settings=settings))
    hold = HoldQueue(made, clock=clock)
    waiter = Waiter(hold, made, ask())

    made.set_control(False)
    # A new table from a leader that has not been proven to hear us yet.
    made.apply(table(row("a"), settings=settings, seq=2))
    pump_all(hold)
    assert waiter.waiting

    made.set_control(True, until=clock.now() + 10)
    pump_all(hold)
    assert waiter.engine == "a"


def test_who_waits_for_room_in_a_fenced_pool_is_not_released_when_there_is_some() -> None:
    clock = FakeClock()
    made = fleet(clock)
    settings = PoolSettings(fence=True, max_in_flight_per_engine=1)
    made.apply(table(row("a"), settings=settings))
    hold = HoldQueue(made, clock=clock)
    running = take(made)
    waiter = Waiter(hold, made, ask())
    made.set_control(True, until=clock.now() + 10)
    clock.advance(10.0)

    running.guard.release()
    pump_all(hold)
    assert waiter.waiting

    made.set_control(True, until=clock.now() + 10)
    pump_all(hold)
    assert waiter.engine == "a"


def test_who_waits_still_gives_up_in_time() -> None:
    clock = FakeClock()
    made = fleet(clock)
    settings = PoolSettings(fence=True, hold=HoldSettings(timeout=5.0))
    made.apply(table(row("a", open_=False), settings=settings))
    hold = HoldQueue(made, clock=clock)
    waiter = Waiter(hold, made, ask())
    made.set_control(False)

    clock.advance(5.0)
    hold.expire()

    assert isinstance(waiter.error, HoldTimeout)


def test_nothing_is_released_where_holding_was_switched_off_meanwhile() -> None:
    clock = FakeClock()
    made = fleet(clock)
    made.apply(table(row("a", open_=False), settings=FENCED))
    hold = HoldQueue(made, clock=clock)
    waiter = Waiter(hold, made, ask())
    made.set_control(False)

    off = PoolSettings(fence=True, hold=HoldSettings(timeout=0.0))
    made.apply(table(row("a"), settings=off, seq=2))
    pump_all(hold)

    assert isinstance(waiter.error, ControlStale)
    assert made.in_flight(["a"]) == {"a": 0}


def test_a_closed_gate_stays_closed_whatever_the_contact() -> None:
    made = stale(None, row("a"), row("b", open_=False))

    assert {take(made).engine.id for _ in range(5)} == {"a"}
    assert made.pool("p").by_id["b"].row.gate == Gate(open=False, count=1)
