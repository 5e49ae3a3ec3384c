"""What vLLM answers: requests, spans, keys, information."""

from typing import Any

import pytest

from tests.sim.support import (
    chat_body,
    running,
    serving,
    tokens_body,
    vllm,
    vllm_core,
)
from tests.sim.vllm_calls import GENERATE, flag, label, reload_weights, spans

# --- Requests -------------------------------------------------------------------------------------


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


# --- Keys and modes -------------------------------------------------------------------------------


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


# --- Information ----------------------------------------------------------------------------------


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
