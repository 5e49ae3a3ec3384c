"""Requests of every kind through one proxy, on engines that are what the proxy was made for."""

import asyncio

import pytest
from openai import AsyncOpenAI

from tests.real_engine.conftest import PROMPT, Checkpoints
from tests.real_engine.engines import MODEL, RealEngine, completion
from tests.real_engine.fleet import MIXED, ROUTED, VERSION, Spans, events, fleet_of, generate

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
    engine = engines[0]
    tokens = engine.tokens(PROMPT)
    async with fleet_of([engine]) as fleet:
        assert await generate(fleet, tokens, count=8) == ("1", False, [("1", 0, 8)])
        for version in ("2", "3", "4", "5", "6", "7", "8"):
            task = asyncio.create_task(generate(fleet, tokens, count=1900))
            await until_it_runs(engine, task)
            label = {"new_version": version}
            await asyncio.to_thread(engine.good, "POST", "/update_weight_version", label)
            long = await task
            assert long.version == long.spans[-1][0]
            assert long.mixed == (len(long.spans) > 1)
            assert (long.spans[0][1], long.spans[-1][2]) == (0, 1900)
            # A vLLM that generates may leave such a call lying for as long as that takes.
            if long.mixed:
                return
    pytest.fail("no label came within a request")


async def until_it_runs(engine: RealEngine, task: "asyncio.Task[Spans]") -> None:
    while not task.done():
        if await asyncio.to_thread(lambda: engine.running):
            return
