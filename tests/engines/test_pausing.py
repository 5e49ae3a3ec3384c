"""Pause and resume of both engines: what the engine gets, what becomes of its requests."""

import asyncio

import pytest

from steersman.clock import Deadline, MonotonicClock
from steersman.engine import Runtime
from steersman_operator.engines import EngineClient, dialect_for
from steersman_operator.fleet.facts import Outcome
from steersman_operator.fleet.spec import PauseMode
from steersman_sim.engine import Fault
from tests.engines.support import RUNTIMES, paused, steered
from tests.sim.support import running

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_every_pause_pauses_and_every_resume_resumes(
    runtime: Runtime, mode: PauseMode
) -> None:
    async with steered(runtime) as it:
        assert (await it.pause(mode)).outcome is Outcome.OK
        assert paused(it.engine)
        task = it.ask()
        assert (await it.resume()).outcome is Outcome.OK
        assert not paused(it.engine)
        assert (await task).status == 200


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_pausing_twice_and_resuming_twice_does_no_harm(
    runtime: Runtime, mode: PauseMode
) -> None:
    async with steered(runtime) as it:
        for _ in range(2):
            assert (await it.pause(mode)).ok
        for _ in range(2):
            assert (await it.resume()).ok
        assert (await it.ask()).status == 200


@BOTH
async def test_abort_ends_requests_with_what_they_have(runtime: Runtime) -> None:
    async with steered(runtime, speed=1.0) as it:
        task = it.ask(tokens=100_000)
        await running(it)
        assert (await it.pause(PauseMode.ABORT)).ok
        assert (await task).status == 200
        assert it.engine.core.unfinished == 0


@BOTH
@pytest.mark.parametrize(("mode", "retractions"), [(PauseMode.KEEP, 0), (PauseMode.RECOMPUTE, 1)])
async def test_keep_and_recompute_let_requests_end_after_the_resume(
    runtime: Runtime, mode: PauseMode, retractions: int
) -> None:
    async with steered(runtime, manual=True) as it:
        task = it.ask(tokens=4)
        await running(it)
        scheduler = it.engine.core.ranks[0].scheduler
        assert (await it.pause(mode)).ok
        await it.engine.until(lambda: scheduler.hold.name == "EVERYTHING")
        assert scheduler.unfinished == 1
        assert (await it.resume()).ok
        await it.engine.step(3)
        assert (await task).status == 200
        (generation,) = it.engine.journal.entries[0].generations
        assert (len(generation.output), generation.retractions) == (4, retractions)


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (PauseMode.KEEP, "in_place"),
        (PauseMode.RECOMPUTE, "retract"),
        (PauseMode.ABORT, "abort"),
    ],
)
async def test_sglang_is_told_its_own_word_for_the_mode(mode: PauseMode, word: str) -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause(mode)
        assert it.bodies("/pause_generation") == [{"mode": word}]
        await it.resume()
        assert it.bodies("/continue_generation") == [{"torch_empty_cache": False}]


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        (PauseMode.KEEP, "mode=keep&clear_cache=false"),
        (PauseMode.RECOMPUTE, "mode=keep&clear_cache=true"),
        (PauseMode.ABORT, "mode=abort&clear_cache=true"),
    ],
)
async def test_vllm_is_told_its_own_words_for_the_mode(mode: PauseMode, query: str) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause(mode)
        assert [entry.query for entry in it.engine.journal.of("/pause")] == [query]


async def test_an_abort_thaws_what_is_frozen_in_place_first() -> None:
    """Else SGLang's abort would wait for ever, and every resume behind it."""
    async with steered(Runtime.SGLANG, manual=True) as it:
        task = it.ask(tokens=100)
        await running(it)
        assert (await it.pause(PauseMode.KEEP)).ok
        assert (await it.pause(PauseMode.ABORT)).ok
        assert [body["mode"] for body in it.bodies("/pause_generation")] == [
            "in_place",
            "retract",
            "abort",
        ]
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await it.resume()).ok


