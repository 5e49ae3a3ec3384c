"""Sleep and wake of both engines. No engine dies of them, and none is believed without a look."""

import re

import pytest

from steersman.engine import Runtime
from steersman_operator.fleet.facts import ALL_TAGS, Outcome
from steersman_operator.fleet.spec import PauseMode
from steersman_sim.engine import Fault
from tests.engines.support import RUNTIMES, once, once_after, paused, released, steered
from tests.sim.support import running

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)
RELEASE = "/release_memory_occupation"
RESUME = "/resume_memory_occupation"


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_from_every_pause_to_sleep_and_back(runtime: Runtime, mode: PauseMode) -> None:
    async with steered(runtime) as it:
        assert (await it.pause(mode)).ok
        assert (await it.sleep(mode=mode)).ok
        assert released(it.engine) == set(ALL_TAGS)
        assert paused(it.engine)
        assert (await it.wake()).ok
        assert released(it.engine) == set()
        assert (await it.resume()).ok
        assert (await it.ask()).status == 200


@BOTH
async def test_a_request_that_comes_while_it_sleeps_waits(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.pause()
        await it.sleep()
        task = it.ask()
        core = it.engine.core
        await it.engine.until(lambda: core.in_flight == 1)
        assert (await it.wake()).ok
        assert (await it.resume()).ok
        assert (await task).status == 200


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_a_busy_engine_survives_a_sleep(runtime: Runtime, mode: PauseMode) -> None:
    """Whatever runs is stopped first, also if nobody had paused the engine."""
    async with steered(runtime, speed=1.0) as it:
        task = it.ask(tokens=100_000)
        await running(it)
        assert (await it.sleep(mode=mode)).ok
        assert it.engine.died is None
        assert released(it.engine) == set(ALL_TAGS)
        task.cancel()


# --- SGLang ---------------------------------------------------------------------------------------


async def test_sglang_is_retracted_and_flushed_before_it_sleeps() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause(PauseMode.KEEP)
        assert (await it.sleep()).ok
        assert it.paths() == [
            "/pause_generation",
            "/pause_generation",
            "/flush_cache",
            RELEASE,
        ]
        assert it.bodies("/pause_generation")[-1] == {"mode": "retract"}
        assert [entry.query for entry in it.engine.journal.of("/flush_cache")] == ["timeout=0"]
        assert it.bodies(RELEASE) == [{"tags": ["kv_cache", "weights"]}]
        await it.wake()
        assert it.bodies(RESUME) == [{"tags": ["kv_cache", "weights"]}]


async def test_requests_that_wait_keep_their_place_through_a_sleep() -> None:
    async with steered(Runtime.SGLANG, manual=True) as it:
        task = it.ask(tokens=4)
        await running(it)
        assert (await it.pause(PauseMode.KEEP)).ok
        assert (await it.sleep()).ok
        assert it.engine.core.unfinished == 1
        assert (await it.wake()).ok
        assert (await it.resume()).ok
        await it.engine.step(3)
        assert (await task).json["meta_info"]["completion_tokens"] == 4


async def test_an_engine_that_is_never_idle_is_asked_a_few_times_and_left_alone() -> None:
    """field-failures 5: after a retract pause a flush can be refused for ever."""
    async with steered(Runtime.SGLANG) as it:
        await it.pause(PauseMode.RECOMPUTE)
        it.engine.faults.arm("/flush_cache", Fault(status=400, body="pending requests"))
        result = await it.sleep()
        assert result.outcome is Outcome.REFUSED
        assert "not proven idle" in result.detail
        assert "pending requests" in result.detail
        assert len(it.engine.journal.of("/flush_cache")) == 5
        assert not it.engine.journal.of(RELEASE)
        it.engine.faults.disarm()
        assert (await it.resume()).ok
        assert (await it.ask()).status == 200


async def test_a_flush_that_comes_before_the_scheduler_has_acted_is_tried_again() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/flush_cache", Fault(status=400, body="no", times=2))
        assert (await it.sleep()).ok
        assert len(it.engine.journal.of("/flush_cache")) == 3


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 404}, {"drop": True}])
async def test_without_a_proof_nothing_is_released(fault: dict[str, object]) -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/flush_cache", Fault(**fault))
        assert (await it.sleep()).outcome is Outcome.REFUSED
        assert len(it.engine.journal.of("/flush_cache")) == 1
        assert not it.engine.journal.of(RELEASE)


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 401}, {"drop": True}])
async def test_without_a_pause_nothing_is_flushed_or_released(fault: dict[str, object]) -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/pause_generation", Fault(**fault))
        assert (await it.sleep()).outcome is Outcome.REFUSED
        assert it.paths() == ["/pause_generation"]


