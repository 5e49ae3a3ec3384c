"""What vLLM does when it is paused, put to sleep, refitted and flushed: each surprise by name."""

import asyncio
from typing import Any

import pytest

from steersman_sim.engine import TimeModel
from tests.sim.support import (
    CONNECTION_LOST,
    Client,
    chat_body,
    running,
    serving,
    tokens_body,
    vllm,
    vllm_core,
)
from tests.sim.vllm_calls import GENERATE, flag, label, reload_weights, spans

# --- Pause ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_requests_queue_while_paused_and_run_after_resume(mode: str) -> None:
    async with serving(vllm()) as client:
        assert (await client.post(f"/pause?mode={mode}")).json == {"status": "paused"}
        task = client.soon(GENERATE, tokens_body([1]))
        await client.engine.until(lambda: client.engine.core.unfinished == 1)
        assert not task.done()
        assert (await client.post("/resume")).json == {"status": "resumed"}
        assert (await task).status == 200


async def test_pause_abort_is_the_default_and_gives_partial_tokens() -> None:
    async with serving(vllm(manual=True, weight_version="3")) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=50))
        await running(client)
        assert (await client.post("/pause")).status == 200
        reply = await task
        assert reply.status == 200
        (choice,) = reply.json["choices"]
        assert choice["finish_reason"] == "abort"
        assert len(choice["token_ids"]) == 1
        assert choice["weight_versions"] == [{"version": "3", "start": 0, "end": 1}]


async def test_pause_is_acknowledged_after_completion() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=3))
        await running(client)
        pausing = client.soon("/pause?mode=wait")
        scheduler = client.engine.core.ranks[0].scheduler
        await client.engine.until(lambda: scheduler.hold.name == "NEW")
        await client.engine.step()
        assert not pausing.done()
        await client.engine.step()
        assert (await task).json["choices"][0]["finish_reason"] == "length"
        assert (await pausing).json == {"status": "paused"}


async def test_pause_keep_is_acknowledged_after_the_step_under_way() -> None:
    slow = TimeModel(step_s=3600.0)
    async with serving(vllm(time=slow, speed=1)) as client:
        task = client.soon(GENERATE, tokens_body([1]))
        scheduler = client.engine.core.ranks[0].scheduler
        await client.engine.until(lambda: scheduler.under_way is not None)
        pausing = client.soon("/pause?mode=keep")
        core = vllm_core(client)
        await client.engine.until(lambda: core.pausing == 1)
        assert scheduler.hold.name == "NOTHING"
        assert not pausing.done()
        task.cancel()
        pausing.cancel()


async def test_keep_clears_the_cache_by_default_and_recomputes() -> None:
    async with serving(vllm(manual=True, block_size=4)) as client:
        task = client.soon(GENERATE, tokens_body(list(range(16)), tokens=4, request_id="a"))
        await running(client)
        await client.post("/pause?mode=keep")
        scheduler = client.engine.core.ranks[0].scheduler
        assert (scheduler.pool.held, scheduler.pool.evictable) == (0, 0)
        await client.post("/resume")
        await client.engine.step(3)
        assert len((await task).json["choices"][0]["token_ids"]) == 4
        assert client.engine.journal.generation("a").retractions == 1


async def test_keep_without_clear_cache_freezes_in_place() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=2, request_id="a"))
        await running(client)
        await client.post("/pause?mode=keep&clear_cache=false")
        assert client.engine.core.ranks[0].scheduler.running == 1
        await client.post("/resume")
        await client.engine.step()
        await task
        assert client.engine.journal.generation("a").retractions == 0


@pytest.mark.parametrize("query", ["mode=retract", "clear_cache=maybe"])
async def test_a_wrong_pause_is_a_string_error(query: str) -> None:
    async with serving(vllm()) as client:
        reply = await client.post(f"/pause?{query}")
        assert reply.status == 400
        assert isinstance(reply.json["error"], str)


async def test_health_when_paused_or_asleep_is_200() -> None:
    async with serving(vllm()) as client:
        for path in ("/pause?mode=keep", "/sleep?level=2"):
            await client.post(path)
            assert (await client.get("/health")).status == 200
            assert (await client.get("/ping")).status == 200


async def test_is_paused_is_explicit_and_is_sleeping_is_true_when_merely_paused() -> None:
    async with serving(vllm()) as client:
        assert not await flag(client, "/is_paused")
        assert not await flag(client, "/is_sleeping")
        await client.post("/pause?mode=keep")
        assert await flag(client, "/is_paused")
        assert await flag(client, "/is_sleeping")
        await client.post("/resume")
        assert not await flag(client, "/is_sleeping")


