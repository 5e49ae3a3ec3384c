"""The status of the real core: shape, sentences, conditions that are true."""

from typing import Any

import msgspec
import pytest

from steersman.engine import Control, Trust
from steersman_operator.api.conditions import ConditionType
from steersman_operator.api.status import (
    FleetFacts,
    PoolFacts,
    ProxyFacts,
    VersionFacts,
    status_of,
)
from steersman_operator.fleet.events import ProxyLost
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_operator.fleet.spec import Drift, EngineSpec, OnTimeout, PoolSpec, RolloutMode
from steersman_operator.fleet.state import EngineState, Phase, State, Timing
from tests.api import support
from tests.api.real import NO_FACTS, condition, engine, status, true_conditions
from tests.fleet.support import Bench, Truth

# --- shape ----------------------------------------------------------------------------------------


def keys(content: Any) -> Any:
    match content:
        case dict():
            return {name: keys(value) for name, value in content.items()}
        case list():
            return [keys(value) for value in content[:1]]
        case _:
            return None


def test_what_the_tests_of_the_commands_use_is_shaped_as_the_real_one() -> None:
    facts = FleetFacts(
        proxies={"x": ProxyFacts(pid=1, metrics_url="http://127.0.0.1:29000")},
        weight_versions=[VersionFacts(name="w", model="m", version="1")],
    )
    made = support.fleet(
        support.pool("pool", support.engine()),
        proxies=[support.proxy()],
        weight_versions=[support.weight_version()],
    )

    assert keys(status(Bench(), facts)) == keys(made)


def test_a_fleet_at_rest() -> None:
    bench = Bench("ab", proxies="xy")
    facts = FleetFacts(
        pid=17,
        uptime=12.34,
        endpoint="http://127.0.0.1:30000",
        metrics_url="http://127.0.0.1:28000",
        proxies={"x": ProxyFacts(pid=18)},
        pools={"pool": PoolFacts(file="m.yaml", line=3, created=1.5)},
    )

    content = status(bench, facts)

    assert content["operator"] == {
        "pid": 17,
        "term": 1,
        "leading": True,
        "published": True,
        "epoch": str(bench.state.epoch),
        "uptime": 12.3,
        "metrics_url": "http://127.0.0.1:28000",
    }
    assert [(one["uid"], one["pid"], one["listed"]) for one in content["proxies"]] == [
        ("x", 18, True),
        ("y", None, True),
    ]
    (pool,) = content["pools"]
    assert (pool["file"], pool["line"], pool["created"], pool["state"]) == (
        "m.yaml",
        3,
        1.5,
        "Active",
    )
    assert pool["counts"] == {
        "total": 2,
        "ready": 2,
        "open": 2,
        "closed": 0,
        "paused": 0,
        "asleep": 0,
    }
    assert pool["fleet_max"] == "1"
    assert [one["type"] for one in pool["conditions"]] == [kind.value for kind in ConditionType]
    assert true_conditions(bench) == ["Ready", "Synced"]
    assert engine(bench)["phase"] == "Settled"
    assert engine(bench)["problem"] == ""


def test_engines_are_shown_by_the_names_of_their_manifest() -> None:
    bench = Bench("a")
    named = EngineSpec(id="a", url="http://a:30000", name="first")
    bench.want(engines=(named,), overrides={"a": Control.PAUSED})
    bench.quiet.add("x")
    bench.in_flight["x", "a"] = 1
    bench.run(1)

    (pool,) = status(bench)["pools"]

    assert pool["engines"][0]["name"] == "first"
    assert pool["overrides"] == [{"engine": "first", "state": "Paused"}]
    assert condition(bench, ConditionType.PROGRESSING)[2].startswith("first: Draining, waiting")


# --- on the way -----------------------------------------------------------------------------------


def test_draining_says_which_proxy_is_waited_for() -> None:
    bench = Bench(proxies="xy")
    bench.in_flight["x", "a"] = 3
    bench.want(Control.PAUSED)
    bench.run(2)

    one = engine(bench)

    assert (one["phase"], one["desired"], one["becoming"]) == ("Draining", "paused", "paused")
    assert one["waiting"] == one["problem"] == "waiting for x (3 in flight)"
    assert one["in_flight"] == 3
    assert condition(bench, ConditionType.PROGRESSING) == (
        True,
        "Operation",
        "a: Draining, waiting for x (3 in flight)",
    )
    assert condition(bench, ConditionType.READY)[:2] == (False, "EnginesNotReady")
    assert not condition(bench, ConditionType.DEGRADED)[0]


