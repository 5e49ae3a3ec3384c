import asyncio

import aiohttp
import pytest

from steersman_sim.demo.engine_calls import NUMBER_HEADER, EngineCalls
from steersman_sim.demo.options import DemoError
from steersman_sim.demo.records import NEW, OLD
from steersman_sim.engine import INSTANT, EngineConfig, SimEngine


@pytest.fixture
async def engine():
    async with SimEngine(EngineConfig(speed=INSTANT, weight_version=OLD)) as running:
        yield running


@pytest.fixture
async def calls(engine):
    async with aiohttp.ClientSession() as session:
        yield EngineCalls("engine-1", url=engine.url, session=session)


async def ask(calls, *, number: int):
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    async with calls._session.post(
        f"{calls.url}/generate", json=body, headers={NUMBER_HEADER: str(number)}
    ) as answer:
        assert answer.status == 200


async def test_the_journal_tells_who_arrived_and_which_weights_answered(calls):
    await ask(calls, number=1)
    await calls.refit(NEW)
    await ask(calls, number=2)
    found = await calls.arrivals()
    assert [(one.engine, one.request, one.path, one.versions) for one in found] == [
        ("engine-1", 1, "/generate", (OLD,)),
        ("engine-1", 2, "/generate", (NEW,)),
    ]


async def test_a_request_that_still_runs_is_read_again(calls, engine):
    await calls.pause()
    waiting = asyncio.create_task(ask(calls, number=1))
    await engine.until(lambda: bool(engine.journal.of("/generate")))
    await ask_probe(calls)
    assert [(one.request, one.versions) for one in await calls.arrivals()] == [
        (1, ()),
        (None, ()),
    ]
    await calls.resume()
    await waiting
    assert [(one.request, one.versions) for one in await calls.arrivals()] == [
        (1, (OLD,)),
        (None, ()),
    ]


async def ask_probe(calls):
    async with calls._session.get(f"{calls.url}/model_info") as answer:
        assert answer.status == 200


async def test_sleep_and_wake(calls):
    await calls.release_memory()
    await calls.resume_memory()
    await calls.load(NEW)
    await ask(calls, number=7)
    (arrival,) = await calls.arrivals()
    assert arrival.versions == (NEW,)


async def test_a_refusal_is_an_error_that_names_the_engine(calls):
    with pytest.raises(DemoError, match=r"engine-1 answered /nowhere with 404"):
        await calls._call("/nowhere", {})


async def test_an_engine_that_is_gone_is_not_ready(calls, engine):
    assert await calls.ready()
    await engine.die()
    assert not await calls.ready()
    with pytest.raises(DemoError, match="engine-1 did not answer /pause_generation"):
        await calls.pause()
