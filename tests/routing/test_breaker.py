"""The breaker as one more mask of the selection, on a clock that stands still."""

import pytest

from steersman.errors import HoldTimeout, NoAvailableEngine, TargetUnavailable
from steersman.settings import BreakerSettings, PoolSettings, RoutingPolicy
from steersman_proxy.load.breaker import BreakerState, Judgement
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.explain import explain
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import Selected, Wait
from tests.routing.support import (
    CLOSED,
    POOL,
    Waiter,
    chosen,
    fleet,
    outcomes,
    pump_all,
    refused,
    request,
    row,
    selected,
    table,
    waits,
)

SETTINGS = PoolSettings(
    policy=RoutingPolicy.ROUND_ROBIN, breaker=BreakerSettings(failures=3, cooldown=30.0)
)


def fail(made: Fleet, name: str, *, times: int = 3) -> None:
    """Requests to one engine that end badly."""
    for _ in range(times):
        result = selected(made, request(target=name))
        result.guard.judge(Judgement.FAILURE)
        result.guard.release()


def state(made: Fleet, name: str) -> BreakerState:
    return next(engine for engine in made.engines() if engine.id == name).breaker.state


def advance(made: Fleet, seconds: float) -> None:
    made.clock.advance(seconds)  # type: ignore[attr-defined]


def test_an_open_engine_is_out_with_the_reason_everywhere() -> None:
    made = fleet(row("a"), row("b"), settings=SETTINGS)
    fail(made, "a")

    assert outcomes(made, request()) == {"b"}
    pool = made.pool(POOL)
    assert pool is not None
    policy = SETTINGS.version_policy
    assert pool.eligible(row("x").role, policy).filtered == {Reason.BREAKER_OPEN: 1}
    shown = {engine.id: engine for engine in explain(made, request()).engines}
    assert (shown["a"].eligible, shown["a"].reason) == (False, Reason.BREAKER_OPEN)
    assert "failed too often" in shown["a"].sentence
    assert shown["b"].eligible


def test_a_pool_whose_engines_are_all_open_refuses_until_the_nearest_probe() -> None:
    made = fleet(row("a"), row("b"), row("c", gate=CLOSED, failed=True), settings=SETTINGS)
    fail(made, "a")
    advance(made, 10.5)
    fail(made, "b")

    error = refused(made, request())

    assert isinstance(error, NoAvailableEngine)
    assert error.reasons == {"breaker_open": 2, "failed": 1}
    assert error.retry_after == 20  # 19.5, and not to come too early
    advance(made, 19.5)
    assert chosen(made, request()) == "a"


def test_nobody_waits_for_a_breaker_but_for_an_operation_beside_it() -> None:
    made = fleet(row("a"), row("b", gate=CLOSED), settings=SETTINGS)
    fail(made, "a")
    waits(made, request())
    made.apply(table([row("a")], seq=2))
    refused(made, request())


def test_what_an_operation_closed_is_waited_for_although_its_breaker_is_open() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    fail(made, "a")
    made.apply(table([row("a", gate=CLOSED)], seq=2))

    waits(made, request())


def test_one_request_probes_and_the_others_do_not() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    fail(made, "a")
    advance(made, 30)

    probe = selected(made, request())
    error = refused(made, request())
    assert error.retry_after == 1  # it may be over at any moment

    assert probe.guard.probe
    probe.guard.judge(Judgement.SUCCESS)
    both = [selected(made, request()) for _ in range(2)]
    assert not any(result.guard.probe for result in both)
    for result in (probe, *both):
        result.guard.release()
    assert state(made, "a") is BreakerState.CLOSED


def test_a_probe_that_fails_begins_another_cooldown() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    fail(made, "a")
    advance(made, 30)
    fail(made, "a", times=1)

    assert refused(made, request()).retry_after == 30


def test_an_abandoned_probe_lets_the_next_request_probe() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    fail(made, "a")
    advance(made, 30)
    for _ in range(5):
        probe = selected(made, request())
        assert probe.guard.probe
        refused(made, request())
        probe.guard.release()
    assert state(made, "a") is BreakerState.HALF_OPEN


def test_a_target_that_is_open_is_refused_until_its_own_probe() -> None:
    made = fleet(row("a"), row("b"), settings=SETTINGS)
    fail(made, "a")
    advance(made, 12)

    error = refused(made, request(target="a"))

    assert isinstance(error, TargetUnavailable)
    assert (error.reasons, error.retry_after) == ({"breaker_open": 1}, 18)


@pytest.mark.parametrize("sticky_pause", [False, True])
def test_a_routing_key_goes_on_to_the_next_engine_and_comes_back(sticky_pause: bool) -> None:
    settings = PoolSettings(
        policy=RoutingPolicy.STICKY, sticky_pause=sticky_pause, breaker=SETTINGS.breaker
    )
    made = fleet(row("a"), row("b"), settings=settings)
    asked = request(affinity="session")
    owner = chosen(made, asked)
    fail(made, owner)

    assert chosen(made, asked) == ({"a", "b"} - {owner}).pop()
    advance(made, 30)
    result = selected(made, asked)
    assert result.engine.id == owner
    result.guard.judge(Judgement.SUCCESS)
    result.guard.release()
    assert chosen(made, asked) == owner


