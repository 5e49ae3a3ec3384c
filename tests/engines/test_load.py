"""How many requests an engine has: a zero is claimed only if the engine has just said so."""

import time
from typing import Any

import msgspec
import pytest

from steersman.engine import Runtime
from steersman_operator.fleet.spec import PauseMode
from steersman_sim.engine import Fault, TimeModel
from tests.engines.support import RUNTIMES, Steered, once, steered
from tests.sim.support import running

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


@BOTH
async def test_an_idle_engine_has_none(runtime: Runtime) -> None:
    async with steered(runtime, dp_size=2) as it:
        assert await it.load() == 0
        assert (await it.ask()).status == 200
        assert await it.load() == 0


@BOTH
async def test_what_runs_and_waits_on_all_ranks_counts(runtime: Runtime) -> None:
    async with steered(runtime, dp_size=2, manual=True, max_running=1) as it:
        tasks = [it.ask(tokens=50) for _ in range(4)]
        await it.engine.until(lambda: it.engine.core.unfinished == 4)
        for rank in range(2):
            await it.engine.step(rank=rank)
        assert await it.load() == 4
        for task in tasks:
            task.cancel()


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_an_engine_that_was_paused_idle_has_none(runtime: Runtime, mode: PauseMode) -> None:
    async with steered(runtime) as it:
        await it.pause(mode)
        assert await it.load() == 0
        await it.sleep(mode=mode)
        assert await it.load() == 0


@BOTH
async def test_what_is_frozen_counts_and_when_it_is_cut_it_does_not(runtime: Runtime) -> None:
    async with steered(runtime, manual=True) as it:
        task = it.ask(tokens=50)
        await running(it)
        assert (await it.pause(PauseMode.KEEP)).ok
        scheduler = it.engine.core.ranks[0].scheduler
        await it.engine.until(lambda: scheduler.hold.name == "EVERYTHING")
        assert await it.load() == 1
        assert (await it.pause(PauseMode.ABORT)).ok
        assert (await task).status == 200
        assert await it.load() == 0


@BOTH
async def test_a_dead_engine_cannot_say(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.engine.die()
        assert await it.load() is None


# --- SGLang ---------------------------------------------------------------------------------------


async def test_what_is_retracted_does_not_count_since_it_cannot_run() -> None:
    async with steered(Runtime.SGLANG, manual=True) as it:
        task = it.ask(tokens=50)
        await running(it)
        await it.pause(PauseMode.RECOMPUTE)
        await it.engine.until(lambda: it.engine.core.ranks[0].scheduler.running == 0)
        assert it.engine.core.ranks[0].load.num_running_reqs == 1, "the last snapshot"
        assert await it.load() == 0
        task.cancel()


async def test_a_request_in_its_first_prefill_is_not_missed() -> None:
    """No snapshot shows it yet, and the last one shows nothing."""
    async with steered(Runtime.SGLANG, time=TimeModel(step_s=3600.0), speed=1.0) as it:
        assert await it.load() == 0
        task = it.ask()
        scheduler = it.engine.core.ranks[0].scheduler
        await it.engine.until(lambda: scheduler.under_way is not None)
        stale = it.engine.core.ranks[0].load
        assert stale.num_running_reqs == 0
        it.engine.core.ranks[0].load = _aged(stale, seconds=1.0)
        assert await it.load() is None
        task.cancel()


def _aged(snapshot: Any, *, seconds: float) -> Any:
    return msgspec.structs.replace(snapshot, timestamp=snapshot.timestamp - seconds)


def _loads(*ranks: dict[str, Any], now: float | str | None = None) -> Fault:
    body: dict[str, Any] = {"loads": list(ranks)}
    if now is not None:
        body["timestamp"] = now
    return once(status=200, body=body)


def _rank(timestamp: float, *, running: int = 0, waiting: int = 0) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
    }


async def answered(it: Steered, *faults: Fault) -> int | None:
    for fault in faults:
        it.engine.faults.arm("/v1/loads", fault)
    return await it.load()