def test_a_proxy_that_is_out_of_reach_is_named() -> None:
    bench = Bench(proxies="xy")
    bench.quiet.add("y")
    bench.do(ProxyLost(now=bench.now, proxy=bench.proxies["y"]))
    bench.want(Control.PAUSED)
    bench.run(5)

    assert "y (unreachable, silent for " in engine(bench)["waiting"]


def test_an_engine_that_is_busy_itself_is_waited_for() -> None:
    bench = Bench()
    bench.truths["a"].busy = 1
    bench.want(Control.PAUSED)
    bench.run(2)

    assert engine(bench)["waiting"] == (
        "all proxies have let go; waiting for the engine to say that it is idle"
    )


def test_what_is_in_flight_is_not_waited_for_in_place() -> None:
    bench = Bench(proxies="xy", mode=RolloutMode.IN_PLACE)
    bench.in_flight["x", "a"] = 3
    bench.quiet.add("y")
    bench.want(Control.PAUSED)
    bench.run(2)

    assert engine(bench)["waiting"] == "waiting for y (has not acknowledged)"


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase.CLAIMING, "writing down what is about to be done"),
        (Phase.EXECUTING, "waiting for the engine to answer: pause"),
        (Phase.VERIFYING, "looking whether it has become paused"),
    ],
)
def test_every_phase_says_what_it_does(phase: Phase, words: str) -> None:
    bench = Bench()
    bench.want(Control.PAUSED)
    bench.until_phase(phase)

    assert engine(bench)["phase"] == phase.value
    assert engine(bench)["waiting"] == words


def test_paused_as_asked_for_is_ready() -> None:
    bench = Bench("ab")
    bench.want(Control.PAUSED)
    assert bench.run(
        20, lambda: bench.settled(Control.PAUSED) and bench.settled(Control.PAUSED, "b")
    )

    (pool,) = status(bench)["pools"]
    assert pool["counts"]["ready"] == pool["counts"]["paused"] == pool["counts"]["closed"] == 2
    assert true_conditions(bench) == ["Ready", "Synced"]


# --- trouble --------------------------------------------------------------------------------------


def gave_up() -> Bench:
    bench = Bench("ab", drain_timeout=5.0, on_timeout=OnTimeout.FAIL)
    bench.in_flight["x", "a"] = 2
    bench.want(Control.PAUSED)
    assert bench.run(30, lambda: bench.engine().given_up is not None and bench.engine().op is None)
    return bench


def test_what_was_given_up_says_why() -> None:
    bench = gave_up()
    why = "not drained within 5 s: waiting for x (2 in flight)"

    assert engine(bench)["phase"] == "GivenUp"
    assert engine(bench)["problem"] == why
    assert engine(bench)["gate"] == "open", "it goes on serving"
    assert condition(bench, ConditionType.DEGRADED) == (True, "EnginesInTrouble", f"a: {why}")
    assert condition(bench, ConditionType.READY)[2] == f"a: {why}"


def test_a_change_of_mind_makes_an_old_failure_history() -> None:
    bench = gave_up()
    bench.want(Control.ACTIVE)
    assert bench.run(
        30, lambda: bench.settled(Control.ACTIVE) and bench.settled(Control.ACTIVE, "b")
    )

    assert true_conditions(bench) == ["Ready", "Synced"]
    assert engine(bench)["problem"] == ""


def test_on_the_way_back_the_failure_is_told() -> None:
    bench = Bench()
    bench.want(Control.ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=CallKind.SLEEP)
    bench.stop = None
    bench.end_call(Outcome.REFUSED)
    bench.until_phase(Phase.CLAIMING, call=CallKind.RESUME)

    one = engine(bench)

    assert one["phase"] == "Claiming"
    assert (one["becoming"], one["desired"]) == ("active", "asleep")
    assert "refused to sleep" in one["problem"]
    assert condition(bench, ConditionType.DEGRADED)[0]
    assert condition(bench, ConditionType.PROGRESSING)[0]