def test_who_waits_for_an_operation_is_the_probe_when_the_cooldown_is_over() -> None:
    made = fleet(row("a"), row("b", gate=CLOSED), settings=SETTINGS)
    hold = HoldQueue(made, clock=made.clock)
    fail(made, "a")
    first, second = (Waiter(hold, made, request()) for _ in range(2))
    pump_all(hold)
    assert first.waiting
    assert hold.next_deadline() == made.clock.now() + 30

    advance(made, 30)
    hold.expire()
    pump_all(hold)

    assert first.engine == "a"
    assert second.waiting
    assert first.selected is not None
    first.selected.guard.judge(Judgement.SUCCESS)
    first.selected.guard.release()
    pump_all(hold)
    assert second.engine == "a"


def test_who_waits_for_a_full_engine_is_refused_when_its_breaker_opens() -> None:
    settings = PoolSettings(max_in_flight_per_engine=1, breaker=BreakerSettings(failures=1))
    made = fleet(row("a"), settings=settings)
    hold = HoldQueue(made, clock=made.clock)
    running = selected(made, request())
    waiter = Waiter(hold, made, request())

    running.guard.judge(Judgement.FAILURE)
    running.guard.release()
    pump_all(hold)

    assert isinstance(waiter.error, NoAvailableEngine)
    assert not isinstance(waiter.error, HoldTimeout)
    assert waiter.error.retry_after == 30


def test_off_in_a_pool_and_on_in_another() -> None:
    off = PoolSettings(breaker=BreakerSettings(enabled=False))
    made = fleet(row("a"), settings=off)
    fail(made, "a", times=100)
    assert chosen(made, request()) == "a"


def test_switching_it_off_lets_the_engine_in_at_once() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    fail(made, "a")
    off = PoolSettings(breaker=BreakerSettings(enabled=False))
    made.apply(table([row("a")], settings=off, seq=2))
    assert chosen(made, request()) == "a"


def test_it_belongs_to_the_engine_not_to_the_row() -> None:
    made = fleet(row("a", "7"), settings=SETTINGS)
    fail(made, "a")
    made.apply(table([row("a", "8", zone="elsewhere")], fleet_max="8", seq=2))
    refused(made, request())
    made.apply(table([row("a", "8", url="http://other:1")], fleet_max="8", seq=3))
    assert chosen(made, request()) == "a"


@pytest.mark.parametrize("how", ["another process", "left and came back"])
def test_an_engine_that_begins_anew_begins_without_a_past(how: str) -> None:
    made = fleet(row("a", boot_id="1"), settings=SETTINGS)
    late = [selected(made, request()) for _ in range(4)]
    fail(made, "a")
    if how == "another process":
        made.apply(table([row("a", boot_id="2")], seq=2))
    else:
        made.apply(table([], seq=2))
        made.apply(table([row("a", boot_id="1")], seq=3))

    for result in late:
        result.guard.judge(Judgement.FAILURE)
        result.guard.release()

    assert chosen(made, request()) == "a"
    assert state(made, "a") is BreakerState.CLOSED


def test_a_plain_relay_has_it_too() -> None:
    made = fleet(row("a"), row("b"), settings=SETTINGS, rl_enabled=False)
    fail(made, "a")
    assert outcomes(made, request()) == {"b"}


def test_the_state_is_told_once_for_each_change() -> None:
    made = fleet(row("a"), settings=SETTINGS)
    told: list[tuple[str, BreakerState, BreakerState]] = []
    made.on_breaker = lambda engine, before: told.append((engine.id, before, engine.breaker.state))
    fail(made, "a")
    advance(made, 30)
    selected(made, request()).guard.release()
    fail(made, "a", times=1)
    assert told == [
        ("a", BreakerState.CLOSED, BreakerState.OPEN),
        ("a", BreakerState.OPEN, BreakerState.HALF_OPEN),
        ("a", BreakerState.HALF_OPEN, BreakerState.OPEN),
    ]


def test_a_closed_breaker_changes_nothing_that_is_computed_once() -> None:
    made = fleet(*(row(f"e{n}") for n in range(50)), settings=SETTINGS)
    pool = made.pool(POOL)
    assert pool is not None
    chosen(made, request())
    before = pool.default_eligible
    for judgement in (*[Judgement.SUCCESS] * 20, *[Judgement.FAILURE] * 20):
        result = made.select(request())
        assert isinstance(result, Selected)
        result.guard.judge(judgement)
        result.guard.release()
    assert pool.default_eligible is before
    assert not isinstance(made.select(request()), Wait)
