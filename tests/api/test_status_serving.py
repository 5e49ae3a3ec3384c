"""What the status calls open and ready, and what it says of an operation that disturbs requests."""

import msgspec
import pytest

from steersman.engine import Control, Trust
from steersman.settings import PoolSettings
from steersman_operator.api.conditions import ConditionType
from steersman_operator.api.status import status_of
from steersman_operator.fleet.events import Elected
from steersman_operator.fleet.spec import OnTimeout
from steersman_operator.fleet.state import Phase
from tests.api.real import NO_FACTS, condition, engine, status
from tests.fleet.support import Bench


def test_an_engine_that_has_not_shown_the_version_is_neither_open_nor_ready() -> None:
    bench = Bench("ab")
    bench.truths["a"].restart()
    assert bench.run(
        20, lambda: bench.engine().trust is Trust.UNSYNCED and bench.engine().op is None
    )
    why = "takes no requests until it shows version 1"

    one = engine(bench)

    assert (one["gate"], one["takes_requests"], one["withheld"]) == ("open", False, why)
    (pool,) = status(bench)["pools"]
    assert (pool["counts"]["open"], pool["counts"]["ready"]) == (1, 1)
    assert condition(bench, ConditionType.READY) == (False, "EnginesNotReady", f"a: {why}")


def test_it_is_if_the_pool_admits_it() -> None:
    bench = Bench("ab", settings=PoolSettings(admit_unsynced=True))
    bench.truths["a"].restart()
    assert bench.run(
        20, lambda: bench.engine().trust is Trust.UNSYNCED and bench.engine().op is None
    )

    assert engine(bench)["takes_requests"]
    assert status(bench)["pools"][0]["counts"]["ready"] == 2
    assert condition(bench, ConditionType.READY)[0]
    assert condition(bench, ConditionType.UNSYNCED)[0], "that is still worth knowing"


def test_nothing_is_ready_or_open_before_the_first_table() -> None:
    bench = Bench()
    assert engine(bench)["gate"] == "open"
    bench.do(Elected(now=bench.now, term=2))

    assert not bench.state.published
    assert condition(bench, ConditionType.READY)[:2] == (False, "NotPublished")
    assert engine(bench)["phase"] == "Unknown"
    assert engine(bench)["gate"] == "closed"
    assert status(bench)["pools"][0]["counts"]["open"] == 0


def test_what_is_known_waits_for_the_first_table() -> None:
    bench = Bench()
    state = msgspec.structs.replace(bench.state, published=False)

    content = status_of(state, timing=bench.timing, now=bench.now, facts=NO_FACTS)

    (one,) = content["pools"][0]["engines"]
    assert (one["gate"], one["takes_requests"], one["phase"]) == ("closed", False, "Pending")
    assert one["problem"] == one["waiting"] == "waiting for the first table"
    assert content["pools"][0]["counts"]["ready"] == 0


@pytest.mark.parametrize(
    ("boot", "shown"),
    [("sglang-12ab", "sglang"), ("vllm-17.5", "vllm"), ("other-1", "unknown"), (None, "unknown")],
)
def test_the_runtime_that_was_found_is_shown(boot: str | None, shown: str) -> None:
    bench = Bench()
    known = bench.engine()
    facts = msgspec.structs.replace(known.facts, boot_id=boot)
    state = msgspec.structs.replace(
        bench.state, engines={"a": msgspec.structs.replace(known, facts=facts)}
    )

    (pool,) = status_of(state, timing=bench.timing, now=bench.now, facts=NO_FACTS)["pools"]

    assert pool["runtime"] == pool["engines"][0]["runtime"] == shown


def test_what_is_disturbed_is_told_while_an_operation_goes_on_regardless() -> None:
    bench = Bench(proxies="xy", drain_timeout=5.0, on_timeout=OnTimeout.PROCEED)
    bench.in_flight["x", "a"] = 2
    bench.in_flight["y", "a"] = 1
    bench.want(Control.PAUSED)
    bench.until_phase(Phase.CLAIMING)

    assert (
        engine(bench)["waiting"]
        == "writing down what is about to be done, going on with 3 in flight"
    )
    bench.until_phase(Phase.EXECUTING)
    assert (
        engine(bench)["waiting"]
        == "waiting for the engine to answer: pause, going on with 3 in flight"
    )