def test_a_wake_that_keeps_failing_is_degraded_while_it_is_tried() -> None:
    bench = Bench()
    bench.want(Control.ASLEEP)
    assert bench.run(20, lambda: bench.settled(Control.ASLEEP))
    bench.want(Control.ACTIVE)
    bench.until_phase(Phase.EXECUTING, call=CallKind.WAKE)
    bench.stop = None
    bench.end_call(Outcome.REFUSED)

    one = engine(bench)

    assert one["phase"] == "Draining"
    assert "refused to wake" in one["problem"]
    assert one["waiting"] == "waiting before the next try"
    assert "refused to wake" in condition(bench, ConditionType.DEGRADED)[2]


def test_an_engine_that_does_not_answer() -> None:
    bench = Bench("ab")
    bench.truths["a"].answers = False
    assert bench.run(60, lambda: not bench.engine().reachable)

    assert engine(bench)["phase"] == "Unreachable"
    assert condition(bench, ConditionType.DEGRADED)[2] == "a: does not answer"
    assert status(bench)["pools"][0]["counts"]["ready"] == 1


def test_why_an_engine_does_not_answer() -> None:
    bench = Bench("ab")
    bench.truths["a"].answers = False
    bench.truths["a"].detail = "the engine is sglang, but declared as vllm"
    assert bench.run(60, lambda: not bench.engine().reachable)

    assert engine(bench)["problem"] == "the engine is sglang, but declared as vllm"
    assert condition(bench, ConditionType.DEGRADED)[2] == (
        "a: the engine is sglang, but declared as vllm"
    )

    bench.truths["a"].answers = True
    bench.truths["a"].detail = ""
    assert bench.run(60, lambda: bench.engine().reachable)
    assert engine(bench)["problem"] == ""


def test_why_an_engine_does_not_say_that_it_is_idle() -> None:
    key = "the engine does not accept the data key"
    bench = Bench("ab", truths={"a": Truth(busy=None, detail=key), "b": Truth()})
    bench.want(Control.PAUSED, drain_timeout=20.0)
    assert bench.run(10, lambda: bench.engine("b").facts.control is Control.PAUSED)

    waits = "all proxies have let go; waiting for the engine to say that it is idle"
    assert engine(bench)["waiting"] == f"{waits} ({key})"

    assert bench.run(30, lambda: bench.engine().op is None)
    assert engine(bench)["problem"] == (
        "not drained within 20 s: all proxies have let go, "
        f"but the engine does not say that it is idle ({key})"
    )


def test_an_engine_that_never_answered() -> None:
    bench = Bench("ab", truths={"a": Truth(answers=False), "b": Truth()})
    assert bench.run(60, lambda: not bench.engine().reachable)

    assert not bench.engine().known
    assert engine(bench)["phase"] == "Unreachable"
    assert condition(bench, ConditionType.DEGRADED)[2] == "a: does not answer"


def test_lost_memory_is_given_up_until_it_restarts() -> None:
    bench = Bench()
    bench.truths["a"].shows_released = False
    bench.want(Control.ASLEEP)
    bench.until_phase(Phase.EXECUTING, call=CallKind.SLEEP)
    bench.stop = None
    bench.end_call(Outcome.UNKNOWN)
    assert bench.run(200, lambda: bench.engine().op is None)

    assert engine(bench)["phase"] == "GivenUp"
    assert engine(bench)["control"] == "unknown"
    assert "it stays closed until it is restarted" in engine(bench)["problem"]


def test_somebody_else_has_paused_it() -> None:
    bench = Bench("ab")
    bench.truths["a"].paused = True
    assert bench.run(20, lambda: bench.engine().external)

    assert engine(bench)["phase"] == "External"
    assert engine(bench)["problem"] == (
        "found paused, was put active; left alone, as drift is Observe"
    )
    assert condition(bench, ConditionType.EXTERNALLY_CONTROLLED) == (
        True,
        "Drift",
        "a: found paused, was put active; left alone, as drift is Observe",
    )
    assert not condition(bench, ConditionType.DEGRADED)[0], "trainers do that"


def test_drift_that_is_put_back_is_on_its_way() -> None:
    bench = Bench(drift=Drift.ENFORCE)
    bench.truths["a"].paused = True
    assert bench.run(20, lambda: bench.engine().op is not None)

    assert not condition(bench, ConditionType.EXTERNALLY_CONTROLLED)[0]
    assert condition(bench, ConditionType.PROGRESSING)[0]


