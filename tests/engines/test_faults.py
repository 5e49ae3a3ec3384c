"""Every change × everything that can go wrong on its way: the outcome never claims too much.

``REFUSED`` is said only of an engine that is what it was, ``OK`` only of one that is what was
wanted; what may have happened is ``UNKNOWN``.
"""

from typing import Any

import pytest

from steersman.engine import Runtime
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Outcome
from steersman_sim.engine import Fault
from tests.engines.support import (
    CALLS as KINDS,
)
from tests.engines.support import (
    RUNTIMES,
    TIMEOUT,
    Steered,
    held,
    once,
    once_after,
    paused,
    released,
    steered,
)

ROUTES = {
    (Runtime.SGLANG, CallKind.PAUSE): "/pause_generation",
    (Runtime.SGLANG, CallKind.RESUME): "/continue_generation",
    (Runtime.SGLANG, CallKind.SLEEP): "/release_memory_occupation",
    (Runtime.SGLANG, CallKind.WAKE): "/resume_memory_occupation",
    (Runtime.SGLANG, CallKind.REFIT): "/update_weights_from_disk",
    (Runtime.SGLANG, CallKind.LABEL): "/update_weight_version",
    (Runtime.VLLM, CallKind.PAUSE): "/pause",
    (Runtime.VLLM, CallKind.RESUME): "/resume",
    (Runtime.VLLM, CallKind.SLEEP): "/sleep",
    (Runtime.VLLM, CallKind.WAKE): "/wake_up",
    (Runtime.VLLM, CallKind.REFIT): "/collective_rpc",
    (Runtime.VLLM, CallKind.LABEL): "/update_weight_version",
}

CALLS = pytest.mark.parametrize("kind", KINDS)
BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


async def prepare(it: Steered, kind: CallKind) -> None:
    """Bring the engine to where the call belongs."""
    if kind is not CallKind.PAUSE:
        assert (await it.pause()).ok
    if kind is CallKind.WAKE:
        assert (await it.sleep()).ok


State = tuple[bool, set[str], list[tuple[str, str]]]

BORN = [("default", "launch:default")]


def state(it: Steered) -> State:
    return paused(it.engine), released(it.engine), held(it.engine)


def wanted(runtime: Runtime, kind: CallKind) -> State:
    """The state after the call."""
    match kind:
        case CallKind.PAUSE:
            return True, set(), BORN
        case CallKind.RESUME:
            return False, set(), BORN
        case CallKind.SLEEP:
            lost = [("default", "undefined")] if runtime is Runtime.SGLANG else BORN
            return True, set(ALL_TAGS), lost
        case CallKind.WAKE:
            # vLLM resumes by itself when everything is awake.
            if runtime is Runtime.VLLM:
                return False, set(), BORN
            return True, set(), [("default", "undefined")]
        case CallKind.REFIT:
            return True, set(), [("7", "disk:/w/7")]
        case CallKind.LABEL:
            return True, set(), [("7", "launch:default")]
        case CallKind.TRANSFER:
            raise AssertionError


def done(runtime: Runtime, kind: CallKind) -> State:
    """The state after the request that a fault strikes; a refit of vLLM takes more of them."""
    if (runtime, kind) == (Runtime.VLLM, CallKind.REFIT):
        return True, set(), [("default", "disk:/w/7")]
    return wanted(runtime, kind)


def sure(runtime: Runtime, kind: CallKind, status: int) -> bool:
    """Whether a 4xx is a no: that of an SGLang engine to an update is not."""
    return (runtime, kind, status) != (Runtime.SGLANG, CallKind.REFIT, 400)


