"""Requests of every kind through one proxy, on engines that are what the proxy was made for."""

import asyncio

import pytest
from openai import AsyncOpenAI

from tests.real_engine.conftest import PROMPT, Checkpoints
from tests.real_engine.engines import MODEL, RealEngine, completion
from tests.real_engine.fleet import MIXED, ROUTED, VERSION, events, fleet_of

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]


async def test_answers_are_those_of_the_engine_with_its_name_and_version(
    engines: list[RealEngine], checkpoints: Checkpoints
) -> None:
    urls = {engine.url for engine in engines}
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 8,
        "temperature": 0,
    }
    said = engines[0].good("POST", "/v1/chat/completions", chat)["choices"][0]["message"]
    async with fleet_of(engines) as fleet:
        for path, body in (
            ("/v1/completions", completion(PROMPT)),
            ("/v1/completions", completion(PROMPT, stream=True)),
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", chat | {"stream": True}),
        ):
            async with fleet.client.post(fleet.endpoint + path, json=body) as answer:
                assert answer.status == 200
                assert answer.headers[ROUTED] in urls
                assert answer.headers[VERSION] == "1"
                assert MIXED not in answer.headers
                found = events(await answer.text()) if body.get("stream") else [await answer.json()]
            choices = [chunk["choices"][0] for chunk in found]
            if "chat" in path:
                parts = [choice.get("message") or choice["delta"] for choice in choices]
                assert "".join(part.get("content") or "" for part in parts) == said["content"]
            else:
                assert "".join(choice["text"] for choice in choices) == checkpoints.first.text


async def test_the_client_library_of_openai_works(engines: list[RealEngine]) -> None:
    async with (
        fleet_of(engines) as fleet,
        AsyncOpenAI(base_url=f"{fleet.endpoint}/v1", api_key="none") as client,
    ):
        assert [model.id async for model in await client.models.list()] == [MODEL]
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=8, temperature=0
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(parts) == whole.choices[0].message.content


async def test_an_answer_with_spans_is_stamped_by_them(engines: list[RealEngine]) -> None:
    """The only route on which vLLM says which weights made which token."""
    engine = engines[0]
    tokens = engine.good("POST", "/tokenize", {"model": MODEL, "prompt": PROMPT})["tokens"]

    async with fleet_of(engines[:1]) as fleet:

        async def generate(count: int) -> tuple[str, bool, list[tuple[str, int, int]]]:
            sampling = {"max_tokens": count, "temperature": 0, "ignore_eos": True}
            body = {"model": MODEL, "token_ids": tokens, "sampling_params": sampling}
            url = f"{fleet.endpoint}/inference/v1/generate"
            async with fleet.client.post(url, json=body) as answer:
                content = await answer.json()
                assert answer.status == 200, content
                spans = content["choices"][0]["weight_versions"]
                return (
                    answer.headers[VERSION],
                    MIXED in answer.headers,
                    [(span["version"], span["start"], span["end"]) for span in spans],
                )

        assert await generate(8) == ("1", False, [("1", 0, 8)])

        long = asyncio.create_task(generate(1900))
        # One that came later and has ended: the long one is being generated.
        await generate(8)
        label = {"new_version": "2"}
        await asyncio.to_thread(engine.good, "POST", "/update_weight_version", label)
        version, mixed, spans = await long
    assert (version, mixed) == ("2", True)
    (first, start, middle), (second, other_middle, end) = spans
    assert (first, second, start, end) == ("1", "2", 0, 1900)
    assert 0 < middle == other_middle < 1900
