import asyncio

import aiohttp
import pytest

from steersman.clock import Deadline, MonotonicClock
from steersman_operator.engines.client import EngineClient
from steersman_sim.demo.engine_calls import (
    CONTROL_HEADER,
    NUMBER_HEADER,
    OPERATOR,
    EngineCalls,
    arrival_of,
)
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
    await calls.load(NEW)
    await ask(calls, number=2)
    found = await calls.arrivals()
    assert [(one.engine, one.request, one.path, one.versions) for one in found] == [
        ("engine-1", 1, "/generate", (OLD,)),
        ("engine-1", 2, "/generate", (NEW,)),
    ]


async def test_a_request_that_still_runs_is_read_again(calls, engine):
    await calls._call("/pause_generation", {"mode": "in_place"})
    waiting = asyncio.create_task(ask(calls, number=1))
    await engine.until(lambda: bool(engine.journal.of("/generate")))
    await ask_probe(calls)
    assert [(one.request, one.versions) for one in await calls.arrivals()] == [
        (1, ()),
        (None, ()),
    ]
    await calls._call("/continue_generation", {})
    await waiting
    assert [(one.request, one.versions) for one in await calls.arrivals()] == [
        (1, (OLD,)),
        (None, ()),
    ]


async def ask_probe(calls):
    async with calls._session.get(f"{calls.url}/model_info") as answer:
        assert answer.status == 200


async def test_the_looks_and_calls_of_an_operator_are_set_apart(calls, engine):
    client = EngineClient(engine.url, clock=MonotonicClock())
    try:
        deadline = Deadline.after(client.clock, 10)
        assert (await client.get("/model_info", deadline=deadline)).ok
        assert (await client.post("/continue_generation", deadline=deadline, body={})).ok
    finally:
        await client.close()
    assert await calls.arrivals() == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/model_info", {"user-agent": "steersman/1"}),
        ("/generate", {"user-agent": OPERATOR}),
        ("/generate", {CONTROL_HEADER: "1"}),
        ("/model_info", {"user-agent": OPERATOR, NUMBER_HEADER: "5"}),
    ],
)
def test_whatever_may_have_come_through_a_proxy_counts(path, headers):
    entry = {"path": path, "headers": list(headers.items()), "arrived": 1.0, "generations": []}
    assert arrival_of(entry, engine="engine-1") is not None


async def test_a_refusal_is_an_error_that_names_the_engine(calls):
    with pytest.raises(DemoError, match=r"engine-1 answered /nowhere with 404"):
        await calls._call("/nowhere", {})


async def test_an_engine_that_is_gone_is_not_ready(calls, engine):
    assert await calls.ready()
    await engine.die()
    assert not await calls.ready()
    with pytest.raises(DemoError, match="engine-1 did not answer /update_weights_from_disk"):
        await calls.load(NEW)
