"""``/generate`` of the SGLang engine, over a real socket."""

from itertools import pairwise

import pytest

from tests.sim.support import chat_body, generate_body, running, serving, sglang

DEFAULT_SPAN = {"version": "default", "start": 0, "end": 8}


async def test_a_single_answer() -> None:
    async with serving(sglang()) as client:
        reply = await client.post("/generate", generate_body("hello", rid="a"))
        assert reply.status == 200
        answer = reply.json
        assert len(answer["output_ids"]) == 8
        assert bytes(answer["output_ids"]).decode() == answer["text"]
        info = answer["meta_info"]
        assert info["id"] == "a"
        assert info["finish_reason"] == {"type": "length", "length": 8}
        assert (info["prompt_tokens"], info["completion_tokens"]) == (5, 8)
        assert info["cached_tokens"] == 0
        assert info["weight_version"] == "default"
        assert info["weight_versions"] == [DEFAULT_SPAN]
        assert info["num_retractions"] == 0


async def test_input_ids_and_put() -> None:
    async with serving(sglang()) as client:
        body = {"input_ids": [1, 2, 70_000], "sampling_params": {"max_new_tokens": 2}}
        reply = await client.call("PUT", "/generate", body)
        assert reply.json["meta_info"]["prompt_tokens"] == 3


async def test_a_batch_with_n_answers_a_list() -> None:
    async with serving(sglang()) as client:
        body = generate_body(["a", "bb"], tokens=2, sampling={"n": 2})
        answers = (await client.post("/generate", body)).json
        assert [a["meta_info"]["prompt_tokens"] for a in answers] == [1, 1, 2, 2]
        assert len({a["meta_info"]["id"] for a in answers}) == 4


async def test_per_prompt_parameters_and_ids() -> None:
    async with serving(sglang()) as client:
        body = {
            "input_ids": [[1], [2]],
            "rid": ["x", "y"],
            "sampling_params": [{"max_new_tokens": n, "ignore_eos": True} for n in (1, 3)],
        }
        answers = (await client.post("/generate", body)).json
        assert [a["meta_info"]["id"] for a in answers] == ["x", "y"]
        assert [len(a["output_ids"]) for a in answers] == [1, 3]


async def test_temperature_zero_depends_on_seed_prompt_and_version_alone() -> None:
    async with serving(sglang()) as one, serving(sglang()) as other:
        body = generate_body("hello", tokens=40, sampling={"temperature": 0})
        texts = {(await client.post("/generate", body)).json["text"] for client in (one, other)}
        assert len(texts) == 1
        refit = {"model_path": "/w/7", "weight_version": "7"}
        await one.post("/update_weights_from_disk", refit)
        texts.add((await one.post("/generate", body)).json["text"])
        assert len(texts) == 2, "new weights say something else"


async def test_without_it_answers_differ_unless_the_engine_is_deterministic() -> None:
    body = generate_body("hello", tokens=40)
    async with serving(sglang()) as client:
        texts = {(await client.post("/generate", body)).json["text"] for _ in range(2)}
        assert len(texts) == 2
    async with serving(sglang(deterministic=True)) as client:
        texts = {(await client.post("/generate", body)).json["text"] for _ in range(2)}
        assert len(texts) == 1


async def test_the_second_request_is_cached() -> None:
    async with serving(sglang(block_size=4)) as client:
        body = generate_body("0123456789")
        await client.post("/generate", body)
        info = (await client.post("/generate", body)).json["meta_info"]
        assert info["cached_tokens"] == 8
        salted = (await client.post("/generate", body | {"cache_salt": "s"})).json["meta_info"]
        assert salted["cached_tokens"] == 0


async def test_logprobs_are_triples_of_logprob_id_and_text() -> None:
    async with serving(sglang()) as client:
        body = generate_body(
            "hi",
            tokens=3,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
        )
        answer = (await client.post("/generate", body)).json
        info = answer["meta_info"]
        triples = info["output_token_logprobs"]
        assert [one[1] for one in triples] == answer["output_ids"]
        assert all(one[0] < 0 for one in triples)
        assert "".join(one[2] for one in triples) == answer["text"]
        assert [one[1] for one in info["input_token_logprobs"]] == [104, 105]
        assert [len(one) for one in info["output_top_logprobs"]] == [2, 2, 2]