async def test_an_engine_that_does_not_say_whether_it_is_paused_is_taken_for_paused() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/ready", Fault(status=500))
        assert (await it.pause(PauseMode.ABORT)).ok
        assert [body["mode"] for body in it.bodies("/pause_generation")] == ["retract", "abort"]


async def test_an_abort_is_not_sent_if_the_thaw_failed() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause(PauseMode.KEEP)
        it.engine.faults.arm("/pause_generation", Fault(status=500))
        assert (await it.pause(PauseMode.ABORT)).outcome is Outcome.FAILED
        assert len(it.bodies("/pause_generation")) == 2


@BOTH
async def test_of_several_resumes_one_is_sent_and_all_get_its_end(runtime: Runtime) -> None:
    route = "/continue_generation" if runtime is Runtime.SGLANG else "/resume"
    async with steered(runtime) as it:
        await it.pause()
        it.engine.faults.arm(route, Fault(status=500, body="no", times=1, latency=0.2))
        results = await asyncio.gather(*(it.resume() for _ in range(5)))
        assert {result.outcome for result in results} == {Outcome.FAILED}
        assert len(it.engine.journal.of(route)) == 1
        assert (await it.resume()).ok, "the next one is a new one"
        assert not paused(it.engine)


async def test_a_resume_goes_on_when_one_who_waits_for_it_leaves() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        it.engine.faults.arm("/continue_generation", Fault(latency=0.2, times=1))
        first = asyncio.create_task(it.resume())
        await it.engine.until(lambda: bool(it.engine.journal.of("/continue_generation")))
        second = asyncio.create_task(it.resume())
        first.cancel()
        assert (await second).ok
        assert len(it.engine.journal.of("/continue_generation")) == 1
        assert not paused(it.engine)


async def test_a_resume_of_another_boot_does_not_share_but_waits() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        boot = (await it.look()).boot_id
        it.engine.faults.arm("/continue_generation", Fault(latency=0.2, times=1))
        first = asyncio.create_task(it.resume(boot_id=boot))
        await it.engine.until(lambda: bool(it.engine.journal.of("/continue_generation")))
        other = await it.resume(boot_id="sglang-0123456789abcdef")
        assert first.done()
        assert (await first).ok
        assert other.outcome is Outcome.REFUSED
        assert "restarted" in other.detail


async def test_the_operator_stopping_ends_a_resume() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/continue_generation", Fault(hang=True))
        resuming = asyncio.create_task(it.resume())
        await it.engine.until(lambda: bool(it.engine.journal.of("/continue_generation")))
        await it.engines.close()
        assert (await resuming).outcome is Outcome.UNKNOWN


async def test_vllm_is_not_resumed_while_it_sleeps() -> None:
    """It would run without its memory, and die of the first request."""
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        assert (await it.sleep()).ok
        task = it.ask()
        result = await it.resume()
        assert result.outcome is Outcome.REFUSED
        assert "woken" in result.detail
        assert (await it.wake()).ok
        assert (await task).status == 200


@BOTH
async def test_abort_of_some_and_of_all(runtime: Runtime) -> None:
    clock = MonotonicClock()
    async with steered(runtime, manual=True, max_running=1) as it:
        client = EngineClient(it.engine.url, clock=clock)
        dialect = dialect_for(runtime, client)
        assert dialect is not None
        deadline = Deadline.after(clock, 30)
        tasks = [it.ask(tokens=50) for _ in range(3)]
        await it.engine.until(lambda: it.engine.core.unfinished == 3)
        await running(it)
        assert (await dialect.abort([], deadline=deadline)).ok
        assert it.engine.core.unfinished == 3, "no ids are not all ids"
        queued = it.engine.core.ranks[0].scheduler.waiting[-1]
        assert (await dialect.abort([queued.rid], deadline=deadline)).ok
        assert it.engine.core.unfinished == 2
        assert (await dialect.abort(deadline=deadline)).ok
        if runtime is Runtime.SGLANG:
            await it.engine.step()  # an abort takes effect with the next step
        assert [(await task).status for task in tasks] == [200, 200, 200]
        assert it.engine.core.unfinished == 0
        await client.close()
