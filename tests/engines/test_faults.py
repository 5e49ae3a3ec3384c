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
    RUNTIMES,
    TIMEOUT,
    Steered,
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
    (Runtime.VLLM, CallKind.PAUSE): "/pause",
    (Runtime.VLLM, CallKind.RESUME): "/resume",
    (Runtime.VLLM, CallKind.SLEEP): "/sleep",
    (Runtime.VLLM, CallKind.WAKE): "/wake_up",
}

CALLS = pytest.mark.parametrize("kind", list(CallKind))
BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


async def prepare(it: Steered, kind: CallKind) -> None:
    """Bring the engine to where the call belongs."""
    if kind in (CallKind.RESUME, CallKind.SLEEP, CallKind.WAKE):
        assert (await it.pause()).ok
    if kind is CallKind.WAKE:
        assert (await it.sleep()).ok


def state(it: Steered) -> tuple[bool, set[str]]:
    return paused(it.engine), released(it.engine)


def wanted(runtime: Runtime, kind: CallKind) -> tuple[bool, set[str]]:
    """The state after the call."""
    match kind:
        case CallKind.PAUSE:
            return True, set()
        case CallKind.RESUME:
            return False, set()
        case CallKind.SLEEP:
            return True, set(ALL_TAGS)
        case CallKind.WAKE:
            # vLLM resumes by itself when everything is awake.
            return runtime is Runtime.SGLANG, set()


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
        assert (result.outcome, result.http) == (outcome, answer["status"])
        assert result.detail
        assert "\n" not in result.detail
        assert len(result.detail) <= 260
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
        assert state(it) == (wanted(runtime, kind) if after else before)


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
        Runtime.VLLM: ["/is_paused", "/is_sleeping", "/metrics", "/version"],
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
            assert released(it.engine) == before[1]