async def test_several_ranks_are_emptied_since_the_flush_speaks_for_the_first_alone() -> None:
    async with steered(Runtime.SGLANG, dp_size=3, manual=True) as it:
        tasks = [it.ask(tokens=100) for _ in range(3)]
        await it.engine.until(lambda: it.engine.core.unfinished == 3)
        for rank in range(3):
            await it.engine.step(rank=rank)
        assert (await it.sleep()).ok
        assert [body["mode"] for body in it.bodies("/pause_generation")] == ["retract", "abort"]
        assert {(await task).status for task in tasks} == {200}
        assert (await it.wake()).ok


@pytest.mark.parametrize("tags", [(), ("everything",), ("weights", "everything")])
async def test_sglang_is_never_told_to_choose_the_memory(tags: tuple[str, ...]) -> None:
    async with steered(Runtime.SGLANG) as it:
        assert (await it.sleep(tags=tags)).outcome is Outcome.REFUSED
        assert (await it.wake(tags=tags)).outcome is Outcome.REFUSED
        assert it.paths() == []


async def test_exactly_the_named_memory_is_released_and_taken_back() -> None:
    async with steered(Runtime.SGLANG) as it:
        assert (await it.sleep(tags=("weights",))).ok
        assert released(it.engine) == {"weights"}
        assert (await it.sleep(tags=("kv_cache",))).ok
        assert (await it.wake(tags=("weights",))).ok
        assert released(it.engine) == {"kv_cache"}
        assert (await it.wake(tags=("kv_cache",))).ok
        assert it.engine.died is None


# --- vLLM -----------------------------------------------------------------------------------------


async def test_vllm_sleeps_at_level_one_so_that_it_wakes_with_its_weights() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause(PauseMode.RECOMPUTE)
        assert (await it.sleep(mode=PauseMode.RECOMPUTE)).ok
        assert [entry.query for entry in it.engine.journal.of("/sleep")] == ["level=1&mode=keep"]
        assert (await it.wake()).ok
        queries = [entry.query for entry in it.engine.journal.of("/wake_up")]
        assert queries == ["tags=weights&tags=kv_cache"]
        assert it.engine.core.ranks[0].weights.weights.version == "default"


async def test_vllm_is_paused_before_it_is_put_to_sleep() -> None:
    """field-failures 6: an engine with requests in flight died of its own sleep."""
    async with steered(Runtime.VLLM) as it:
        assert (await it.sleep()).ok
        assert it.paths() == ["/pause", "/sleep"]


async def test_kv_memory_alone() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        assert (await it.sleep(tags=("kv_cache",))).ok
        assert released(it.engine) == {"kv_cache"}
        assert (await it.wake(tags=("kv_cache",))).ok
        assert released(it.engine) == set()


async def test_a_tag_that_is_awake_does_not_keep_the_others_asleep() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep(tags=("kv_cache",))
        assert (await it.wake()).ok
        queries = [entry.query for entry in it.engine.journal.of("/wake_up")]
        assert queries == ["tags=weights&tags=kv_cache", "tags=weights", "tags=kv_cache"]
        assert released(it.engine) == set()


@pytest.mark.parametrize("first", ["weights", "kv_cache"])
async def test_a_vllm_that_is_half_awake_sleeps_on(first: str) -> None:
    second = {"weights": "kv_cache", "kv_cache": "weights"}[first]
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        assert (await it.wake(tags=(first,))).ok
        assert released(it.engine) == {second}
        seen = await it.look()
        assert (seen.paused, seen.released) == (True, (second,))
        assert (await it.resume()).outcome is Outcome.REFUSED, "it would run without its memory"
        assert (await it.wake(tags=(second,))).ok
        assert released(it.engine) == set()
        assert (await it.look()).released == ()
        assert (await it.ask()).status == 200


