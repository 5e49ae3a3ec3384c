"""How one engine is chosen among the eligible ones without a routing key."""

from collections import Counter

import pytest

from steersman.settings import PoolSettings, RoutingPolicy
from steersman_proxy.load.levels import LoadLevels, rotate
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import Selected
from tests.routing.support import (
    POOL,
    chosen,
    fleet,
    outcomes,
    refused,
    request,
    row,
    selected,
    waits,
)


def of_policy(policy: RoutingPolicy, engines: int, *, limit: int = 0, seed: int = 1) -> Fleet:
    return fleet(
        *(row(f"e{n}") for n in range(engines)),
        settings=PoolSettings(policy=policy, max_in_flight_per_engine=limit),
        seed=seed,
    )


def take(made: Fleet, count: int) -> list[Selected]:
    """So many requests, all kept in flight."""
    return [selected(made, request()) for _ in range(count)]


def in_flight(made: Fleet) -> list[int]:
    return [engine.load.requests for engine in made.engines()]


def test_round_robin_takes_each_engine_in_its_turn() -> None:
    made = of_policy(RoutingPolicy.ROUND_ROBIN, 5)
    order = [chosen(made, request()) for _ in range(10)]
    assert order[:5] == order[5:]
    assert sorted(order[:5]) == ["e0", "e1", "e2", "e3", "e4"]


def test_round_robin_starts_anywhere_after_a_change() -> None:
    starts = {
        chosen(of_policy(RoutingPolicy.ROUND_ROBIN, 8, seed=seed), request()) for seed in range(99)
    }
    assert len(starts) == 8


def test_alternating_version_policies_do_not_share_a_turn() -> None:
    made = of_policy(RoutingPolicy.ROUND_ROBIN, 2)
    served: dict[str, set[str]] = {"any": set(), "latest-only": set()}
    for _ in range(4):
        for policy, engines in served.items():
            engines.add(chosen(made, request(policy)))
    assert served == {"any": {"e0", "e1"}, "latest-only": {"e0", "e1"}}


@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_random_chooses_evenly(count: int) -> None:
    made = of_policy(RoutingPolicy.RANDOM, count)
    drawn = Counter(chosen(made, request()) for _ in range(1000 * count))
    assert len(drawn) == count
    assert min(drawn.values()) > 880
    assert max(drawn.values()) < 1120


@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_power_of_two_draws_evenly_where_loads_are_equal(count: int) -> None:
    made = of_policy(RoutingPolicy.POWER_OF_TWO, count)
    drawn = Counter(chosen(made, request()) for _ in range(1000 * count))
    assert len(drawn) == count
    assert min(drawn.values()) > 880
    assert max(drawn.values()) < 1120


def test_power_of_two_never_takes_the_most_loaded_engine() -> None:
    made = of_policy(RoutingPolicy.POWER_OF_TWO, 4)
    busy = next(iter(made.engines()))
    busy.load.requests = 50
    assert outcomes(made, request(), count=300) == {"e1", "e2", "e3"}


@pytest.mark.parametrize(
    ("policy", "spread"),
    [(RoutingPolicy.ROUND_ROBIN, 0), (RoutingPolicy.LOAD_ONLY, 0), (RoutingPolicy.POWER_OF_TWO, 3)],
)
def test_requests_spread_over_a_fleet_that_keeps_them(policy: RoutingPolicy, spread: int) -> None:
    made = of_policy(policy, 10)
    take(made, 1000)
    loads = in_flight(made)
    assert sum(loads) == 1000
    assert max(loads) - min(loads) <= 2 * spread


def test_load_only_takes_the_least_loaded_and_rotates_among_equals() -> None:
    made = of_policy(RoutingPolicy.LOAD_ONLY, 4)
    assert {chosen(made, request()) for _ in range(4)} == {"e0", "e1", "e2", "e3"}
    held = take(made, 6)
    least = {engine.id for engine in made.engines() if engine.load.requests == 1}
    assert len(least) == 2
    assert {selected(made, request()).engine.id for _ in range(2)} == least
    freed = held[0].engine
    held[0].guard.release()
    assert chosen(made, request()) == freed.id


def test_load_only_looks_at_eligible_engines_alone() -> None:
    made = fleet(
        row("old", "6"), row("new", "7"), settings=PoolSettings(policy=RoutingPolicy.LOAD_ONLY)
    )
    for _ in range(5):
        assert selected(made, request("latest-only")).engine.id == "new"
    assert selected(made, request("any")).engine.id == "old"


@pytest.mark.parametrize("policy", list(RoutingPolicy))
@pytest.mark.parametrize("engines", [1, 3, 40])
def test_no_engine_gets_more_than_the_limit_and_all_room_is_used(
    policy: RoutingPolicy, engines: int
) -> None:
    made = of_policy(policy, engines, limit=4)
    held = take(made, 4 * engines)
    assert in_flight(made) == [4] * engines
    waits(made, request())
    held[7 % len(held)].guard.release()
    assert selected(made, request()).engine is held[7 % len(held)].engine
    waits(made, request())


def test_all_full_is_refused_where_hold_is_off() -> None:
    hold = PoolSettings().hold.__class__(timeout=0)
    made = fleet(
        row("a"), row("b", "6"), settings=PoolSettings(max_in_flight_per_engine=1, hold=hold)
    )
    take(made, 2)
    assert str(refused(made, request())) == (
        "no engine of pool qwen may take this request: 2 full (policy any, fleet max 7)"
    )


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_a_single_engine_serves_under_every_policy(policy: RoutingPolicy) -> None:
    assert outcomes(of_policy(policy, 1), request()) == {"e0"}


@pytest.mark.parametrize("policy", [RoutingPolicy.STICKY, RoutingPolicy.CONSISTENT_HASHING])
def test_requests_without_a_key_follow_the_load(policy: RoutingPolicy) -> None:
    made = of_policy(policy, 3)
    next(iter(made.engines())).load.requests = 50
    assert outcomes(made, request(), count=100) == {"e1", "e2"}


def test_limited_choice_is_even_among_those_with_room() -> None:
    made = of_policy(RoutingPolicy.POWER_OF_TWO, 40, limit=2)
    pool = made.pool(POOL)
    assert pool is not None
    for engine in pool.engines[:30]:
        engine.load.requests = 2
    drawn = Counter(chosen(made, request()) for _ in range(5000))
    assert set(drawn) == {f"e{n}" for n in range(30, 40)}
    assert min(drawn.values()) > 400
    assert max(drawn.values()) < 600


def test_levels_find_the_least_loaded_of_any_set() -> None:
    levels = LoadLevels([3, 0, 1, 3])
    assert levels.least(0b1111) == 0b0010
    assert levels.least(0b1101) == 0b0100
    assert levels.least(0b1001) == 0b1001
    assert levels.least(0) == 0
    levels.move(0b0010, old=0, new=200)
    assert list(levels.ascending(0b1111)) == [0b0100, 0b1001, 0b0010]
    levels.move(0b0010, old=200, new=0)
    assert levels.least(0b1111) == 0b0010


def test_rotation_goes_round() -> None:
    assert [rotate(0b10110, after=after) for after in (-1, 0, 1, 2, 3, 4, 90)] == [
        1,
        1,
        2,
        4,
        4,
        1,
        1,
    ]
    with pytest.raises(ValueError, match="no bit"):
        rotate(0, after=0)
