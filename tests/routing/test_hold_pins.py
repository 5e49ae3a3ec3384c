"""Waiting for one engine: targets, and owners of routing keys under ``sticky_pause``."""

import pytest

from steersman.errors import TargetUnavailable
from steersman_proxy.routing.fleet import Fleet
from tests.routing.support import CLOSED, POOL, pump_all, refused, request, row, selected
from tests.routing.world import World


def test_a_full_target_is_waited_for_without_blocking_others() -> None:
    world = World(limit=1)
    world.open("a", "b")
    held = selected(world.fleet, request(target="a"))
    target = world.wait(target="a")
    # Another one goes to the engine with room.
    assert selected(world.fleet, request()).engine.id == "b"
    held.guard.release()
    pump_all(world.hold)
    assert target.engine == "a"


def test_a_target_that_is_taken_out_meanwhile_fails_its_request() -> None:
    world = World(limit=1)
    world.open("a", "b")
    selected(world.fleet, request(target="a"))
    target = world.wait(target="a")
    world.open("b")
    pump_all(world.hold)
    assert isinstance(target.error, TargetUnavailable)
    assert target.error.reasons == {"gate_closed": 1}


def test_a_target_that_leaves_the_table_fails_its_request() -> None:
    world = World(limit=1)
    world.open("a", "b")
    selected(world.fleet, request(target="a"))
    target = world.wait(target="a")
    world.rows(row("b"))
    pump_all(world.hold)
    assert isinstance(target.error, TargetUnavailable)


def test_an_unknown_target_is_refused_at_once_though_others_wait() -> None:
    world = World()
    others = [world.wait() for _ in range(3)]
    assert isinstance(refused(world.fleet, request(target="zz")), TargetUnavailable)
    assert all(waiter.waiting for waiter in others)


def test_a_target_that_just_left_is_refused_at_once_though_others_waited_for_it() -> None:
    world = World(limit=1)
    world.open("a", "b")
    selected(world.fleet, request(target="a"))
    waiting = world.wait(target="a")
    world.rows(row("b"))
    assert isinstance(refused(world.fleet, request(target="a")), TargetUnavailable)
    assert waiting.waiting
    pump_all(world.hold)
    assert isinstance(waiting.error, TargetUnavailable)


def test_a_target_that_leaves_is_refused_at_once_though_others_wait() -> None:
    world = World(limit=1)
    world.open("a", "b")
    for name in "ab":
        selected(world.fleet, request(target=name))
    others = [world.wait() for _ in range(3)]
    target = world.wait(target="a")
    world.rows(row("b"))
    pump_all(world.hold)
    assert isinstance(target.error, TargetUnavailable)
    assert all(waiter.waiting for waiter in others)


def keys_by_owner(made: Fleet) -> dict[str, str]:
    """A routing key for each engine."""
    pool = made.pool(POOL)
    assert pool is not None
    found: dict[str, str] = {}
    for n in range(500):
        owner = pool.rendezvous(row("x").role).first(f"key-{n}")
        assert owner is not None
        found.setdefault(owner.id, f"key-{n}")
    return found


def test_sticky_pause_waits_for_the_owner_and_blocks_nobody() -> None:
    world = World(sticky=True)
    keys = keys_by_owner(world.fleet)
    mine = world.wait(affinity=keys["a"])
    other = world.wait(affinity=keys["b"])
    anybody = world.wait()
    world.open("b")
    pump_all(world.hold)
    assert mine.waiting
    assert other.engine == "b"
    assert anybody.engine == "b"
    world.open("a", "b")
    pump_all(world.hold)
    assert mine.engine == "a"


def test_when_the_owner_is_lost_the_next_ranked_serves_those_who_waited() -> None:
    world = World(sticky=True)
    keys = keys_by_owner(world.fleet)
    waiters = [world.wait(affinity=keys["a"]) for _ in range(3)]
    world.rows(row("a", failed=True), row("b"))
    world.hold.pump()
    assert [waiter.engine for waiter in waiters] == ["b"] * 3


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_when_the_owner_is_lost_those_who_waited_join_the_others_in_order_of_arrival(
    limit: int,
) -> None:
    world = World(sticky=True, limit=limit)
    keys = keys_by_owner(world.fleet)
    waiters = [world.wait(**({"affinity": keys["a"]} if place % 2 else {})) for place in range(6)]
    world.rows(row("a", released=("weights",)), row("b"))
    for index in range(6):
        world.hold.pump()
        current = waiters[index].selected
        assert current is not None
        released = [waiter.selected is not None for waiter in waiters]
        assert released == [place < index + limit for place in range(6)]
        current.guard.release()


@pytest.mark.parametrize("turn", [1, 7, 64])
def test_keys_that_a_newcomer_takes_wait_for_the_newcomer(turn: int) -> None:
    world = World(sticky=True, slice=turn)
    waiters = [world.wait(affinity=f"key-{n}") for n in range(60)]
    both = [row("a", gate=CLOSED), row("b", gate=CLOSED)]
    world.rows(*both, row("c"), settings=world.settings)
    pump_all(world.hold)
    served = [waiter for waiter in waiters if waiter.selected is not None]
    assert {waiter.engine for waiter in served} == {"c"}
    assert 8 < len(served) < 35
    world.rows(row("a"), row("b"), row("c"))
    pump_all(world.hold)
    assert {waiter.engine for waiter in waiters if waiter not in served} == {"a", "b"}


def test_a_displaced_key_without_sticky_pause_waits_like_anybody() -> None:
    world = World()
    keys = keys_by_owner(world.fleet)
    waiter = world.wait(affinity=keys["a"])
    world.open("b")
    pump_all(world.hold)
    assert waiter.engine == "b"
