"""Every way in which a request can end, at every moment, against each other: nothing stays counted.

Each trial draws what the engine does, what ends the request, and after how many turns of the event
loop. The breaker opens at the first failure and lets a probe through a moment later, so that most of
the trials are probes.
"""

import asyncio
import random
from contextlib import suppress

import pytest

from steersman.settings import BreakerSettings, PoolSettings, Timeouts
from tests.http.adapter import AdapterRig, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import JSON, OK, STREAM, Wire, fake_engine

pytestmark = pytest.mark.usefixtures("adapter")

POOL = PoolSettings(
    timeouts=Timeouts(answer_head=0.05, stream_idle=0.05, client_stall=0.5),
    breaker=BreakerSettings(failures=1, cooldown=0.001),
)
ERROR = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno"
ANSWERS: list[tuple[bytes, ...]] = [
    (OK,),
    (OK,),
    (ERROR,),
    (BUSY,),
    (),
    (JSON, b'{"a":'),
    (STREAM, b"5\r\nhello\r\n"),
    (STREAM, b"5\r\nhello\r\n", b"0\r\n\r\n"),
    (b"this is not HTTP\r\n\r\n",),
]
ENDS = ["reset", "close", "wait"]
ENDINGS = ["stay", "leave", "cut", "stale", "cut and leave", "stale and cut"]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def one_request(rig: AdapterRig, draw: random.Random) -> None:
    ending = draw.choice(ENDINGS)
    async with client_of(rig) as client:
        await client.send(post(b'{"stream":true}'))
        if ending == "stay":
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await client.answer()
            return
        await turns(draw.randrange(40))
        if "stale" in ending:
            rig.adapter.sweep(rig.context.clock.now() + 1e6)
        if "cut" in ending:
            rig.adapter.cut("e0", "a test")
        if "leave" not in ending:
            await turns(draw.randrange(10))
    # The connection is reset here, whatever was read of the answer.


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_ends_a_request_its_count_and_its_probe_come_back(seed: int) -> None:
    draw = random.Random(seed)

    async def script(wire: Wire) -> None:
        # The proxy may have been faster; uvloop says so in these ways.
        with suppress(OSError, RuntimeError, AttributeError):
            while await answered(wire):
                pass

    async def answered(wire: Wire) -> bool:
        """Whether the connection takes another request after this one."""
        await wire.request()
        await turns(draw.randrange(20))
        for part in draw.choice(ANSWERS):
            await wire.send(part)
            await turns(draw.randrange(5))
        match draw.choice(ENDS):
            case "reset":
                wire.reset()
                return False
            case "close":
                await wire.close()
                return False
        return True

    async with fake_engine(script) as engine, adapter_rig(engine.url, pool=POOL) as rig:
        (state,) = rig.fleet.engines()
        lowest = 0

        def released() -> None:
            nonlocal lowest
            lowest = min(lowest, state.load.requests)

        rig.fleet.on_capacity = released
        for _ in range(25):
            await asyncio.gather(*(one_request(rig, draw) for _ in range(4)))
            await until(lambda: rig.in_flight == 0)
            rig.fleet.catch_up()
            assert not state.breaker.probing
        assert lowest == 0
        assert state.load.total == sum(state.breaker.outcomes.values()), "each is judged once"
        assert state.load.total > 20