# --- Sleep ----------------------------------------------------------------------------------------


async def test_sleep_on_busy_aborts_first_and_succeeds() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=50))
        await running(client)
        assert (await client.post("/sleep")).json == {"status": "sleeping", "level": 1}
        assert (await task).json["choices"][0]["finish_reason"] == "abort"
        assert client.engine.running


async def test_sleep_level_zero_is_a_mere_pause() -> None:
    async with serving(vllm()) as client:
        assert (await client.post("/sleep?level=0")).json["level"] == 0
        assert await flag(client, "/is_paused")
        assert (await client.post("/resume")).status == 200
        assert (await client.post(GENERATE, tokens_body([1]))).status == 200


async def test_requests_wait_through_sleep() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep")
        task = client.soon(GENERATE, tokens_body([1]))
        await client.engine.until(lambda: client.engine.core.unfinished == 1)
        assert not task.done()
        await client.post("/wake_up")
        assert (await task).status == 200


async def test_wake_wrong_tag_is_200_and_stays_sleeping() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep")
        reply = await client.post("/wake_up?tags=nonsense")
        assert (reply.status, reply.json) == (200, {"status": "sleeping", "tags": ["nonsense"]})
        assert await flag(client, "/is_sleeping")


async def test_partial_wake_stays_paused_and_the_last_tag_resumes_by_itself() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep")
        task = client.soon(GENERATE, tokens_body([1]))
        assert (await client.post("/wake_up?tags=weights")).json["status"] == "sleeping"
        assert await flag(client, "/is_paused")
        assert (await client.post("/wake_up?tags=kv_cache")).json["status"] == "awake"
        assert not await flag(client, "/is_paused")
        assert (await task).status == 200


async def test_one_tag_that_is_awake_keeps_the_others_asleep() -> None:
    async with serving(vllm()) as client:
        await client.post("/pause")
        await client.post("/release_kv_cache_memory")
        reply = await client.post("/wake_up?tags=weights&tags=kv_cache")
        assert (reply.status, reply.json["status"]) == (200, "sleeping")
        assert vllm_core(client).asleep == {"kv_cache"}
        assert (await client.post("/wake_up")).json["status"] == "awake"


async def test_sleeping_twice_changes_nothing_more() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep?level=1")
        assert (await client.post("/sleep?level=2")).status == 200
        await client.post("/wake_up")
        await client.post(GENERATE, tokens_body([1], request_id="kept"))
        (span,) = client.engine.journal.generation("kept").truth
        assert span.version == "default"


async def _sleep_state(client: Client) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    found = {}
    for line in lines:
        if line.startswith("vllm:engine_sleep_state"):
            found[line.partition('sleep_state="')[2].partition('"')[0]] = float(line.split()[-1])
    return found


async def test_the_metric_tells_sleep_from_a_mere_pause() -> None:
    awake = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
    async with serving(vllm()) as client:
        await client.post("/pause?mode=keep")
        assert await flag(client, "/is_sleeping")
        assert await _sleep_state(client) == awake
        for level, state in [(1, "weights_offloaded"), (2, "discard_all")]:
            await client.post(f"/sleep?level={level}")
            shown = await _sleep_state(client)
            assert {name for name, value in shown.items() if value} == {state}
            await client.post("/wake_up?tags=weights")
            assert await _sleep_state(client) == shown, "until everything is awake"
            await client.post("/wake_up?tags=kv_cache")
            assert await _sleep_state(client) == awake


async def test_the_metric_of_a_mere_pause_through_sleep_outlives_the_resume() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep?level=0")
        await client.post("/resume")
        assert not any((await _sleep_state(client)).values())


async def test_the_metrics_say_when_the_process_was_started() -> None:
    async with serving(vllm()) as client:
        began = client.engine.core.started
        assert f"process_start_time_seconds {began!r}" in (await client.get("/metrics")).text


async def test_an_abort_is_seen_in_the_metrics_of_a_paused_engine() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=50))
        await running(client)
        assert "vllm:num_requests_running" in (await client.get("/metrics")).text
        await client.post("/pause?mode=keep&clear_cache=false")
        assert client.engine.core.ranks[0].load.num_running_reqs == 1
        await client.post("/abort_requests", {"request_ids": []})
        assert client.engine.core.ranks[0].load.num_running_reqs == 0, "an empty list means all"
        assert (await task).json["choices"][0]["finish_reason"] == "abort"


