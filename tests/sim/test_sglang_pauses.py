"""What SGLang does when it is paused, probed, aborted and flushed: each surprise by name.

Engines run in manual mode where the moment matters: no step is taken unless the test takes it.
"""

import asyncio

import pytest

from steersman_sim.engine import TimeModel
from tests.sim.sglang_calls import frozen, pause, resume
from tests.sim.support import (
    generate_body,
    running,
    serving,
    sglang,
    sglang_core,
)

SLOW = TimeModel(step_s=3600.0)

BUSY = pytest.mark.parametrize("mode", ["in_place", "retract"])


# --- Requests and pauses --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["abort", "in_place", "retract"])
async def test_requests_block_while_paused_and_run_after_continue(mode: str) -> None:
    async with serving(sglang()) as client:
        assert (await pause(client, mode)).status == 200
        task = client.soon("/generate", generate_body())
        gate = sglang_core(client).gate
        await client.engine.until(lambda: gate.waiting == 1)
        assert client.engine.core.unfinished == 0, "it has not reached the scheduler"
        assert not task.done()
        await resume(client)
        assert (await task).status == 200


async def test_pause_abort_answers_200_with_partial_tokens_and_spans() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=100))
        await running(client)
        await client.engine.step(2)
        pausing = asyncio.create_task(pause(client, "abort"))
        sequence = client.engine.core.ranks[0].scheduler.decoding[0]
        await client.engine.until(lambda: sequence.abort_message is not None)
        await client.engine.step()
        reply = await task
        assert reply.status == 200
        info = reply.json["meta_info"]
        assert info["finish_reason"]["type"] == "abort"
        assert info["finish_reason"]["message"] == "Aborted"
        assert info["completion_tokens"] == 4
        assert info["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]
        assert (await pausing).status == 200


async def test_pause_abort_answers_only_when_nobody_is_left() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=100))
        await running(client)
        pausing = asyncio.create_task(pause(client, "abort"))
        sequence = client.engine.core.ranks[0].scheduler.decoding[0]
        await client.engine.until(lambda: sequence.abort_message is not None)
        assert not pausing.done()
        await client.engine.step()
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await pausing).json["status"] == "ok"


async def test_an_abort_of_what_is_frozen_in_place_never_ends_and_blocks_every_resume() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=100))
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        pausing = asyncio.create_task(pause(client, "abort"))
        sequence = client.engine.core.ranks[0].scheduler.decoding[0]
        await client.engine.until(lambda: sequence.abort_message is not None)
        resuming = asyncio.create_task(resume(client))
        entries = client.engine.journal.of
        await client.engine.until(lambda: len(entries("/continue_generation")) == 1)
        assert not pausing.done()
        assert not resuming.done()
        assert sglang_core(client).gate.condition.locked()
        task.cancel()  # only the client's leaving lets it end
        assert (await pausing).status == 200
        await resuming


async def test_an_aborted_request_in_the_queue_says_so() -> None:
    async with serving(sglang(manual=True, max_running=1)) as client:
        first = client.soon("/generate", generate_body(tokens=3))
        await running(client)
        second = client.soon("/generate", generate_body(rid="queued"))
        await client.engine.until(lambda: client.engine.core.unfinished == 2)
        await client.post("/abort_request", {"rid": "queued"})
        info = (await second).json["meta_info"]
        assert info["finish_reason"]["message"] == "Abort in waiting queue"
        assert info["completion_tokens"] == 0
        assert "weight_versions" not in info
        await client.engine.step(2)
        assert (await first).json["meta_info"]["finish_reason"]["type"] == "length"


@BUSY
async def test_pause_is_acknowledged_before_the_scheduler_acts(mode: str) -> None:
    async with serving(sglang(time=SLOW, speed=1)) as client:
        task = client.soon("/generate", generate_body(tokens=100))
        scheduler = client.engine.core.ranks[0].scheduler
        await client.engine.until(lambda: scheduler.under_way is not None)
        assert (await pause(client, mode)).status == 200
        assert scheduler.under_way is not None, "its step goes on"
        assert scheduler.hold.name == "NOTHING"
        task.cancel()