def test_a_restarted_engine_has_not_shown_the_version() -> None:
    bench = Bench("ab")
    bench.truths["a"].restart()
    assert bench.run(20, lambda: bench.engine().trust is Trust.UNSYNCED)

    assert condition(bench, ConditionType.UNSYNCED)[2] == "a: shows no version, unsynced"
    bench.truths["b"].restart()
    assert bench.run(20, lambda: bench.engine("b").trust is Trust.UNSYNCED)
    assert condition(bench, ConditionType.UNSYNCED)[0], "also when nobody has it any more"


def test_most_of_a_fleet_is_kept_for_a_while() -> None:
    bench = Bench("abcd")
    bench.want(engines=bench.pool.engines[:1])

    assert condition(bench, ConditionType.REMOVAL_HELD_BACK)[2] == (
        "b: not in the spec; c: not in the spec; d: not in the spec"
    )
    assert engine(bench, "b")["leaving"]
    assert condition(bench, ConditionType.READY)[0], "what is wanted is there"


def test_a_pool_without_engines_is_not_ready() -> None:
    bench = Bench()
    bench.want(engines=())

    assert condition(bench, ConditionType.READY) == (False, "NoEngines", "it has no engines")


def test_conflicts_and_bad_manifests() -> None:
    facts = FleetFacts(
        pools={
            "pool": PoolFacts(
                errors=["m.yaml:7: spec.state: must be Active, Paused or Asleep"],
                conflicts=["a:30000 is also named by RolloutEngine other (b.yaml:3)"],
            )
        },
        errors=["m.yaml:7: spec.state: must be Active, Paused or Asleep"],
    )
    bench = Bench()

    assert condition(bench, ConditionType.CONFLICT, facts) == (
        True,
        "ClaimedTwice",
        "a:30000 is also named by RolloutEngine other (b.yaml:3)",
    )
    assert condition(bench, ConditionType.MANIFEST_INVALID, facts) == (
        True,
        "LastGoodVersionInForce",
        "m.yaml:7: spec.state: must be Active, Paused or Asleep",
    )
    assert status(bench, facts)["errors"] == facts.errors
    assert condition(bench, ConditionType.READY, facts)[0], "what is in force is good"


def test_a_pool_that_has_lost_something_is_not_ready() -> None:
    lost = (
        "other (b.yaml:3) and pool (m.yaml:1) both serve the model 'm'; other has it and keeps it"
    )
    mine = FleetFacts(pools={"pool": PoolFacts(conflicts=[lost], lost=[lost])})

    assert condition(Bench(), ConditionType.READY, mine) == (False, "Conflict", lost)


def test_a_message_names_few_engines_and_counts_the_others() -> None:
    bench = Bench("abcdefgh")
    bench.quiet.add("x")
    bench.want(Control.PAUSED)
    bench.run(1)

    message = condition(bench, ConditionType.PROGRESSING)[2]

    assert message.count("Draining") == 5
    assert message.endswith("; and 3 more")


def test_an_engine_not_yet_acted_upon_is_pending() -> None:
    spec = EngineSpec(id="a", url="http://a:1")
    pool = PoolSpec(name="p", models=("m",), engines=(spec,), state=Control.PAUSED)
    known = EngineState(spec=spec, pool="p", known=True)
    facts = msgspec.structs.replace(known.facts, paused=False, released=())
    known = msgspec.structs.replace(known, facts=facts)
    state = State(pools={"p": pool}, engines={"a": known})

    content = status_of(state, timing=Timing(), now=0.0, facts=NO_FACTS)

    assert content["pools"][0]["engines"][0]["phase"] == "Pending"


def test_an_engine_that_does_not_answer_is_not_said_to_be_in_a_state() -> None:
    bench = Bench("ab")
    bench.want(Control.ASLEEP)
    assert bench.run(20, lambda: bench.settled(Control.ASLEEP, "a"))
    bench.truths["a"].answers = False
    bench.run(60)

    (found,) = status(bench)["pools"]
    words = {one["id"]: one["control"] for one in found["engines"]}
    assert words["a"] == "unknown"
    assert found["counts"]["asleep"] == 1