async def test_wake_resumes_even_what_somebody_had_paused() -> None:
    async with serving(vllm()) as client:
        await client.post("/pause?mode=keep")
        await client.post("/sleep")
        assert (await client.post("/wake_up")).json == {"status": "awake", "tags": None}
        assert not await flag(client, "/is_paused")


async def test_level_two_drops_the_weights_and_level_one_keeps_them() -> None:
    async with serving(vllm()) as client:
        for level, version in [(1, "default"), (2, "undefined")]:
            await client.post(f"/sleep?level={level}")
            await client.post("/wake_up")
            await client.post(GENERATE, tokens_body([1], request_id=f"level{level}"))
            (span,) = client.engine.journal.generation(f"level{level}").truth
            assert span.version == version


async def test_resume_while_asleep_ends_in_a_dead_engine() -> None:
    async with serving(vllm()) as client:
        await client.post("/sleep")
        assert (await client.post("/resume")).status == 200
        with pytest.raises(CONNECTION_LOST):
            await client.post(GENERATE, tokens_body([1]))
        assert "asleep" in await client.engine.wait_dead()


async def test_kv_memory_is_released_only_from_a_complete_pause() -> None:
    async with serving(vllm()) as client:
        assert (await client.post("/release_kv_cache_memory")).status == 500
        await client.post("/pause?mode=keep")
        reply = await client.post("/release_kv_cache_memory")
        assert reply.json == {"status": "kv_cache_released"}
        assert (await client.post("/release_kv_cache_memory")).status == 500
        assert (await client.post("/wake_up?tags=kv_cache")).json["status"] == "awake"


@pytest.mark.parametrize("query", ["level=3", "level=x", "mode=retract"])
async def test_a_wrong_sleep_is_refused(query: str) -> None:
    async with serving(vllm()) as client:
        assert (await client.post(f"/sleep?{query}")).status == 400


# --- Refits ---------------------------------------------------------------------------------------


async def test_refit_without_start_is_500() -> None:
    async with serving(vllm()) as client:
        await client.post("/init_weight_transfer_engine", {"init_info": {}})
        assert (await client.post("/update_weights", {"update_info": {}})).status == 500
        assert (await client.post("/finish_weight_update")).status == 500
        assert (await client.post("/start_weight_update")).status == 200
        assert (await client.post("/start_weight_update")).status == 500
        assert (await client.post("/shutdown_weight_transfer_engine")).status == 500
        assert (await client.post("/update_weights", {"update_info": {}})).status == 200
        finished = await client.post("/finish_weight_update", {"weight_version": "7"})
        assert finished.json == {"message": "Weight update finished"}
        assert (await client.get("/weight_info")).json == {"weight_version": "7"}
        assert (await client.post("/shutdown_weight_transfer_engine")).status == 200


async def test_transfer_needs_a_backend_and_its_initialization() -> None:
    async with serving(vllm(weight_transfer=None)) as client:
        reply = await client.post("/init_weight_transfer_engine", {"init_info": {}})
        assert reply.status == 500
        assert isinstance(reply.json["error"], str)
        assert (await client.post("/start_weight_update")).status == 500
    async with serving(vllm()) as client:
        await client.post("/start_weight_update")
        assert (await client.post("/update_weights", {"update_info": {}})).status == 500
    async with serving(vllm(weight_transfer="ipc")) as client:
        await client.post("/start_weight_update")
        assert (await client.post("/update_weights", {"update_info": [{}]})).status == 200


async def test_refit_unpaused_and_busy_applies_at_once_in_the_middle_of_a_request() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=4, request_id="a"))
        await running(client)
        assert (await reload_weights(client)).json == {"results": [None]}
        await client.engine.step()
        await label(client, "7")
        await client.engine.step(2)
        assert spans(await task) == [
            {"version": "default", "start": 0, "end": 2},
            {"version": "7", "start": 2, "end": 4},
        ]
        truth = client.engine.journal.generation("a").truth
        assert [(s.version, s.start, s.end) for s in truth] == [("default", 0, 1), ("7", 1, 4)]


async def test_a_reload_does_not_clear_the_prefix_cache() -> None:
    async with serving(vllm(block_size=4)) as client:
        prompt = list(range(10))
        await client.post(GENERATE, tokens_body(prompt))
        await reload_weights(client)
        await client.post(GENERATE, tokens_body(prompt, request_id="a"))
        generation = client.engine.journal.generation("a")
        assert (generation.cached_tokens, generation.stale_cached_tokens) == (8, 8)


