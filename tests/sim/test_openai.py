"""What both engines share of the OpenAI API and of the other inference routes."""

import json
from typing import Any

import pytest

from steersman_sim.engine import EngineConfig
from tests.sim.support import Client, chat_body, serving, sglang, vllm

BOTH = pytest.mark.parametrize("config", [sglang(), vllm()], ids=["sglang", "vllm"])
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@BOTH
async def test_a_chat_stream(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = chat_body(tokens=3, stream=True)
        *chunks, done = await client.events(CHAT, body)
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert [len(delta["content"]) for delta in deltas[1:]] == [1, 1, 1]
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "length"]
        assert not any("usage" in chunk for chunk in chunks)


@BOTH
async def test_the_pieces_of_a_stream_are_the_buffered_answer(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = chat_body(tokens=20, temperature=0)
        whole = (await client.post(CHAT, body)).json["choices"][0]["message"]["content"]
        *chunks, _ = await client.events(CHAT, body | {"stream": True})
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == whole


@BOTH
async def test_include_usage_adds_a_last_chunk_without_choices(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = chat_body(tokens=3, n=2, stream=True, stream_options={"include_usage": True})
        *chunks, last, _ = await client.events(CHAT, body)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 6
        assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}


@BOTH
async def test_completions_of_several_prompts(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = {"prompt": ["a", "bb"], "max_tokens": 2, "n": 2, "ignore_eos": True, "echo": True}
        answer = (await client.post(COMPLETIONS, body)).json
        assert answer["object"] == "text_completion"
        texts = [choice["text"] for choice in answer["choices"]]
        assert [text[:-2] for text in texts] == ["a", "a", "bb", "bb"]
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 8)


@BOTH
async def test_completions_default_to_sixteen_tokens(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = {"prompt": [1, 2, 3], "ignore_eos": True}
        answer = (await client.post(COMPLETIONS, body)).json
        assert answer["usage"]["completion_tokens"] == 16


@BOTH
async def test_a_completion_stream(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = {"prompt": "a", "max_tokens": 2, "ignore_eos": True, "stream": True}
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        *chunks, _ = await client.events(COMPLETIONS, body | options)
        assert [len(c["choices"][0]["text"]) for c in chunks[:-1]] == [1, 1]
        assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 2]


@BOTH
async def test_logprobs_of_chat_and_completions(config: EngineConfig) -> None:
    async with serving(config) as client:
        answer = (await client.post(CHAT, chat_body(tokens=3, logprobs=True))).json
        content = answer["choices"][0]["logprobs"]["content"]
        text = answer["choices"][0]["message"]["content"]
        assert "".join(one["token"] for one in content) == text
        assert all(one["logprob"] < 0 for one in content)
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "logprobs": 1}
        logprobs = (await client.post(COMPLETIONS, body)).json["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 3


@BOTH
async def test_token_ids_on_request(config: EngineConfig) -> None:
    async with serving(config) as client:
        answer = (await client.post(CHAT, chat_body(tokens=3, return_token_ids=True))).json
        ids = answer["choices"][0]["token_ids"]
        assert bytes(ids).decode() == answer["choices"][0]["message"]["content"]
        assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
        body = chat_body(tokens=2, return_token_ids=True, stream=True)
        *chunks, _ = await client.events(CHAT, body)
        assert [len(c["choices"][0].get("token_ids", [])) for c in chunks] == [0, 1, 1]


@BOTH
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "n": 0}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10_000_000}),
        (COMPLETIONS, {"prompt": None}),
        (COMPLETIONS, {"prompt": "a", "temperature": "warm"}),
    ],
)
async def test_wrong_requests_are_400(
    config: EngineConfig, path: str, body: dict[str, Any]
) -> None:
    async with serving(config) as client:
        reply = await client.post(path, body)
        assert reply.status == 400
        message = reply.json.get("message") or reply.json["error"]["message"]
        assert message


@BOTH
async def test_a_body_that_is_no_object_is_400(config: EngineConfig) -> None:
    async with serving(config) as client:
        for body in (b"[1]", b"{", b"null"):
            headers = {"Content-Type": "application/json"}
            assert (await client.post(CHAT, body, headers=headers)).status == 400


# --- The other routes ----------------------------------------------------------------------------