async def test_that_a_vllm_is_half_awake_is_known_whatever_its_metric_shows() -> None:
    """Releases before 0.32 call an engine awake from the first wake on."""
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        assert (await it.wake(tags=("weights",))).ok
        text = (await it.get("/metrics")).text
        for state, value in (("awake", 1.0), ("weights_offloaded", 0.0)):
            text = re.sub(rf'(sleep_state="{state}"}}) \S+', rf"\1 {value}", text)
        it.engine.faults.arm("/metrics", Fault(status=200, body=text))
        assert (await it.look()).released == ("kv_cache",)
        assert (await it.resume()).outcome is Outcome.REFUSED


async def test_what_the_wake_of_another_process_has_left_is_taken_for_a_whole_sleep() -> None:
    """Which is harmless: what is awake is not woken twice."""
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        await it.post("/wake_up?tags=weights")
        assert (await it.look()).released == ALL_TAGS
        assert (await it.wake()).ok
        assert released(it.engine) == set()


async def test_being_half_awake_is_forgotten_with_the_process_and_with_the_next_sleep() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        await it.wake(tags=("weights",))
        assert (await it.sleep()).ok
        assert (await it.look()).released == ALL_TAGS
        await it.wake(tags=("weights",))
        await it.engine.restart()
        await it.post("/sleep")
        assert (await it.look()).released == ALL_TAGS


async def test_a_wake_that_somebody_else_has_ended_is_seen() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        await it.wake(tags=("weights",))
        await it.post("/wake_up")
        assert (await it.look()).released == ()
        await it.pause()
        assert (await it.look()).released == ()


async def test_kv_memory_that_was_given_up_alone_is_seen() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        assert (await it.sleep(tags=("kv_cache",))).ok
        assert (await it.look()).released == ("kv_cache",)


@pytest.mark.parametrize("tags", [(), ("cuda_graph",)])
async def test_memory_that_vllm_does_not_have_is_refused(tags: tuple[str, ...]) -> None:
    async with steered(Runtime.VLLM) as it:
        assert (await it.sleep(tags=tags)).outcome is Outcome.REFUSED
        assert (await it.wake(tags=tags)).outcome is Outcome.REFUSED
        assert it.paths() == []


async def test_sleeping_and_waking_twice_does_no_harm_to_vllm() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        assert (await it.sleep()).ok
        assert (await it.sleep()).ok
        assert (await it.wake()).ok
        assert (await it.wake()).ok
        assert (await it.ask()).status == 200


# --- A 200 is not believed ------------------------------------------------------------------------


async def test_a_sleep_of_which_vllm_dies_is_no_sleep() -> None:
    """field-failures 6: 200, and then every connection is refused."""
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/is_sleeping", once(die=True))
        result = await it.sleep()
        assert result.outcome is Outcome.UNKNOWN
        assert "does not answer since" in result.detail
        assert not (await it.look()).reachable


async def test_a_release_of_which_sglang_dies_is_no_sleep() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        it.engine.faults.arm(RELEASE, once_after(die=True))
        assert (await it.sleep()).outcome is Outcome.UNKNOWN
        assert not (await it.look()).reachable


async def test_an_unhealthy_sglang_after_a_sleep_has_failed() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/ping", once(status=503))
        assert (await it.sleep()).outcome is Outcome.FAILED


async def test_a_sleep_that_did_not_happen_has_failed() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/sleep", once(status=200, body={"status": "sleeping", "level": 1}))
        assert (await it.sleep()).outcome is Outcome.FAILED
        assert released(it.engine) == set()


async def test_a_wake_that_did_not_happen_has_failed() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        it.engine.faults.arm("/wake_up", once(status=200, body={"status": "awake", "tags": []}))
        assert (await it.wake()).outcome is Outcome.FAILED
        assert released(it.engine) == set(ALL_TAGS)
