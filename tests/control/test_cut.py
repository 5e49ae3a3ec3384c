"""Requests that are ended because the operator wants their engine free."""

import asyncio

import pytest

from steersman.settings import PoolSettings
from steersman_proxy.exchange.messages import Outcome
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import JSON, OK, STREAM, Watched, always, fake_engine


@pytest.mark.parametrize(
    "answer", [[], [JSON], [JSON, b'{"a":']], ids=["no head", "head of JSON", "part of JSON"]
)
async def test_a_client_that_has_seen_nothing_gets_503(answer: list[bytes]) -> None:
    script = Watched(*answer)
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(post())
            await script.arrived.wait()
            await asyncio.sleep(0)

            rig.adapter.cut("e0", "drain timeout")

            assert rig.adapter.cuts == 1
            answered = await client.answer()
            assert answered.status == 503
            assert answered.error["code"] == "request_cut"
            assert "drain timeout" in answered.error["message"]
            assert answered.values(b"retry-after") == [b"1"]
            await script.closed.wait()
            assert rig.in_flight == 0
        await until(lambda: len(rig.recorder.records) == 1)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.REJECTED
        assert getattr(record.error, "code", None) == "request_cut"


async def test_a_client_in_the_middle_of_a_stream_sees_it_break() -> None:
    script = Watched(STREAM, b"5\r\nhello\r\n")
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(post(b'{"stream":true}'))
            await script.arrived.wait()
            await client.head()
            assert await client.chunk() == b"hello"

            rig.adapter.cut("e0", "drain timeout")

            assert await client.reader.read() == b""
            await script.closed.wait()
        await until(lambda: len(rig.recorder.records) == 1)
        assert getattr(rig.recorder.records[0].error, "code", None) == "request_cut"


async def test_only_the_named_engine_is_cut() -> None:
    one = Watched()
    async with (
        fake_engine(one) as first,
        fake_engine(always(OK)) as second,
        adapter_rig(first.url, second.url) as rig,
    ):
        async with client_of(rig) as client, client_of(rig) as other:
            await client.send(post(b"{}", b"x-smg-target-worker: e0"))
            await one.arrived.wait()
            rig.adapter.cut("e1", "another one")
            rig.adapter.cut("stranger", "nobody")
            assert rig.adapter.cuts == 0
            await other.send(post(b"{}", b"x-smg-target-worker: e1"))
            assert (await other.answer()).status == 200

            rig.adapter.cut("e0", "now")
            rig.adapter.cut("e0", "again")

            assert (await client.answer()).status == 503
            assert rig.adapter.cuts == 1
        await one.closed.wait()


async def test_requests_that_wait_are_not_in_flight() -> None:
    pool = PoolSettings()
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url, pool=pool) as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client:
            await client.send(post())
            await until(lambda: rig.hold.depth("p") == 1)

            rig.adapter.cut("e0", "drain timeout")

            rig.apply(gates_open=True)
            assert (await client.answer()).status == 200
            assert rig.adapter.cuts == 0


async def test_a_client_that_leaves_while_it_is_cut_is_no_fault() -> None:
    script = Watched()
    async with fake_engine(script) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(post())
            await script.arrived.wait()
        rig.adapter.cut("e0", "drain timeout")
        await script.closed.wait()
        await until(lambda: rig.in_flight == 0)
