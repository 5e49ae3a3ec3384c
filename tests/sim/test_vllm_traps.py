"""The faults and surprises of vLLM that a router must survive, each by name."""

import asyncio
from typing import Any

import aiohttp
import pytest

from steersman_sim.engine import TimeModel
from tests.sim.support import (
    Client,
    Reply,
    chat_body,
    running,
    serving,
    tokens_body,
    vllm,
    vllm_core,
)

GENERATE = "/inference/v1/generate"
CONNECTION_LOST = (aiohttp.ClientConnectionError, ConnectionError)


async def flag(client: Client, path: str) -> bool:
    (value,) = (await client.get(path)).json.values()
    assert isinstance(value, bool)
    return value


async def reload_weights(client: Client, path: str = "/w/7") -> Reply:
    body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
    return await client.post("/collective_rpc", body)


async def label(client: Client, version: str) -> None:
    reply = await client.post("/update_weight_version", {"new_version": version})
    assert reply.json == {"success": True, "new_version": version}


def spans(reply: Reply) -> Any:
    return reply.json["choices"][0]["weight_versions"]


# --- Requests ------------------------------------------------------------------------------------


async def test_generate_takes_tokens_and_gives_tokens_with_spans() -> None:
    async with serving(vllm(weight_version="3")) as client:
        reply = await client.post(GENERATE, tokens_body([1, 2, 3], tokens=4, request_id="a"))
        answer = reply.json
        assert answer["request_id"] == "a"
        (choice,) = answer["choices"]
        assert len(choice["token_ids"]) == 4
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
        assert choice["weight_versions"] == [{"version": "3", "start": 0, "end": 4}]
        assert "text" not in choice
        assert answer["usage"]["completion_tokens"] == 4


async def test_spans_are_null_until_somebody_labels_the_weights() -> None:
    async with serving(vllm()) as client:
        assert spans(await client.post(GENERATE, tokens_body([1]))) is None
        await label(client, "7")
        assert spans(await client.post(GENERATE, tokens_body([1]))) == [
            {"version": "7", "start": 0, "end": 8}
        ]


async def test_only_the_final_chunk_of_a_generate_stream_has_spans() -> None:
    async with serving(vllm(weight_version="3")) as client:
        body = tokens_body([1], tokens=3, stream=True, output_mode="text")
        *chunks, usage, done = await client.events(
            GENERATE, body | {"stream_options": {"include_usage": True}}
        )
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [len(choice["token_ids"]) for choice in choices] == [1, 1, 1]
        assert [choice["weight_versions"] is None for choice in choices] == [True, True, False]
        assert all(len(choice["text"]) == 1 for choice in choices)
        assert usage["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_and_completions_carry_no_version(stream: bool) -> None:
    async with serving(vllm()) as client:
        chat = await client.post("/v1/chat/completions", chat_body(stream=stream))
        body = {"prompt": "a", "max_tokens": 3, "stream": stream}
        completion = await client.post("/v1/completions", body)
        for reply in (chat, completion):
            assert reply.status == 200
            assert "weight_version" not in reply.text
            assert "metadata" not in reply.text


async def test_ids_come_from_the_header() -> None:
    async with serving(vllm()) as client:
        headers = {"X-Request-Id": "abc"}
        reply = await client.post("/v1/chat/completions", chat_body(), headers=headers)
        assert reply.json["id"] == "chatcmpl-abc"


async def test_an_unknown_model_is_404() -> None:
    async with serving(vllm(model="qwen")) as client:
        reply = await client.post("/v1/chat/completions", chat_body(model="other"))
        assert reply.status == 404
        assert reply.json["error"]["type"] == "NotFoundError"
        assert (await client.post(GENERATE, tokens_body([1], model="other"))).status == 404
        assert (await client.post(GENERATE, tokens_body([1], model="qwen"))).status == 200


async def test_generate_without_scale_out_is_403() -> None:
    async with serving(vllm(scale_out=False)) as client:
        assert (await client.post(GENERATE, tokens_body([1]))).status == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"token_ids": []},
        {"token_ids": ["a"]},
        {"token_ids": [1], "sampling_params": {"max_tokens": 10_000_000}},
    ],
)
async def test_wrong_generate_requests_are_400(body: dict[str, Any]) -> None:
    async with serving(vllm()) as client:
        reply = await client.post(GENERATE, body)
        assert reply.status == 400
        assert set(reply.json["error"]) == {"message", "type", "param", "code"}


async def test_n_and_logprobs() -> None:
    async with serving(vllm()) as client:
        body = tokens_body([1], tokens=2, sampling={"n": 2, "logprobs": 0})
        choices = (await client.post(GENERATE, body)).json["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert [len(choice["logprobs"]["content"]) for choice in choices] == [2, 2]


async def test_a_bad_data_parallel_header_is_ignored() -> None:
    async with serving(vllm(dp_size=2)) as client:
        for value, rank in [("1", 1), ("one", None), ("7", None)]:
            headers = {"X-data-parallel-rank": value}
            body = tokens_body([1], request_id=f"r{value}")
            assert (await client.post(GENERATE, body, headers=headers)).status == 200
            if rank is not None:
                assert client.engine.journal.generation(f"r{value}").rank == rank


async def test_a_client_that_leaves_aborts_at_once() -> None:
    async with serving(vllm(manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1], tokens=100))
        await running(client)
        task.cancel()
        await client.engine.until(lambda: client.engine.core.unfinished == 0)