@BOTH
@CALLS
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"status": 500, "body": "Internal Server Error"}, Outcome.FAILED),
        ({"status": 501}, Outcome.FAILED),
        ({"status": 503}, Outcome.FAILED),
        ({"status": 502}, Outcome.UNKNOWN),
        ({"status": 504, "body": "<html>gateway</html>"}, Outcome.UNKNOWN),
        ({"status": 408}, Outcome.UNKNOWN),
        ({"status": 400, "body": {"error": {"message": "no"}}}, Outcome.REFUSED),
        ({"status": 401, "body": {"error": "Unauthorized"}}, Outcome.REFUSED),
        ({"status": 403}, Outcome.REFUSED),
        ({"status": 404}, Outcome.REFUSED),
        ({"status": 405}, Outcome.REFUSED),
        ({"status": 409}, Outcome.REFUSED),
        ({"status": 307}, Outcome.REFUSED),
    ],
    ids=lambda value: str(value["status"]) if isinstance(value, dict) else "",
)
async def test_an_answer_that_is_no_200(
    runtime: Runtime, kind: CallKind, answer: dict[str, Any], outcome: Outcome
) -> None:
    async with steered(runtime) as it:
        await prepare(it, kind)
        before = state(it)
        it.engine.faults.arm(ROUTES[runtime, kind], once(**answer))
        result = await it.do(kind)
        if not sure(runtime, kind, answer["status"]):
            outcome = Outcome.UNKNOWN
        assert (result.outcome, result.http) == (outcome, answer["status"])
        assert result.detail
        assert "\n" not in result.detail
        assert len(result.detail) <= 320
        assert state(it) == before


@BOTH
@CALLS
@pytest.mark.parametrize("what", ["drop", "hang"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_lost_answer_is_unknown_whether_or_not_it_happened(
    runtime: Runtime, kind: CallKind, what: str, *, after: bool
) -> None:
    async with steered(runtime) as it:
        await prepare(it, kind)
        before = state(it)
        fault = (once_after if after else once)(**{what: True})
        it.engine.faults.arm(ROUTES[runtime, kind], fault)
        result = await it.do(kind, timeout=TIMEOUT if what == "hang" else 30.0)
        assert (result.outcome, result.http) == (Outcome.UNKNOWN, None)
        assert "unknown" in result.detail
        assert state(it) == (done(runtime, kind) if after else before)


@BOTH
@CALLS
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_engine_that_dies_of_a_call(
    runtime: Runtime, kind: CallKind, *, after: bool
) -> None:
    async with steered(runtime) as it:
        await prepare(it, kind)
        it.engine.faults.arm(ROUTES[runtime, kind], (once_after if after else once)(die=True))
        assert (await it.do(kind)).outcome is Outcome.UNKNOWN
        assert not (await it.look()).reachable


@BOTH
@CALLS
async def test_an_engine_that_is_not_there_gets_nothing(runtime: Runtime, kind: CallKind) -> None:
    async with steered(runtime) as it:
        await prepare(it, kind)
        await it.engine.die()
        result = await it.do(kind)
        assert (result.outcome, result.http) == (Outcome.REFUSED, None)
        assert "nothing was sent" in result.detail or "before the sleep" in result.detail


@BOTH
@CALLS
async def test_without_a_fault_it_becomes_what_is_wanted(runtime: Runtime, kind: CallKind) -> None:
    async with steered(runtime) as it:
        await prepare(it, kind)
        assert (await it.do(kind)).ok
        assert state(it) == wanted(runtime, kind)


@BOTH
@CALLS
@pytest.mark.parametrize("route", ["reading", "everything"])
@pytest.mark.parametrize("fault", [{"drop": True}, {"status": 500}, {"status": 200, "body": "?"}])
async def test_no_fault_of_another_route_makes_a_call_claim_too_much(
    runtime: Runtime, kind: CallKind, route: str, fault: dict[str, Any]
) -> None:
    """Whatever cannot be read beforehand, an engine lives through it and OK is true."""
    reading = {
        Runtime.SGLANG: ["/ready", "/ping", "/server_info", "/model_info", "/v1/loads"],
        Runtime.VLLM: ["/is_paused", "/is_sleeping", "/metrics", "/version", "/weight_info"],
    }
    async with steered(runtime) as it:
        await prepare(it, kind)
        before = state(it)
        routes = reading[runtime] if route == "reading" else ["*"]
        for path in routes:
            it.engine.faults.arm(path, Fault(**fault))
        result = await it.do(kind)
        it.engine.faults.disarm()
        assert it.engine.died is None
        if result.outcome is Outcome.OK and route == "reading":
            assert state(it) == wanted(runtime, kind)
        if result.outcome is Outcome.REFUSED and kind is not CallKind.SLEEP:
            assert state(it) == before
        if result.outcome is Outcome.REFUSED:
            assert state(it)[1:] == before[1:]
