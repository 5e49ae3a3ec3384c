"""Waiting in the proxy: order, bounds, leaving, and not waiting in vain."""

from typing import Any

import pytest

from steersman.clock import FakeClock
from steersman.engine import Trust
from steersman.errors import (
    HoldFull,
    HoldTimeout,
    ModelNotFound,
    NoAvailableEngine,
)
from steersman.policy import LatestOnly
from steersman.settings import PoolSettings, RoutingPolicy
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import Selected
from tests.routing.support import (
    CLOSED,
    POOL,
    Waiter,
    chosen,
    fleet,
    pump_all,
    refused,
    request,
    row,
    selected,
    table,
    waits,
)
from tests.routing.world import World, settings


def test_a_request_waits_until_an_engine_opens() -> None:
    world = World()
    waiter = world.wait()
    world.clock.advance(3)
    assert not world.hold.pump()
    assert waiter.waiting
    assert waiter.ticket is not None
    assert waiter.ticket.waited == 3
    world.open("a")
    pump_all(world.hold)
    assert waiter.engine == "a"
    assert waiter.calls == 1
    assert waiter.selected is not None
    assert waiter.selected.engine.load.requests == 1
    world.clock.advance(50)
    assert waiter.ticket.waited == 3
    assert world.hold.depth(POOL) == 0


def test_entering_and_every_possible_cause_of_progress_wake_the_shell() -> None:
    world = World(limit=1)
    world.wait()
    assert world.wakes == 1
    world.open("a")
    pump_all(world.hold)
    second = world.wait()
    before = world.wakes
    engine = next(iter(world.fleet.engines()))
    world.fleet.set_health(engine, False)
    world.fleet.set_health(engine, True)
    assert world.wakes == before + 2
    world.fleet.observe(engine, "8")
    assert world.wakes == before + 3
    assert second.waiting


def test_nothing_wakes_the_shell_while_nobody_waits() -> None:
    world = World()
    world.open("a", "b")
    for _ in range(5):
        chosen(world.fleet, request())
    assert world.wakes == 0
    assert not world.hold.pump()


def test_first_come_is_first_served_and_newcomers_queue_up() -> None:
    world = World(limit=2)
    waiters = [world.wait() for _ in range(7)]
    world.open("a")
    # Before the queue was pumped a newcomer must not take what others wait for.
    waiters.append(world.wait())
    finished: list[Waiter] = []
    while len(finished) < len(waiters):
        pump_all(world.hold)
        served = [waiter for waiter in waiters if waiter.selected is not None]
        assert served == waiters[: len(served)]
        batch = [waiter for waiter in served if waiter not in finished]
        assert len(batch) <= 2
        for waiter in batch:
            assert waiter.selected is not None
            waiter.selected.guard.release()
        finished = served
    assert world.hold.depth(POOL) == 0


def test_lanes_do_not_block_each_other() -> None:
    world = World()
    strict = world.wait("min-version:8")
    loose = world.wait("any")
    world.open("a")
    pump_all(world.hold)
    assert loose.engine == "a"
    assert strict.waiting
    # A newcomer of the lane that has nobody waiting passes.
    assert chosen(world.fleet, request("any")) == "a"
    world.rows(row("a", "8"), row("b", "8"), fleet_max="8")
    pump_all(world.hold)
    assert strict.engine in {"a", "b"}


def test_lanes_that_want_the_same_are_served_by_arrival() -> None:
    world = World(limit=1)
    policies = ["any", "latest-only", "min-version:7", "any", "max-staleness:0", "latest-only"]
    waiters = [world.wait(policy) for policy in policies]
    world.open("a")
    for index in range(len(waiters)):
        pump_all(world.hold)
        assert [waiter.selected is not None for waiter in waiters] == [
            place <= index for place in range(len(waiters))
        ]
        current = waiters[index].selected
        assert current is not None
        current.guard.release()
        # What was just given back belongs to those who wait, whatever the newcomer's lane.
        if index < len(waiters) - 1:
            waits(world.fleet, request("max-staleness:5"))


def test_a_slice_bounds_one_turn() -> None:
    world = World(slice=10)
    waiters = [world.wait() for _ in range(35)]
    world.open("a", "b")
    for released in (10, 20, 30):
        assert world.hold.pump()
        assert [waiter.selected is not None for waiter in waiters] == [
            place < released for place in range(35)
        ]
    assert not world.hold.pump()
    assert all(waiter.selected is not None for waiter in waiters)


def test_newcomers_queue_up_behind_a_release_that_takes_several_turns() -> None:
    world = World(slice=2)
    waiters = [world.wait() for _ in range(5)]
    world.open("a", "b")
    assert world.hold.pump()
    waiters.append(world.wait())
    pump_all(world.hold)
    assert all(waiter.selected is not None for waiter in waiters)
    assert selected(world.fleet, request()).guard.load is not None