async def test_pause_retract_keeps_the_tokens_and_computes_anew() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=5))
        await running(client)
        await pause(client, "retract")
        await frozen(client)
        scheduler = client.engine.core.ranks[0].scheduler
        assert (scheduler.running, len(scheduler.waiting)) == (0, 1)
        assert (await client.post("/flush_cache")).status == 200
        await resume(client)
        await client.engine.step(4)
        info = (await task).json["meta_info"]
        assert (info["completion_tokens"], info["num_retractions"]) == (5, 1)


async def test_pause_in_place_keeps_the_kv_and_refuses_a_flush() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=3))
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        held = client.engine.core.ranks[0].scheduler.pool.held
        flushed = await client.post("/flush_cache")
        assert (flushed.status, flushed.text) == (400, "Flush cache failed.\n")
        assert client.engine.core.ranks[0].scheduler.pool.held == held
        await resume(client)
        await client.engine.step(2)
        assert (await task).json["meta_info"]["num_retractions"] == 0


async def test_an_abort_while_paused_in_place_waits_for_continue() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=30))
        await running(client)
        await pause(client, "in_place")
        await frozen(client)
        assert (await client.post("/abort_request", {"abort_all": True})).status == 200
        assert client.engine.core.unfinished == 1
        await resume(client)
        await client.engine.step()
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "abort"


async def test_continue_is_idempotent() -> None:
    async with serving(sglang()) as client:
        await resume(client)
        await resume(client)
        assert (await client.post("/generate", generate_body())).status == 200


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
async def test_pause_and_continue_need_a_body(path: str) -> None:
    async with serving(sglang()) as client:
        assert (await client.post(path)).status == 400
        assert (await client.post(path, {})).status == 200


async def test_an_unknown_pause_mode_is_refused() -> None:
    async with serving(sglang()) as client:
        assert (await pause(client, "wait")).status == 400


async def test_is_paused_has_no_route_and_is_inferred() -> None:
    async with serving(sglang()) as client:
        assert (await client.get("/is_paused")).status == 404
        assert ((await client.get("/ready")).status, (await client.get("/ping")).status) == (
            200,
            200,
        )
        await pause(client, "abort")
        assert ((await client.get("/ready")).status, (await client.get("/ping")).status) == (
            503,
            200,
        )


# --- Health ---------------------------------------------------------------------------------------


async def test_health_while_paused_fails_late_and_sticks_until_a_good_probe() -> None:
    async with serving(sglang()) as client:
        assert (await client.get("/health")).status == 200
        await pause(client, "abort")
        assert (await client.get("/health")).status == 503
        await resume(client)
        assert (await client.get("/ready")).status == 503, "still, although not paused"
        assert (await client.get("/ping")).status == 503
        assert (await client.get("/health_generate")).status == 200
        assert (await client.get("/ping")).status == 200
        assert client.engine.core.unfinished == 0


async def test_health_while_paused_is_good_if_other_requests_make_the_scheduler_speak() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=50))
        await running(client)
        sglang_core(client).gate.paused = True
        health = asyncio.create_task(client.get("/health"))
        await client.engine.until(lambda: len(client.engine.journal.of("/health")) == 1)
        await client.engine.step()
        assert (await health).status == 200
        task.cancel()


async def test_health_without_generation_is_always_good() -> None:
    async with serving(sglang(health_generation=False)) as client:
        await pause(client, "in_place")
        assert (await client.get("/health")).status == 200


async def test_probes_fail_during_start_up() -> None:
    async with serving(sglang(speed=1, startup_s=3600)) as client:
        for path in ("/health", "/ready", "/ping"):
            assert (await client.get(path)).status == 503


# --- Flush ----------------------------------------------------------------------------------------