async def test_a_scheduler_that_dozes_is_woken_and_asked_again() -> None:
    now = time.time()
    async with steered(Runtime.SGLANG) as it:
        dozing = _loads(_rank(now - 0.9), now=now)
        assert await answered(it, dozing, _loads(_rank(now + 0.1), now=now + 0.1)) == 0
        assert len(it.engine.journal.of("/server_info")) == 1


@pytest.mark.parametrize("second", [0.0, -0.9])
async def test_a_scheduler_that_still_says_nothing_new_is_not_idle(second: float) -> None:
    now = time.time()
    async with steered(Runtime.SGLANG) as it:
        old = _loads(_rank(now - 0.9), now=now)
        again = _loads(_rank(now + second if second else 0), now=now + 1)
        assert await answered(it, old, again) is None


async def test_a_scheduler_that_never_reported_is_not_idle() -> None:
    now = time.time()
    async with steered(Runtime.SGLANG) as it:
        never = _loads(_rank(now), _rank(0), now=now)
        assert await answered(it, never, _loads(_rank(now), _rank(0), now=now)) is None


async def test_a_busy_rank_counts_beside_one_that_never_reported() -> None:
    now = time.time()
    async with steered(Runtime.SGLANG) as it:
        mixed = _loads(_rank(now, running=2, waiting=1), _rank(0), now=now)
        assert await answered(it, mixed) == 3


@pytest.mark.parametrize("now", [None, "yesterday", "", -1, 10**400])
async def test_an_answer_without_a_date_is_no_proof(now: Any) -> None:
    async with steered(Runtime.SGLANG) as it:
        assert await answered(it, _loads(_rank(time.time()), now=now)) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"loads": None},
        {"loads": []},
        {"loads": {}},
        {"loads": ["x"]},
        {"loads": [{"num_running_reqs": "3", "num_waiting_reqs": 0}]},
        {"loads": [{"num_running_reqs": 0}]},
    ],
)
async def test_loads_of_another_shape_are_none(body: Any) -> None:
    async with steered(Runtime.SGLANG) as it:
        assert await answered(it, once(status=200, body=body)) is None


async def test_a_paused_engine_of_several_ranks_is_not_proven_idle_by_the_first() -> None:
    async with steered(Runtime.SGLANG, dp_size=2, manual=True) as it:
        task = it.ask(tokens=50)
        await it.engine.until(lambda: it.engine.core.unfinished == 1)
        rank = next(r for r in it.engine.core.ranks if r.scheduler.unfinished)
        await it.engine.step(rank=rank.number)
        await it.pause(PauseMode.KEEP)
        await it.engine.until(
            lambda: all(r.scheduler.hold.name == "EVERYTHING" for r in it.engine.core.ranks)
        )
        assert await it.load() == 1
        assert not it.engine.journal.of("/flush_cache")
        task.cancel()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([{"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 1}, {"num_reqs": 1}], 3),
        ({"num_reqs": 0}, 0),
        ([], None),
        ([{"load": 1}], None),
        ("text", None),
    ],
)
async def test_engines_before_v1_loads_are_asked_by_the_older_name(
    body: Any, expected: int | None
) -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/v1/loads", Fault(status=404))
        it.engine.faults.arm("/get_load", Fault(status=200, body=body))
        assert await it.load() == expected


# --- vLLM -----------------------------------------------------------------------------------------


async def test_without_metrics_only_a_count_above_zero_says_something() -> None:
    for tracking, expected in ((True, 1), (False, None)):
        async with steered(Runtime.VLLM, manual=True, load_tracking=tracking) as it:
            it.engine.faults.arm("/metrics", Fault(status=200, body="# nothing\n"))
            task = it.ask(tokens=50)
            await it.engine.until(lambda it=it: it.engine.core.unfinished == 1)
            assert await it.load() == expected
            task.cancel()
            await it.engine.until(lambda it=it: it.engine.core.in_flight == 0)
            assert await it.load() is None


async def test_half_of_the_metrics_is_not_enough() -> None:
    async with steered(Runtime.VLLM) as it:
        it.engine.faults.arm(
            "/metrics", Fault(status=200, body='vllm:num_requests_running{engine="0"} 0.0\n')
        )
        assert await it.load() is None