# --- Pause ---------------------------------------------------------------------------------------


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


# --- Sleep ---------------------------------------------------------------------------------------


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


# --- Refits --------------------------------------------------------------------------------------


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


# --- Caches and aborts ---------------------------------------------------------------------------


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


# --- Keys and modes ------------------------------------------------------------------------------

DEV_ROUTES = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("GET", "/weight_info"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/server_info"),
    ("GET", "/get_world_size"),
]


async def test_dev_routes_are_missing_without_the_dev_mode() -> None:
    async with serving(vllm(dev_mode=False)) as client:
        for method, path in DEV_ROUTES:
            assert (await client.call(method, path)).status == 404
        assert (await client.post(GENERATE, tokens_body([1]))).status == 200


async def test_control_routes_need_no_key_and_data_routes_do() -> None:
    async with serving(vllm(api_key="k")) as client:
        for method, path in DEV_ROUTES:
            assert (await client.call(method, path)).status == 200
        for path in ("/health", "/version", "/metrics", "/load", "/kv_event_sources"):
            assert (await client.get(path)).status == 200
        assert (await client.post("/tokenize", {"prompt": "a"})).status == 200
        body = tokens_body([1])
        refused = await client.post(GENERATE, body)
        assert (refused.status, refused.json) == (401, {"error": "Unauthorized"})
        assert (await client.get("/v1/models")).status == 401
        headers = {"Authorization": "Bearer k"}
        assert (await client.post(GENERATE, body, headers=headers)).status == 200


async def test_data_parallel_disagreement_is_500() -> None:
    async with serving(vllm(dp_size=2)) as client:
        await client.post("/_sim/rank", {"rank": 1, "version": "other"})
        assert (await client.get("/weight_info")).status == 500
        await client.post("/_sim/rank", {"rank": 1, "hold": "everything"})
        assert (await client.get("/is_paused")).status == 500
        assert (await client.get("/is_sleeping")).status == 500


async def test_resume_during_a_pause_of_several_ranks_is_500() -> None:
    async with serving(vllm(dp_size=2, manual=True)) as client:
        headers = {"X-data-parallel-rank": "0"}
        task = client.soon(GENERATE, tokens_body([1], tokens=2), headers=headers)
        await running(client)
        pausing = client.soon("/pause?mode=wait")
        core = vllm_core(client)
        await client.engine.until(lambda: core.pausing == 1)
        assert (await client.post("/resume")).status == 500
        await client.engine.step()
        assert (await task).status == 200
        assert (await pausing).status == 200


# --- Information ---------------------------------------------------------------------------------


async def test_information_routes() -> None:
    async with serving(vllm(dp_size=2, tp_size=4)) as client:
        assert (await client.get("/version")).json == {"version": "0.32.0"}
        assert (await client.get("/kv_event_sources")).json == {}
        assert (await client.get("/get_world_size")).json == {"world_size": 8}
        assert (await client.get("/get_world_size?include_dp=false")).json == {"world_size": 4}
        text = (await client.get("/server_info")).json["vllm_config"]
        assert "data_parallel_size=2" in text
        shown = (await client.get("/server_info?config_format=json")).json["vllm_config"]
        assert shown["tensor_parallel_size"] == 4
        assert (await client.get("/server_info?config_format=xml")).status == 400


@pytest.mark.parametrize(("tracking", "load"), [(False, 0), (True, 1)])
async def test_load_counts_only_when_told_to(tracking: bool, load: int) -> None:
    async with serving(vllm(load_tracking=tracking, manual=True)) as client:
        task = client.soon(GENERATE, tokens_body([1]))
        await running(client)
        assert (await client.get("/load")).json == {"server_load": load}
        task.cancel()


async def test_metrics_freeze_while_nothing_is_scheduled() -> None:
    async with serving(vllm(manual=True)) as client:

        async def waiting() -> str:
            text = (await client.get("/metrics")).text
            (line,) = (x for x in text.splitlines() if x.startswith("vllm:num_requests_waiting{"))
            return line.rpartition(" ")[2]

        await client.post("/pause?mode=keep")
        task = client.soon(GENERATE, tokens_body([1]))
        await client.engine.until(lambda: client.engine.core.unfinished == 1)
        assert await waiting() == "0"
        await client.post("/resume")
        assert await waiting() == "1"
        task.cancel()


async def test_a_restart_is_unpaused_awake_and_back_at_the_launch_version() -> None:
    async with serving(vllm(weight_version="3")) as client:
        await reload_weights(client)
        await label(client, "7")
        await client.post("/sleep?level=2")
        await client.engine.restart()
        assert (await client.get("/weight_info")).json == {"weight_version": "3"}
        assert not await flag(client, "/is_sleeping")
        assert (await client.post(GENERATE, tokens_body([1]))).status == 200