def test_what_one_release_costs_does_not_depend_on_how_many_wait() -> None:
    costs = []
    for depth in (10, 3000):
        world = World(limit=1)
        for place in range(depth):
            world.wait("any" if place % 2 else "latest-only")
        world.open("a")
        pump_all(world.hold)
        engine = next(iter(world.fleet.engines()))
        tried: list[object] = []
        dispatch = world.fleet.dispatch

        def counting(*args: Any, **kwargs: Any) -> Any:
            tried.append(args)  # noqa: B023
            return dispatch(*args, **kwargs)  # noqa: B023

        world.fleet.dispatch = counting  # type: ignore[method-assign]
        for _ in range(5):
            engine.load.requests -= 1
            world.fleet.waiting.of(POOL).mark_answered("a")
            pump_all(world.hold)
        costs.append(len(tried))
    assert costs[0] == costs[1]
    assert costs[0] <= 5 * 3


def test_requests_and_bytes_are_bounded() -> None:
    world = World(max_requests=3, max_bytes=100)
    world.wait(body_bytes=60)
    too_big = world.wait(body_bytes=41)
    assert isinstance(too_big.error, HoldFull)
    assert world.hold.bytes(POOL) == 60
    world.wait(body_bytes=40)
    world.wait(body_bytes=0)
    assert (world.hold.depth(POOL), world.hold.bytes(POOL)) == (3, 100)
    too_many = world.wait(body_bytes=0)
    assert isinstance(too_many.error, HoldFull)
    assert too_many.error.status == 503
    assert too_many.error.reasons == {"gate_closed": 2}
    assert "at most 3 requests with 100 bytes may wait: 2 gate closed" in str(too_many.error)


def test_whoever_leaves_is_gone_at_once_with_its_bytes() -> None:
    world = World(max_requests=3)
    first, second, third = (world.wait(body_bytes=size) for size in (1, 10, 100))
    second.cancel()
    second.cancel()
    assert (world.hold.depth(POOL), world.hold.bytes(POOL)) == (2, 101)
    fourth = world.wait(body_bytes=1000)
    world.open("a")
    pump_all(world.hold)
    third.cancel()
    assert [first.engine, second.engine, third.engine, fourth.engine] == ["a", None, "a", "a"]
    assert second.calls == 0
    assert world.hold.bytes(POOL) == 0


def test_thousands_that_leave_leave_nothing_behind() -> None:
    world = World()
    keeper = world.wait()
    for _ in range(5000):
        world.wait(body_bytes=7).cancel()
    lane = world.fleet.waiting.of(POOL).lane(waits(world.fleet, request()).lane)
    assert lane is not None
    assert len(lane._heap) < 100
    assert (world.hold.depth(POOL), world.hold.bytes(POOL)) == (1, 0)
    world.open("b")
    pump_all(world.hold)
    assert keeper.engine == "b"


def test_time_is_bounded_in_the_order_of_arrival() -> None:
    world = World(timeout=10)
    start = world.clock.now()
    first = world.wait()
    world.clock.advance(4)
    second = world.wait()
    assert world.hold.next_deadline() == start + 10
    world.clock.advance(5.9)
    world.hold.expire()
    assert first.waiting
    world.clock.advance(0.1)
    world.hold.expire()
    assert isinstance(first.error, HoldTimeout)
    assert str(first.error) == (
        "waited 10 s for an engine of pool qwen: 2 gate closed (policy any, fleet max 7)"
    )
    assert first.error.reasons == {"gate_closed": 2}
    assert second.waiting
    assert world.hold.next_deadline() == start + 14
    world.clock.advance(4)
    world.hold.expire()
    assert isinstance(second.error, HoldTimeout)
    assert world.hold.next_deadline() is None
    assert world.hold.bytes(POOL) == 0


def test_a_new_timeout_holds_for_those_who_wait_already() -> None:
    world = World(timeout=600)
    waiter = world.wait()
    world.rows(row("a", gate=CLOSED), settings=settings(timeout=5))
    assert world.hold.next_deadline() == world.clock.now() + 5
    pump_all(world.hold)
    assert waiter.waiting
    world.clock.advance(5)
    world.hold.expire()
    assert isinstance(waiter.error, HoldTimeout)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"released": ("weights",)}, "asleep"),
        ({"trust": Trust.UNSYNCED}, "unsynced"),
        ({"trust": Trust.UNCERTAIN, "gate": CLOSED}, "uncertain"),
        ({"failed": True}, "failed"),
        ({"version": "6"}, "stale"),
    ],
)
def test_nobody_waits_on_when_waiting_has_become_vain(
    changes: dict[str, object], reason: str
) -> None:
    world = World()
    waiters = [world.wait("latest-only") for _ in range(3)]
    world.rows(row("a", **changes), row("b", gate=CLOSED))
    pump_all(world.hold)
    assert all(waiter.waiting for waiter in waiters)
    world.rows(row("a", **changes), row("b", **changes))
    pump_all(world.hold)
    for waiter in waiters:
        assert isinstance(waiter.error, NoAvailableEngine)
        assert waiter.error.reasons == {reason: 2}
        assert waiter.calls == 1
    assert isinstance(refused(world.fleet, request("latest-only")), NoAvailableEngine)


