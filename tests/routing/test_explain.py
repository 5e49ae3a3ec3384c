"""What explain says is what selection does."""

import msgspec
import pytest

from steersman.engine import Trust
from steersman.errors import ModelNotFound, NoTable
from steersman.settings import PoolSettings, RoutingPolicy
from steersman_proxy.routing.explain import explain
from steersman_proxy.routing.hold import HoldQueue
from tests.routing.support import (
    CLOSED,
    POOL,
    Waiter,
    chosen,
    fleet,
    refused,
    request,
    row,
    selected,
)


def test_each_engine_has_its_reason_and_numbers() -> None:
    made = fleet(
        row("a"),
        row("b", paused=True),
        row("c", "6"),
        row("d", None, trust=Trust.UNSYNCED),
        row("e", released=("weights", "kv_cache")),
        row("f", gate=CLOSED),
    )
    held = selected(made, request(target="a"))
    told = explain(made, request("latest-only"))
    assert (told.pool, told.policy, told.fleet_max, told.epoch) == (POOL, "latest-only", "7", "1.1")
    assert (told.outcome, told.chosen) == ("select", "a")
    assert {one.id: (one.eligible, one.reason, one.sentence) for one in told.engines} == {
        "a": (True, None, "eligible"),
        "b": (False, "paused", "generation is paused"),
        "c": (False, "stale", "version 6 is too old for latest-only, the newest is 7"),
        "d": (False, "unsynced", "shows no version (unsynced) while the pool is at 7"),
        "e": (False, "asleep", "has released the memory of its weights and kv_cache"),
        "f": (False, "gate_closed", "closed for an operation"),
    }
    assert [one.in_flight for one in told.engines] == [1, 0, 0, 0, 0, 0]
    held.guard.release()


def test_asking_counts_nothing_and_takes_nobodys_turn() -> None:
    for policy in (RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LOAD_ONLY):
        made = fleet(row("a"), row("b"), row("c"), settings=PoolSettings(policy=policy))
        for _ in range(7):
            announced = explain(made, request()).chosen
            assert explain(made, request()).chosen == announced
            assert chosen(made, request()) == announced
        assert all(engine.load.requests == 0 for engine in made.engines())


def test_what_chance_decides_is_said_to_be_chance() -> None:
    made = fleet(row("a"), row("b"), settings=PoolSettings(policy=RoutingPolicy.POWER_OF_TWO))
    told = explain(made, request())
    assert (told.outcome, told.chosen) == ("select", None)
    assert told.summary == "one of 2 eligible engines, by chance"


def test_a_routing_key_shows_its_ranking() -> None:
    made = fleet(row("a"), row("b"), row("c"))
    told = explain(made, request(affinity="k"))
    ranks = {one.rank: one.id for one in told.engines}
    assert sorted(rank for rank in ranks if rank is not None) == [1, 2, 3]
    assert told.chosen == ranks[1] == chosen(made, request(affinity="k"))


def test_a_refusal_has_the_words_of_the_503() -> None:
    made = fleet(row("a", "5"), row("b", released=("weights",)))
    told = explain(made, request("latest-only"))
    assert told.outcome == "refuse"
    assert told.summary == str(refused(made, request("latest-only")))
    unknown = explain(made, request(target="zz"))
    assert unknown.summary == str(refused(made, request(target="zz")))


def test_full_and_excluded_engines_are_eligible_and_say_so() -> None:
    made = fleet(row("a"), row("b"), settings=PoolSettings(max_in_flight_per_engine=1))
    selected(made, request(target="a"))
    told = explain(made, request(excluded=frozenset({"b"})))
    assert told.outcome == "hold"
    assert [(one.eligible, one.reason) for one in told.engines] == [
        (True, "full"),
        (True, "excluded"),
    ]


def test_a_request_that_would_queue_up_is_told_so() -> None:
    made = fleet(row("a", paused=True))
    hold = HoldQueue(made, clock=made.clock)
    told = explain(made, request())
    assert told.outcome == "hold"
    assert (
        told.summary == "would wait for an engine of pool qwen: 1 paused (policy any, fleet max 7)"
    )
    waiter = Waiter(hold, made, request())
    assert explain(made, request()).waiting == 1
    waiter.cancel()


def test_it_can_be_sent_as_json() -> None:
    told = explain(fleet(row("a"), row("b", paused=True)), request())
    document = msgspec.json.decode(msgspec.json.encode(told))
    assert document["engines"][1]["reason"] == "paused"
    assert document["engines"][0]["gate"] == "open"


def test_without_table_or_pool_there_is_nothing_to_explain() -> None:
    with pytest.raises(NoTable):
        explain(fleet(), request())
    with pytest.raises(ModelNotFound):
        explain(fleet(row("a")), request(pool="other"))