@BOTH
async def test_embeddings_depend_on_text_and_weights(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = {"input": ["a", "b", "a"]}
        reply = (await client.post("/v1/embeddings", body)).json
        first, second, third = (one["embedding"] for one in reply["data"])
        assert first == third != second
        client.engine.core.ranks[0].weights.load("disk:/7", version="7")
        again = (await client.post("/v1/embeddings", body)).json["data"][0]["embedding"]
        assert again != first


@BOTH
async def test_scores_ranks_and_classes(config: EngineConfig) -> None:
    async with serving(config) as client:
        pair = {"text_1": "q", "text_2": ["a", "b"]}
        scores = (await client.post("/v1/score", pair)).json["data"]
        assert [one["index"] for one in scores] == [0, 1]
        classes = (await client.post("/classify", {"input": ["a", "b"]})).json["data"]
        assert all(abs(sum(one["probs"]) - 1) < 1e-5 for one in classes)
        body = {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}
        ranked = (await client.post("/v1/rerank", body)).json
        results = ranked if isinstance(ranked, list) else ranked["results"]
        key = "score" if isinstance(ranked, list) else "relevance_score"
        assert len(results) == 2
        assert results[0][key] >= results[1][key]


async def test_sglang_scores_items_and_encodes() -> None:
    async with serving(sglang()) as client:
        body = {"query": "q", "items": ["a", "b"], "label_token_ids": [1, 2, 3]}
        scores = (await client.post("/v1/score", body)).json["scores"]
        assert [len(one) for one in scores] == [3, 3]
        encoded = (await client.post("/encode", {"text": "a"})).json
        assert encoded["meta_info"]["prompt_tokens"] == 1
        assert len((await client.post("/encode", {"text": ["a", "b"]})).json) == 2


@BOTH
async def test_responses(config: EngineConfig) -> None:
    async with serving(config) as client:
        body = {"input": "hi", "max_output_tokens": 4, "ignore_eos": True}
        answer = (await client.post("/v1/responses", body)).json
        assert (answer["object"], answer["status"]) == ("response", "completed")
        assert len(answer["output"][0]["content"][0]["text"]) == 4
        assert answer["usage"]["output_tokens"] == 4
        reply = await client.post("/v1/responses", body | {"stream": True})
        kinds = named_events(reply.text)
        assert [kind for kind, _ in kinds][0::5] == ["response.created", "response.completed"]
        text = "".join(e["delta"] for kind, e in kinds if kind == "response.output_text.delta")
        assert text == kinds[-1][1]["response"]["output"][0]["content"][0]["text"]


@BOTH
async def test_messages(config: EngineConfig) -> None:
    async with serving(config) as client:
        turns = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        body = {"messages": turns, "max_tokens": 4, "ignore_eos": True, "system": "be brief"}
        answer = (await client.post("/v1/messages", body)).json
        assert (answer["role"], answer["stop_reason"]) == ("assistant", "max_tokens")
        assert answer["usage"]["output_tokens"] == len(answer["content"][0]["text"]) == 4
        reply = await client.post("/v1/messages", body | {"stream": True})
        kinds = [kind for kind, _ in named_events(reply.text)]
        assert kinds == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * 4,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]


def named_events(text: str) -> list[tuple[str, Any]]:
    events = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


@BOTH
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {}),
        ("/v1/responses", {"input": 3}),
        ("/v1/messages", {"messages": 3, "max_tokens": 1}),
        ("/v1/messages", {"messages": [], "max_tokens": -1}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/v1/rerank", {"query": "q"}),
    ],
)
async def test_wrong_side_requests_are_400(
    config: EngineConfig, path: str, body: dict[str, Any]
) -> None:
    async with serving(config) as client:
        assert (await client.post(path, body)).status == 400


async def detokenized(client: Client, tokens: list[Any]) -> Any:
    return (await client.post("/detokenize", {"tokens": tokens})).json


async def test_detokenize_answers_both_spellings_and_lists() -> None:
    async with serving(vllm()) as client:
        assert (await detokenized(client, [97]))["prompt"] == "a"
        assert (await detokenized(client, [[97], [98]]))["text"] == ["a", "b"]
        tokens = (await client.post("/tokenize", {"prompt": "ab", "return_token_strs": True})).json
        assert tokens["token_strs"] == ["a", "b"]
        many = (await client.post("/tokenize", {"prompt": ["ab", "c"]})).json
        assert (many["tokens"], many["count"]) == ([[97, 98], [99]], [2, 1])