def test_losing_health_ends_the_waiting_too() -> None:
    world = World()
    waiter = world.wait()
    for engine in world.fleet.engines():
        world.fleet.set_health(engine, False)
    pump_all(world.hold)
    assert isinstance(waiter.error, NoAvailableEngine)


def test_failing_many_is_sliced_like_releasing_them() -> None:
    world = World(slice=10)
    waiters = [world.wait() for _ in range(25)]
    world.rows(row("a", failed=True))
    assert world.hold.pump()
    assert sum(waiter.error is not None for waiter in waiters) == 10
    assert pump_all(world.hold) == 2
    assert all(waiter.error is not None for waiter in waiters)


def test_a_deleted_pool_fails_those_who_wait_for_it() -> None:
    world = World()
    waiters = [world.wait() for _ in range(100)]
    world.fleet.apply(table([], pools=[], seq=9))
    pump_all(world.hold)
    assert all(isinstance(waiter.error, ModelNotFound) for waiter in waiters)
    assert world.hold.depth(POOL) == 0
    assert POOL not in world.fleet.waiting.queues


def test_a_pool_that_returns_at_once_keeps_those_who_wait() -> None:
    world = World()
    waiter = world.wait()
    world.fleet.apply(table([], pools=[], seq=9))
    world.open("a")
    pump_all(world.hold)
    assert waiter.engine == "a"


def test_switching_hold_off_expires_those_who_wait() -> None:
    world = World()
    waiter = world.wait()
    world.rows(row("a", gate=CLOSED), settings=settings(timeout=0))
    pump_all(world.hold)
    assert isinstance(waiter.error, NoAvailableEngine)
    assert world.hold.depth(POOL) == 0


def test_a_request_waits_on_when_only_its_policy_keeps_the_open_engine_out() -> None:
    world = World()
    waiter = world.wait("latest-only")
    world.rows(row("a", "8", gate=CLOSED), row("b", "7"), fleet_max="8")
    pump_all(world.hold)
    assert waiter.waiting
    world.rows(row("a", "8"), row("b", "7"), fleet_max="8")
    pump_all(world.hold)
    assert waiter.engine == "a"


def test_a_changed_default_policy_holds_for_those_who_wait() -> None:
    world = World()
    waiter = world.wait()
    strict = PoolSettings(policy=RoutingPolicy.ROUND_ROBIN, version_policy=LatestOnly())
    world.rows(row("a", "6"), row("b", gate=CLOSED), settings=strict)
    pump_all(world.hold)
    assert waiter.waiting
    # It queues with those who want the same now.
    other = world.wait("latest-only")
    world.rows(row("a", "6"), row("b", "7"), settings=strict)
    pump_all(world.hold)
    assert (waiter.engine, other.engine) == ("b", "b")


def test_callbacks_may_do_anything() -> None:
    world = World(limit=1)
    world.open("a")
    first = selected(world.fleet, request())
    lane = waits(world.fleet, request()).lane
    log: list[str] = []

    def released(result: Selected) -> None:
        log.append("released")
        later.cancel()
        result.guard.release()
        assert world.hold.pump()  # says: later, not now
        again = world.hold.enter(
            request(), lane, on_release=lambda _: log.append("again"), on_fail=failed
        )
        assert not isinstance(again, Exception)

    def failed(error: Exception) -> None:
        log.append("failed")

    for _ in range(1):
        world.hold.enter(request(), lane, on_release=released, on_fail=failed)
    later = Waiter(world.hold, world.fleet, request())
    first.guard.release()
    pump_all(world.hold)
    assert log == ["released", "again"]
    assert later.calls == 0
    assert world.hold.depth(POOL) == 0


def test_a_failing_callback_does_not_lose_the_others() -> None:
    world = World()
    lane = waits(world.fleet, request()).lane

    def broken(_: object) -> None:
        raise RuntimeError("a bug in the shell")

    world.hold.enter(request(), lane, on_release=broken, on_fail=broken)
    second = world.wait()
    world.open("a")
    with pytest.raises(RuntimeError):
        world.hold.pump()
    pump_all(world.hold)
    assert second.engine == "a"
    assert world.hold.depth(POOL) == 0


def test_pools_wait_apart() -> None:
    pools = [
        *(table([], pools=None).pools),
    ]
    other = pools[0].__class__(name="other", settings=settings(max_requests=1))
    clock = FakeClock()
    made = fleet(clock=clock, settings=settings(max_requests=1))
    rows = [row("a", gate=CLOSED), row("b", gate=CLOSED, pool="other")]
    made.apply(table(rows, pools=[*pools, other]))
    hold = HoldQueue(made, clock=clock)
    mine = Waiter(hold, made, request(body_bytes=5))
    theirs = Waiter(hold, made, request(pool="other", body_bytes=6))
    assert (hold.bytes(POOL), hold.bytes("other"), hold.bytes("none")) == (5, 6, 0)
    made.apply(table([row("a"), rows[1]], pools=[*pools, other], seq=2))
    pump_all(hold)
    assert mine.engine == "a"
    assert theirs.waiting
    assert hold.depth("other") == 1