async def test_finish_clears_no_cache_and_checks_no_pause() -> None:
    async with serving(vllm(manual=True, weight_transfer="ipc")) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=2))
        await running(client)
        await client.post("/start_weight_update")
        await client.post("/update_weights", {"update_info": {}})
        body = {"weight_version": "7"}
        assert (await client.post("/finish_weight_update", body)).status == 200
        await client.engine.step()
        assert [span["version"] for span in spans(await task)] == ["default", "7"]


async def test_version_label_call_is_a_label_only() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=2))
        await running(client)
        await label(client, "9")
        await client.engine.step()
        assert (await task).json["choices"][0]["finish_reason"] == "length"


async def test_served_model_name_is_unchanged_by_a_disk_refit() -> None:
    async with serving(vllm(model="qwen")) as client:
        await reload_weights(client)
        card = (await client.get("/v1/models")).json["data"][0]
        assert (card["id"], card["root"]) == ("qwen", "qwen")
        assert (await client.get("/v1/models/qwen")).status == 200
        assert (await client.get("/v1/models/w")).status == 404


async def test_the_checker_compares_and_zeroes() -> None:
    async with serving(vllm()) as client:

        async def check(**body: Any) -> Any:
            return (await client.post("/weight_checker", body)).json

        sums = (await check(action="checksum"))["checksums"]
        assert await check(action="compare", baseline=sums) == {"match": True, "mismatches": []}
        await reload_weights(client)
        assert not (await check(action="compare", baseline=sums))["match"]
        assert await check(action="reset") == {"status": "reset"}
        assert client.engine.core.ranks[0].weights.weights.version == "undefined"
        assert (await client.post("/weight_checker", {"action": "x"})).status == 400


async def test_other_rpcs_answer_without_a_body_and_wrong_ones_with_a_detail() -> None:
    async with serving(vllm()) as client:
        reply = await client.post("/collective_rpc", {"method": "report"})
        assert (reply.status, reply.body) == (200, b"")
        wrong = await client.post("/collective_rpc", {"args": []})
        assert (wrong.status, set(wrong.json)) == (400, {"detail"})


# --- Caches and aborts ----------------------------------------------------------------------------


async def test_flush_on_busy_is_200_with_success_false() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=2))
        await running(client)
        reply = await client.post("/reset_prefix_cache")
        assert (reply.status, reply.json) == (200, {"success": False})
        forced = await client.post("/reset_prefix_cache?reset_running_requests=true")
        assert forced.json == {"success": True}
        assert (await client.post("/reset_prefix_cache?reset_running_requests=x")).status == 400
        await client.engine.step()
        assert (await task).json["choices"][0]["finish_reason"] == "length"


async def test_other_caches_are_reset_without_a_body() -> None:
    async with serving(vllm()) as client:
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            assert (await client.post(path)).status == 200


async def test_abort_requests_by_id_and_all() -> None:
    async with serving(vllm(manual=True)) as client:
        tasks = [
            client.soon(GENERATE, tokens_body([1], tokens=50, request_id="a")),
            client.soon("/v1/chat/completions", chat_body(), headers={"X-Request-Id": "b"}),
            client.soon(GENERATE, tokens_body([1], tokens=50, request_id="c")),
        ]
        await running(client, 3)
        reply = await client.post("/abort_requests", {"request_ids": ["a", "b", "nobody"]})
        assert reply.json == {"status": "aborted", "aborted": 2}
        rest = await client.post("/abort_requests", {})
        assert rest.json["aborted"] == 1
        for reply in await asyncio.gather(*tasks):
            assert reply.json["choices"][0]["finish_reason"] == "abort"


async def test_abort_requests_needs_a_body() -> None:
    async with serving(vllm()) as client:
        for body in (None, b"{", {"request_ids": "a"}):
            reply = await client.post("/abort_requests", body)
            assert (reply.status, set(reply.json)) == (400, {"detail"})


async def test_the_guarded_abort_answers_nothing() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=50, request_id="a"))
        await running(client)
        path = "/inference/v1/abort_requests"
        assert (await client.post(path, {})).status == 400
        reply = await client.post(path, {"request_ids": ["a"]})
        assert (reply.status, reply.body) == (200, b"")
        assert (await task).json["choices"][0]["finish_reason"] == "abort"