async def test_flush_on_a_busy_engine_is_a_400_with_text() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=1))
        await client.engine.until(lambda: client.engine.core.unfinished == 1)
        for method in ("GET", "POST"):
            reply = await client.call(method, "/flush_cache")
            assert (reply.status, reply.text) == (400, "Flush cache failed.\n")
        await client.engine.step()
        await task
        assert (await client.post("/flush_cache")).text.startswith("Cache flushed.")


async def test_a_flush_with_a_timeout_waits_for_idle_and_only_one_may() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=1))
        await client.engine.until(lambda: client.engine.core.unfinished == 1)
        waiting = client.soon("/flush_cache?timeout=60")
        await client.engine.until(lambda: sglang_core(client).flushing)
        second = await client.post("/flush_cache?timeout=60")
        assert (second.status, "already in progress" in second.text) == (400, True)
        await client.engine.step()
        await task
        assert (await waiting).status == 200


async def test_a_flush_with_a_timeout_does_not_ignore_the_queue_of_a_paused_engine() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=50))
        await running(client)
        await pause(client, "retract")
        await frozen(client)
        late = await client.post("/flush_cache?timeout=0.01")
        assert (late.status, late.text) == (400, "Timed out waiting for idle state.\n")
        assert (await client.post("/flush_cache")).status == 200
        task.cancel()


@pytest.mark.parametrize("timeout", ["-1", "soon"])
async def test_a_wrong_timeout_is_refused(timeout: str) -> None:
    async with serving(sglang()) as client:
        assert (await client.post(f"/flush_cache?timeout={timeout}")).status == 400


# --- Aborts ---------------------------------------------------------------------------------------


async def test_a_request_id_matches_as_a_prefix() -> None:
    async with serving(sglang(manual=True)) as client:
        tasks = {
            rid: client.soon("/generate", generate_body(tokens=2, rid=rid))
            for rid in ("a", "ab", "b")
        }
        await running(client, 3)
        await client.post("/abort_request", {"rid": "a"})
        await client.engine.step()
        kinds = {
            rid: (await task).json["meta_info"]["finish_reason"]["type"]
            for rid, task in tasks.items()
        }
        assert kinds == {"a": "abort", "ab": "abort", "b": "length"}


async def test_an_empty_or_unknown_id_is_answered_like_any_other() -> None:
    async with serving(sglang(manual=True)) as client:
        task = client.soon("/generate", generate_body(tokens=2))
        await running(client)
        for body in ({}, {"rid": "nobody"}):
            reply = await client.post("/abort_request", body)
            assert (reply.status, reply.body) == (200, b"")
        await client.engine.step()
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "length"


async def test_a_request_at_the_gate_cannot_be_aborted() -> None:
    async with serving(sglang()) as client:
        await pause(client, "abort")
        task = client.soon("/generate", generate_body(rid="a"))
        gate = sglang_core(client).gate
        await client.engine.until(lambda: gate.waiting == 1)
        await client.post("/abort_request", {"rid": "a"})
        await resume(client)
        assert (await task).json["meta_info"]["finish_reason"]["type"] == "length"


# --- Load -----------------------------------------------------------------------------------------


async def test_loads_freeze_while_the_scheduler_is_paused() -> None:
    async with serving(sglang()) as client:

        async def stamp() -> float:
            return float((await client.get("/v1/loads")).json["loads"][0]["timestamp"])

        first = await stamp()
        assert await stamp() > first, "an idle scheduler keeps reporting"
        await pause(client, "in_place")
        await frozen(client)
        second = await stamp()
        assert await stamp() == second
        await resume(client)
        await client.engine.until(
            lambda: client.engine.core.ranks[0].scheduler.hold.name == "NOTHING"
        )
        assert await stamp() > second


async def test_loads_keep_flowing_in_an_abort_pause() -> None:
    async with serving(sglang()) as client:
        await pause(client, "abort")
        before = (await client.get("/v1/loads")).json["loads"][0]["timestamp"]
        assert (await client.get("/v1/loads")).json["loads"][0]["timestamp"] > before
