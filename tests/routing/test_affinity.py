"""Routing keys: where they go, where they go meanwhile, and that they come back."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from steersman.clock import FakeClock
from steersman.engine import EngineRow, Trust
from steersman.errors import NoAvailableEngine
from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy
from steersman_proxy.load.breaker import Breaker, Cooldowns
from steersman_proxy.load.inflight import EngineLoad
from steersman_proxy.routing.affinity import REMEMBERED_RANKS, Rendezvous, digest, scores
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from tests.routing.support import (
    CLOSED,
    chosen,
    fleet,
    outcomes,
    refused,
    request,
    row,
    selected,
    table,
    waits,
)

KEYS = [f"session-{n}" for n in range(200)]


def rendezvous(ids: Iterable[str]) -> Rendezvous:
    breaker = Breaker(Cooldowns(FakeClock()))
    return Rendezvous(Engine(row(name), load=EngineLoad(), breaker=breaker) for name in ids)


def order(of: Rendezvous, key: str) -> list[str]:
    return [engine.id for engine in of.ranked(key)]


def rows(count: int, **closed: dict[str, object]) -> list[EngineRow]:
    return [row(f"e{n}", **closed.get(f"e{n}", {})) for n in range(count)]


def owners(made: Fleet) -> dict[str, str]:
    return {key: chosen(made, request(affinity=key)) for key in KEYS}


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_a_key_pins_under_every_policy(policy: RoutingPolicy) -> None:
    made = fleet(*rows(5), settings=PoolSettings(policy=policy))
    for key in KEYS[:20]:
        assert len(outcomes(made, request(affinity=key), count=5)) == 1
    assert len(set(owners(made).values())) == 5


def test_keys_are_spread_evenly() -> None:
    ranking = rendezvous(f"engine-{n}" for n in range(8))
    first, second = Counter[str](), Counter[str]()
    for n in range(16_000):
        ranked = order(ranking, f"key {n}")
        first[ranked[0]] += 1
        second[ranked[1]] += 1
    for counts in (first, second):
        assert len(counts) == 8
        assert min(counts.values()) > 1850
        assert max(counts.values()) < 2150


def test_the_keys_of_one_closed_engine_spread_over_all_others() -> None:
    ranking = rendezvous(f"engine-{n}" for n in range(5))
    heirs = Counter(
        ranked[1] for n in range(10_000) if (ranked := order(ranking, f"key {n}"))[0] == "engine-3"
    )
    assert len(heirs) == 4
    assert min(heirs.values()) > 420
    assert max(heirs.values()) < 580


def test_only_the_keys_of_a_leaver_move_and_a_newcomer_takes_its_share() -> None:
    before = rendezvous(f"e{n}" for n in range(8))
    after = rendezvous(f"e{n}" for n in range(8) if n != 3)
    moved = 0
    for key in KEYS:
        old, new = order(before, key)[0], order(after, key)[0]
        if old == "e3":
            assert new == order(before, key)[1]
            moved += 1
        else:
            assert new == old
    assert 10 < moved < 45


def test_rankings_are_the_same_in_every_process() -> None:
    program = (
        "from tests.routing.test_affinity import rendezvous, order\n"
        "ids = [f'e{n}' for n in range(30)]\n"
        "print(order(rendezvous(ids), 'a key with spaces and \\u00e9'))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    here = order(rendezvous(reversed([f"e{n}" for n in range(30)])), "a key with spaces and \u00e9")
    assert answers == {f"{here}\n"}


def test_hashes_are_fixed_for_ever() -> None:
    # Changing these moves every conversation of a running fleet during an upgrade.
    assert digest("session-1") == 0xAE49BD2CD463E7AC
    assert scores([digest("e0")], digest("session-1")) == [0xE6D25CC108506974]


def test_the_whole_ranking_is_there_beyond_what_is_remembered() -> None:
    ids = [f"e{n}" for n in range(REMEMBERED_RANKS * 4)]
    ranking = rendezvous(ids)
    ranked = order(ranking, "k")
    assert sorted(ranked) == sorted(ids)
    assert ranked == order(ranking, "k")
    found = scores([digest(name) for name in ranked], digest("k"))
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "out",
    [
        {"paused": True},
        {"gate": CLOSED},
        {"released": ("kv_cache",)},
        {"trust": Trust.UNCERTAIN},
        {"failed": True},
        {"version": "1"},
    ],
)
def test_the_next_ranked_serves_while_the_owner_is_out_and_the_key_returns(
    out: dict[str, object],
) -> None:
    made = fleet(*rows(6))
    before = owners(made)
    ranking = made.view.pools["qwen"].rendezvous(row("x").role) if made.view else None
    assert ranking is not None
    made.apply(table(rows(6, e2=out), seq=2))
    for key, engine in before.items():
        now = chosen(made, request("latest-only", affinity=key))
        assert now == (order(ranking, key)[1] if engine == "e2" else engine)
    made.apply(table(rows(6), seq=3))
    assert owners(made) == before


def test_a_newcomer_takes_only_its_share_and_rows_may_change_order() -> None:
    made = fleet(*rows(6))
    before = owners(made)
    made.apply(table(reversed(rows(7)), seq=2))
    moved = {key: engine for key, engine in owners(made).items() if engine != before[key]}
    assert set(moved.values()) == {"e6"}
    assert 10 < len(moved) < 50


def sticky(*, limit: int = 0, timeout: float = 600.0) -> PoolSettings:
    return PoolSettings(
        policy=RoutingPolicy.STICKY,
        sticky_pause=True,
        max_in_flight_per_engine=limit,
        hold=HoldSettings(timeout=timeout),
    )


def key_of(made: Fleet, engine: str) -> str:
    """A key that belongs to ``engine``."""
    assert made.view is not None
    ranking = made.view.pools["qwen"].rendezvous(row("x").role)
    return next(key for key in KEYS if order(ranking, key)[0] == engine)


def test_sticky_pause_waits_for_the_owner_while_it_is_being_changed() -> None:
    made = fleet(*rows(4, e1={"gate": CLOSED}), settings=sticky())
    key = key_of(made, "e1")
    assert waits(made, request(affinity=key)).lane.engine == "e1"
    assert chosen(made, request(affinity=key_of(made, "e2"))) == "e2"
    assert chosen(made, request()) != "e1"


@pytest.mark.parametrize("out", [{"released": ("weights",)}, {"failed": True}, {"version": "1"}])
def test_sticky_pause_does_not_wait_for_an_owner_that_no_operation_brings_back(
    out: dict[str, object],
) -> None:
    made = fleet(*rows(4, e1=out), settings=sticky())
    assert chosen(made, request("latest-only", affinity=key_of(made, "e1"))) != "e1"


def test_sticky_pause_needs_hold() -> None:
    made = fleet(*rows(4, e1={"paused": True}), settings=sticky(timeout=0))
    assert chosen(made, request(affinity=key_of(made, "e1"))) != "e1"


def test_a_full_owner_is_waited_for_only_under_sticky_pause() -> None:
    waiting = fleet(*rows(3), settings=sticky(limit=1))
    key = key_of(waiting, "e1")
    assert selected(waiting, request(affinity=key)).engine.id == "e1"
    assert waits(waiting, request(affinity=key)).lane.engine == "e1"

    moving = fleet(*rows(3), settings=PoolSettings(max_in_flight_per_engine=1))
    first, second, third = (selected(moving, request(affinity=key)) for _ in range(3))
    assert first.engine.id == "e1"
    assert {second.engine.id, third.engine.id} == {"e0", "e2"}
    assert waits(moving, request(affinity=key)).lane.engine is None


def test_a_retry_with_a_key_goes_to_the_next_ranked() -> None:
    made = fleet(*rows(3), settings=sticky())
    key = key_of(made, "e1")
    again = chosen(made, request(affinity=key, excluded=frozenset({"e1"})))
    assert again != "e1"
    gone = frozenset({"e0", "e1", "e2"})
    assert isinstance(refused(made, request(affinity=key, excluded=gone)), NoAvailableEngine)


def test_a_key_in_a_pool_without_engines_is_refused() -> None:
    made = fleet(row("a"))
    made.apply(table([], seq=2))
    assert str(refused(made, request(affinity="k"))) == (
        "no engine of pool qwen may take this request: it has none"
    )


def test_the_first_is_the_first_of_the_ranking() -> None:
    ranking = rendezvous("abcdefg")
    for number in range(300):
        key = f"session-{number}"
        assert ranking.first(key) is next(ranking.ranked(key))
    assert Rendezvous(()).first("key") is None
