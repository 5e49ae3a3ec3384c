"""What is seen of an engine, and what is not claimed to be seen."""

import asyncio

import pytest

from steersman.clock import FakeClock
from steersman.engine import Runtime
from steersman_operator.engines import EngineKeys, Engines
from steersman_operator.engines.memory import REREAD
from steersman_operator.fleet.facts import ALL_TAGS, Observation
from steersman_operator.fleet.spec import PauseMode
from steersman_sim.engine import Fault, Timings
from tests.engines.support import RUNTIMES, Steered, steered, steering
from tests.sim.sglang_calls import refit
from tests.sim.support import FAST, sglang, sglang_core, vllm_core
from tests.sim.vllm_calls import label

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


@BOTH
async def test_a_fresh_engine(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        seen = await it.look()
        assert seen == Observation(
            reachable=True,
            boot_id=seen.boot_id,
            paused=False,
            released=() if runtime is Runtime.VLLM else None,
            backup=runtime is Runtime.VLLM,
            version=None,
            version_known=True,
        )
        assert seen.boot_id is not None
        assert seen.boot_id.startswith(f"{runtime.value}-")


@BOTH
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_a_pause_is_seen(runtime: Runtime, mode: PauseMode) -> None:
    async with steered(runtime) as it:
        await it.pause(mode)
        seen = await it.look()
        assert seen.paused is True
        assert seen.released == (() if runtime is Runtime.VLLM else None)
        await it.resume()
        assert (await it.look()).paused is False


async def test_sleep_is_seen_of_vllm_alone() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        assert (await it.look()).released == ALL_TAGS
        await it.wake()
        assert (await it.look()).released == ()
    async with steered(Runtime.SGLANG) as it:
        await it.pause()
        await it.sleep()
        seen = await it.look()
        assert (seen.reachable, seen.paused, seen.released) == (True, True, None)


async def test_a_sleeping_vllm_that_somebody_resumed_still_sleeps() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.post("/sleep")
        await it.post("/resume")
        seen = await it.look()
        assert (seen.paused, seen.released) == (False, ALL_TAGS)


@pytest.mark.parametrize("path", ["/sleep?level=0", "/release_kv_cache_memory"])
async def test_what_the_metric_does_not_tell_apart_is_unknown(path: str) -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        assert (await it.post(path)).status == 200
        assert (await it.look()).released is None


async def test_without_the_metric_a_paused_vllm_may_sleep_or_not() -> None:
    async with steered(Runtime.VLLM) as it:
        it.engine.faults.arm("/metrics", Fault(status=404))
        assert (await it.look()).released == ()
        await it.pause()
        seen = await it.look()
        assert (seen.paused, seen.released, seen.boot_id) == (True, None, None)


@pytest.mark.parametrize("path", ["/is_paused", "/is_sleeping", "/weight_info"])
async def test_vllm_engines_that_disagree_are_unknown(path: str) -> None:
    async with steered(Runtime.VLLM) as it:
        it.engine.faults.arm(path, Fault(status=500, body={"error": "DP engines disagree"}))
        seen = await it.look()
        assert seen.reachable
        assert (seen.paused is None) == (path == "/is_paused")
        assert (seen.released is None) == (path == "/is_sleeping")
        assert seen.version_known == (path != "/weight_info")


async def test_the_ranks_of_vllm_disagree_on_their_pause() -> None:
    async with steered(Runtime.VLLM, dp_size=2) as it:
        await it.engine.core.ranks[1].change(version=None, hold="new")
        assert (await it.look()).paused is None


# --- Versions -------------------------------------------------------------------------------------


async def test_versions_are_read() -> None:
    async with steered(Runtime.SGLANG) as it:
        await refit(it, "7")
        assert (await it.look()).version == "7"
    async with steered(Runtime.VLLM) as it:
        await label(it, "8")
        seen = await it.look()
        assert (seen.version, seen.version_known) == ("8", True)


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_older_names_of_the_version_are_tried(missing: int) -> None:
    names = ["/model_info", "/get_model_info", "/get_weight_version", "/weight_version"]
    async with steered(Runtime.SGLANG) as it:
        it.declared = Runtime.SGLANG
        for name in names[:missing]:
            it.engine.faults.arm(name, Fault(status=404))
        answer = {"weight_version": "5"}
        it.engine.faults.arm(names[missing], Fault(status=200, body=answer))
        assert (await it.look()).version == "5"


async def test_a_version_that_cannot_be_read_is_not_no_version() -> None:
    async with steered(Runtime.SGLANG) as it:
        await it.look()
        for name in ("/model_info", "/get_model_info"):
            it.engine.faults.arm(name, Fault(status=200, body={"weight_version": 7}))
        seen = await it.look()
        assert (seen.version, seen.version_known) == (None, False)


# --- Boots ----------------------------------------------------------------------------------------


@BOTH
async def test_the_boot_stays_until_the_process_is_another(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        first = (await it.look()).boot_id
        await it.pause()
        assert (await it.look()).boot_id == first
        await it.engine.restart()
        second = (await it.look()).boot_id
        assert second not in (None, first)


async def test_an_sglang_that_does_not_time_its_start_has_no_boot() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/server_info", Fault(status=200, body={"random_seed": 1}))
        assert (await it.look()).boot_id is None
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/server_info", Fault(status=404))
        assert (await it.look()).boot_id is not None, "under its older name"


async def test_a_scheduler_that_is_busy_costs_the_boot_and_not_the_look() -> None:
    async with steered(Runtime.SGLANG, look_timeout=1.0) as it:
        it.engine.faults.arm("/server_info", Fault(hang=True))
        seen = await it.look()
        assert (seen.reachable, seen.paused, seen.boot_id) == (True, False, None)
        assert seen.version_known


# --- Engines that are not well --------------------------------------------------------------------


@BOTH
async def test_a_dead_engine_is_not_reachable(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.engine.die()
        seen = await it.look()
        assert seen == Observation(reachable=False, detail="cannot connect: connection refused")


@BOTH
async def test_an_engine_that_hangs_is_not_reachable(runtime: Runtime) -> None:
    async with steered(runtime, look_timeout=0.3) as it:
        it.engine.faults.arm("*", Fault(hang=True))
        seen = await it.look()
        assert not seen.reachable
        assert "no answer" in seen.detail


async def test_an_sglang_that_starts_is_not_reachable_yet() -> None:
    async with steered(Runtime.SGLANG, startup_s=3600.0, speed=1.0) as it:
        seen = await it.look()
        assert not seen.reachable
        assert "/ping answers 503" in seen.detail


async def test_a_vllm_whose_engine_is_dead_is_not_reachable() -> None:
    async with steered(Runtime.VLLM) as it:
        it.engine.faults.arm("/health", Fault(status=503))
        assert not (await it.look()).reachable


async def test_looking_never_probes_the_health_of_sglang() -> None:
    """A probe while paused would make the engine call itself unhealthy."""
    timings = Timings(health_timeout_s=0.1, health_poll_s=0.01, abort_poll_s=FAST.abort_poll_s)
    async with steered(Runtime.SGLANG, timings=timings) as it:
        await it.pause()
        for _ in range(3):
            await it.look()
            await it.load()
        paths = {entry.path for entry in it.engine.journal.entries}
        assert not paths & {"/health", "/health_generate", "/generate"}
        assert sglang_core(it).healthy


async def test_a_ready_that_says_something_else_is_not_a_pause() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/ready", Fault(status=404))
        seen = await it.look()
        assert (seen.reachable, seen.paused) == (True, None)
        assert "/ready" in seen.detail


@BOTH
@pytest.mark.parametrize("body", ["", "[]", "{", '"text"', "null", "[" * 50_000])
async def test_strange_answers_are_no_answers(runtime: Runtime, body: str) -> None:
    async with steered(runtime) as it:
        await it.look()
        it.engine.faults.arm("*", Fault(status=200, body=body))
        seen = await it.look()
        assert seen.reachable
        assert (seen.boot_id, seen.version, seen.version_known) == (None, None, False)
        assert await it.load() is None


async def test_looking_changes_nothing_at_vllm() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        await it.sleep()
        before = (vllm_core(it).summary(), it.paths())
        await it.look()
        await it.load()
        assert (vllm_core(it).summary(), it.paths()) == before


async def test_a_wrong_data_key_is_said() -> None:
    async with steering(sglang(api_key="d"), keys=EngineKeys(data="wrong")) as it:
        seen = await it.look()
        assert seen == Observation(reachable=True, detail="the engine does not accept the data key")


async def test_an_sglang_without_ping_and_ready_is_steered_all_the_same() -> None:
    async with steered(Runtime.SGLANG) as it:
        for path in ("/ping", "/ready"):
            it.engine.faults.arm(path, Fault(status=404))
        seen = await it.look()
        assert (seen.reachable, seen.paused, seen.version_known) == (True, None, True)
        for mode in PauseMode:
            assert (await it.pause(mode)).ok
        assert (await it.sleep()).ok
        assert (await it.wake()).ok
        assert (await it.resume()).ok
        assert (await it.ask()).status == 200


# --- What a look costs ----------------------------------------------------------------------------

SHORT = {
    Runtime.SGLANG: ["/ping", "/ready", "/model_info"],
    Runtime.VLLM: ["/health", "/is_paused", "/is_sleeping", "/weight_info"],
}
LONG = {Runtime.SGLANG: "/server_info", Runtime.VLLM: "/metrics"}


async def asked(it: Steered) -> list[str]:
    """What one look asks."""
    before = it.engine.journal.count
    await it.look()
    return [entry.path for entry in it.engine.journal.entries if entry.number > before]


@BOTH
async def test_a_look_is_a_few_questions_over_one_connection(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        whole = [*SHORT[runtime], LONG[runtime]]
        assert (await asked(it))[-len(whole) :] == whole
        for _ in range(3):
            assert await asked(it) == SHORT[runtime]
        assert len({entry.connection for entry in it.engine.journal.entries}) == 1


@BOTH
async def test_a_short_look_says_the_same_as_a_long_one(runtime: Runtime) -> None:
    async with steered(runtime, weights_cpu_backup=True) as it:
        assert await it.look() == await it.look()
        for change in (it.pause, it.sleep, it.wake, it.refit, it.resume):
            await change()
            assert await it.look() == await it.look()


@BOTH
async def test_another_connection_may_lead_to_another_process(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        first = await it.look()
        await it.engine.restart()
        second = await it.look()
        assert second.boot_id not in (None, first.boot_id), "in the first look"
        assert LONG[runtime] not in await asked(it)
        assert await asked(it) == SHORT[runtime]


@BOTH
async def test_a_connection_that_the_engine_has_closed_is_no_fault(runtime: Runtime) -> None:
    async with steered(runtime, keep_alive_s=0.05) as it:
        first = await it.look()
        # One that was opened later is closed later.
        reader, writer = await asyncio.open_connection("127.0.0.1", it.engine.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(-1)
        writer.close()
        assert await it.look() == first
        assert LONG[runtime] in [entry.path for entry in it.engine.journal.entries][-5:]


@BOTH
async def test_what_has_changed_is_looked_into(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        body = {"new_version": "7", "abort_all_requests": False}
        await it.post("/update_weight_version", body)
        assert await asked(it) == [*SHORT[runtime], LONG[runtime]]
        assert await asked(it) == SHORT[runtime]
        await (it.post("/pause_generation", {}) if runtime is Runtime.SGLANG else it.post("/pause"))
        assert LONG[runtime] in await asked(it)


@BOTH
async def test_after_a_call_everything_is_read(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.resume()
        assert await asked(it) == [*SHORT[runtime], LONG[runtime]]


@BOTH
async def test_after_a_while_everything_is_read(runtime: Runtime) -> None:
    """Something between us and the engine may hold the connection."""
    clock = FakeClock()
    async with steered(runtime) as it:
        await it.engines.close()
        it.engines = Engines(clock=clock)
        await it.look()
        clock.advance(REREAD - 1)
        assert await asked(it) == SHORT[runtime]
        clock.advance(1)
        assert await asked(it) == [*SHORT[runtime], LONG[runtime]]


@BOTH
async def test_a_look_that_was_overtaken_by_a_call_is_not_taken_over(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.pause()
        it.engine.faults.arm(LONG[runtime], Fault(latency=0.2, times=1))
        looking = asyncio.create_task(it.look())
        await it.engine.until(lambda: bool(it.engine.journal.entries[-1].fault))
        await it.pause()
        await looking
        assert LONG[runtime] in await asked(it)


async def test_a_vllm_that_sleeps_is_looked_into_at_every_other_look() -> None:
    """That it was put to sleep, and how far it was woken, shows in the metrics alone."""
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        looks = [await asked(it) for _ in range(6)]
        assert ["/metrics" in paths for paths in looks[-4:]].count(True) == 2
        await it.post("/sleep")
        assert ALL_TAGS in [(await it.look()).released for _ in range(2)]


@BOTH
async def test_what_cannot_be_read_is_asked_again(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        for path in ("/server_info", "/get_server_info", "/metrics"):
            it.engine.faults.arm(path, Fault(status=500, times=2))
        boots = [(await it.look()).boot_id for _ in range(4)]
        assert boots[0] is None
        assert boots[3] is not None


async def test_an_sglang_with_older_names_is_asked_for_its_version_once() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/model_info", Fault(status=404))
        await it.look()
        assert await asked(it) == ["/ping", "/ready", "/get_model_info"]


async def test_a_pause_between_two_questions_is_no_sleep() -> None:
    async with steered(Runtime.VLLM) as it:
        await it.pause()
        it.engine.faults.arm("/is_paused", Fault(status=200, body={"is_paused": False}, times=1))
        seen = await it.look()
        assert (seen.paused, seen.released) == (True, ())


async def test_an_sglang_that_was_starting_until_just_now_is_not_paused() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/ready", Fault(status=503, times=1))
        assert (await it.look()).paused is False


async def test_an_sglang_whose_ready_hangs_is_alive() -> None:
    async with steered(Runtime.SGLANG, look_timeout=0.5) as it:
        await it.look()
        it.engine.faults.arm("/ready", Fault(hang=True))
        seen = await it.look()
        assert (seen.reachable, seen.paused, seen.version_known) == (True, None, True)
        assert seen.boot_id is not None
