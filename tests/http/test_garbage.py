"""A request that is over is gone: nothing of it waits for the collector of garbage."""

import gc

import pytest

from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.splice.request import SplicedRequest
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import STREAM, Wire, fake_engine

KINDS = (Attempt, AnswerFraming, Exchange, SplicedRequest)

ANSWERS = {
    "at once": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "in parts": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{}",
    "stream": STREAM + b"5\r\nhello\r\n0\r\n\r\n",
    "text": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "broken": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
}


def left() -> int:
    return sum(isinstance(thing, KINDS) for thing in gc.get_objects())


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("path", [b"/generate", b"/v1/embeddings"])
async def test_nothing_waits_for_the_collector(answer: str, path: bytes) -> None:
    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(ANSWERS[answer])
            if answer == "in parts":
                await wire.send(b"{}")
            if answer == "broken":
                return

    async with fake_engine(script) as engine, adapter_rig(engine.url, adapter="splice") as rig:

        async def some() -> None:
            for _ in range(10):
                async with client_of(rig) as client:
                    await client.send(post(path=path))
                    await client.answer()
            await until(lambda: not rig.in_flight)

        await some()
        gc.collect()
        gc.disable()
        try:
            before = left()
            await some()
            await until(lambda: left() <= before)
        finally:
            gc.enable()


async def test_nor_what_a_client_left_behind() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.gone()

    async with fake_engine(script) as engine, adapter_rig(engine.url, adapter="splice") as rig:

        async def some() -> None:
            for _ in range(10):
                async with client_of(rig) as client:
                    await client.send(post())
                    await until(lambda: rig.in_flight)
                await until(lambda: not rig.in_flight and not rig.upstream.open)

        await some()
        gc.collect()
        gc.disable()
        try:
            before = left()
            await some()
            await until(lambda: left() <= before)
        finally:
            gc.enable()