async def test_stop_text_is_trimmed_and_named() -> None:
    async with serving(sglang(deterministic=True)) as client:
        whole = (await client.post("/generate", generate_body(tokens=30))).json["text"]
        stop = whole[8:11]
        body = generate_body(tokens=30, sampling={"stop": [stop]})
        answer = (await client.post("/generate", body)).json
        assert answer["text"] == whole[: whole.index(stop)]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


async def test_an_answer_ends_by_itself_with_eos() -> None:
    async with serving(sglang(mean_output_tokens=4.0)) as client:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 2000}}
        answer = (await client.post("/generate", body)).json
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 256}
        assert answer["output_ids"][-1] == 256
        assert len(answer["text"]) == len(answer["output_ids"]) - 1


# --- Streams -------------------------------------------------------------------------------------


async def test_chunks_are_cumulative_and_the_last_one_has_the_spans() -> None:
    async with serving(sglang()) as client:
        *chunks, done = await client.events("/generate", generate_body(tokens=4, stream=True))
        assert done == "[DONE]"
        assert [len(chunk["output_ids"]) for chunk in chunks] == [1, 2, 3, 4]
        for before, after in pairwise(chunks):
            assert after["text"].startswith(before["text"])
        for chunk in chunks[:-1]:
            assert chunk["meta_info"]["finish_reason"] is None
            assert chunk["meta_info"]["weight_version"] == "default"
            assert "weight_versions" not in chunk["meta_info"]
        last = chunks[-1]["meta_info"]
        assert last["finish_reason"]["type"] == "length"
        assert last["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


async def test_incremental_chunks_carry_new_tokens_only() -> None:
    async with serving(sglang(stream_incremental=True)) as client:
        body = generate_body(tokens=4, stream=True, return_logprob=True)
        *chunks, _ = await client.events("/generate", body)
        assert [len(chunk["output_ids"]) for chunk in chunks] == [1, 1, 1, 1]
        assert [len(c["meta_info"]["output_token_logprobs"]) for c in chunks] == [1, 1, 1, 1]
        assert [c["meta_info"]["completion_tokens"] for c in chunks] == [1, 2, 3, 4]


async def test_a_streamed_batch_numbers_its_chunks() -> None:
    async with serving(sglang()) as client:
        body = generate_body(["a", "b"], tokens=2, stream=True)
        *chunks, _ = await client.events("/generate", body)
        assert sorted(chunk["index"] for chunk in chunks) == [0, 0, 1, 1]


async def test_a_refused_stream_says_so_in_the_stream() -> None:
    async with serving(sglang(context_length=10)) as client:
        events = await client.events("/generate", generate_body("x" * 20, stream=True))
        assert "longer than the model's context" in events[0]["error"]["message"]
        assert events[-1] == "[DONE]"


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either text"),
        ({"text": "a", "input_ids": [1]}, "Either text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], 2]}, "input_ids"),
        ({"text": []}, "empty"),
        ({"text": ["a"], "rid": ["x", "y"]}, "rids"),
        ({"text": ["a"], "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "routed_dp_rank": 1}, "out of range"),
        ({"text": "x" * 100}, "longer than the model's context"),
        ({"text": "x", "sampling_params": {"max_new_tokens": 100}}, "Requested token count"),
    ],
)
async def test_a_wrong_request_is_an_error_object(body: dict[str, object], message: str) -> None:
    async with serving(sglang(context_length=64)) as client:
        reply = await client.post("/generate", body)
        assert reply.status == 400
        assert message in reply.json["error"]["message"]


async def test_the_schema_gate_answers_a_string() -> None:
    async with serving(sglang()) as client:
        reply = await client.post("/generate", {"text": 5})
        assert reply.status == 400
        assert isinstance(reply.json["error"], str)


async def test_a_body_that_is_no_json_is_a_validation_error() -> None:
    async with serving(sglang()) as client:
        reply = await client.post("/generate", b"{")
        assert reply.status == 400
        assert reply.json["object"] == "error"
        assert reply.json["code"] == 400


async def test_a_prompt_beyond_the_pool_is_refused() -> None:
    async with serving(sglang(kv_tokens=32)) as client:
        reply = await client.post("/generate", generate_body("x" * 40))
        assert reply.status == 400
        assert "KV pool" in reply.json["error"]["message"]


# --- Chat and completions ------------------------------------------------------------------------


async def test_chat_carries_the_version_as_metadata() -> None:
    async with serving(sglang()) as client:
        answer = (await client.post("/v1/chat/completions", chat_body(rid="r"))).json
        assert answer["object"] == "chat.completion"
        assert answer["id"] == "r"
        (choice,) = answer["choices"]
        assert choice["message"]["role"] == "assistant"
        assert len(choice["message"]["content"]) == 8
        assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
        assert answer["metadata"] == {
            "weight_version": "default",
            "weight_versions": [DEFAULT_SPAN],
        }
        usage = answer["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["total_tokens"] == usage["prompt_tokens"] + 8


async def test_metadata_is_that_of_the_first_choice() -> None:
    async with serving(sglang()) as client:
        answer = (await client.post("/v1/chat/completions", chat_body(n=3, tokens=2))).json
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert answer["metadata"]["weight_versions"][-1]["end"] == 2
        assert answer["usage"]["completion_tokens"] == 6


async def test_chat_stream_has_no_version_anywhere() -> None:
    async with serving(sglang()) as client:
        body = chat_body(tokens=3, stream=True, stream_options={"include_usage": True})
        reply = await client.post("/v1/chat/completions", body)
        assert "weight_version" not in reply.text
        assert "metadata" not in reply.text


async def test_chat_wants_json() -> None:
    async with serving(sglang()) as client:
        headers = {"Content-Type": "text/plain"}
        reply = await client.post("/v1/chat/completions", b"{}", headers=headers)
        assert reply.status == 400
        assert reply.json["object"] == "error"


async def test_any_model_is_served() -> None:
    async with serving(sglang()) as client:
        answer = (await client.post("/v1/chat/completions", chat_body(model="other"))).json
        assert answer["model"] == "other"


async def test_a_data_parallel_header_wins_over_the_body_and_is_checked() -> None:
    async with serving(sglang(dp_size=2)) as client:
        path = "/v1/chat/completions"
        headers = {"X-Data-Parallel-Rank": "1"}
        await client.post(path, chat_body(rid="a", routed_dp_rank=0), headers=headers)
        assert client.engine.journal.generation("a").rank == 1
        bad = await client.post(path, chat_body(), headers={"X-Data-Parallel-Rank": "one"})
        assert bad.status == 400
        far = await client.post(path, chat_body(), headers={"X-Data-Parallel-Rank": "2"})
        assert far.status == 400


async def test_generate_ignores_the_data_parallel_header() -> None:
    async with serving(sglang(dp_size=2)) as client:
        headers = {"X-Data-Parallel-Rank": "7"}
        body = generate_body(rid="a", routed_dp_rank=1)
        reply = await client.post("/generate", body, headers=headers)
        assert reply.json["meta_info"]["dp_rank"] == 1


async def test_ranks_take_turns() -> None:
    async with serving(sglang(dp_size=2)) as client:
        ranks = []
        for _ in range(4):
            reply = await client.post("/generate", generate_body())
            ranks.append(reply.json["meta_info"]["dp_rank"])
        assert sorted(ranks) == [0, 0, 1, 1]


# --- Clients that leave --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_request(stream: bool) -> None:
    async with serving(sglang(manual=True)) as client:
        engine = client.engine
        task = client.soon("/generate", generate_body(tokens=1000, stream=stream, rid="a"))
        await running(client)
        task.cancel()
        await engine.until(lambda: engine.journal.entries[0].disconnected)
        await engine.step()
        generation = engine.journal.generation("a")
        assert generation.finish.value == "abort"
        assert engine.core.in_flight == 0
        assert engine.core.unfinished == 0
