"""What went wrong in the field with retries, breakers and counts in flight, over real sockets."""

import asyncio
import errno
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from steersman.settings import BreakerSettings, PoolSettings, Timeouts
from steersman_proxy.http.attempt import Attempt
from steersman_proxy.load.breaker import BreakerState
from steersman_sim.engine import EngineConfig
from tests.http.fake_engine import OK, STREAM, FakeEngine, Watched, Wire, always, fake_engine
from tests.proxy.support import Rig, rig, running, until

pytestmark = pytest.mark.usefixtures("adapter")

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}


def with_status(status: int, body: bytes = b'{"error":"context length"}') -> bytes:
    head = b"HTTP/1.1 %d Said\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def rows(*engines: FakeEngine) -> list[dict[str, Any]]:
    return [{"id": f"e{n}", "url": engine.url} for n, engine in enumerate(engines)]


async def ask(world: Rig, **body: Any) -> tuple[int, bytes, Any]:
    async with world.client.post(f"{world.url}/generate", json=BODY | body) as answer:
        return answer.status, await answer.read(), answer.headers


def may_be_sent_to(world: Rig, name: str = "e0") -> bool:
    """Whether the breaker lets the next request through."""
    world.app.fleet.catch_up()
    return not world.engine(name).breaker.blocked


def state(world: Rig, name: str = "e0") -> BreakerState:
    return world.engine(name).breaker.state


# --- 33: sglang#25811, vllm-router#60, litellm#19275 ------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 499, 503])
async def test_field_failure_33_a_client_s_mistake_neither_opens_the_breaker_nor_is_sent_again(
    tmp_path: Path, status: int
) -> None:
    good = False

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(OK if good else with_status(status))

    async with fake_engine(script) as engine, running(tmp_path, rows(engine)) as world:
        for _ in range(20):
            got, content, _ = await ask(world)
            assert (got, content) == (status, b'{"error":"context length"}')
        assert len(engine.received) == 20
        assert state(world) is BreakerState.CLOSED
        good = True
        assert (await ask(world))[:2] == (200, b"ok")
        assert len(engine.received) == 21


async def test_field_failure_33_what_is_the_engine_s_fault_does_open_it(tmp_path: Path) -> None:
    async with (
        fake_engine(always(with_status(500))) as engine,
        running(tmp_path, rows(engine)) as world,
    ):
        for _ in range(5):
            assert (await ask(world))[0] == 500
        status, content, headers = await ask(world)
        error = json.loads(content)["error"]
        assert (status, error["code"]) == (503, "no_available_workers")
        assert error["reasons"] == {"breaker_open": 1}
        assert 25 < int(headers["retry-after"]) <= 30
        assert len(engine.received) == 5
        text = await world.metrics()
        assert f'smg_worker_cb_state{{worker="{engine.url}"}} 1.0' in text
        assert 'smg_rl_candidates_filtered_total{reason="breaker_open"} 1.0' in text


async def test_field_failure_33_after_the_cooldown_one_request_of_many_tries_the_engine(
    tmp_path: Path,
) -> None:
    well = asyncio.Event()
    probed = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            if len(engine.received) > 2:
                probed.set()
                await well.wait()
            await wire.send(OK if well.is_set() else with_status(500))

    routing = PoolSettings(breaker=BreakerSettings(failures=2, cooldown=0.2))
    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine), routing=routing) as world,
    ):
        for _ in range(2):
            assert (await ask(world))[0] == 500
        assert state(world) is BreakerState.OPEN
        await until(lambda: may_be_sent_to(world))
        probe = asyncio.create_task(ask(world))
        await probed.wait()
        others = await asyncio.gather(*(ask(world) for _ in range(10)))
        assert {status for status, _, _ in others} == {503}
        assert len(engine.received) == 3
        well.set()
        assert (await probe)[0] == 200
        assert state(world) is BreakerState.CLOSED
        again = await asyncio.gather(*(ask(world) for _ in range(10)))
        assert {status for status, _, _ in again} == {200}


async def test_field_failure_33_a_client_that_leaves_frees_the_probe(tmp_path: Path) -> None:
    broken = True
    arrived = asyncio.Event()
    gone = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            if broken:
                wire.reset()
                return
            if not gone.is_set():
                arrived.set()
                await wire.gone()
                gone.set()
                return
            await wire.send(OK)

    routing = PoolSettings(breaker=BreakerSettings(failures=1, cooldown=0.05))
    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine), routing=routing) as world,
    ):
        assert (await ask(world))[0] == 502
        broken = False
        await until(lambda: may_be_sent_to(world))
        probe = asyncio.create_task(ask(world))
        await arrived.wait()
        probe.cancel()
        await gone.wait()
        await until(lambda: may_be_sent_to(world))
        assert state(world) is BreakerState.HALF_OPEN
        assert (await ask(world))[0] == 200
        assert state(world) is BreakerState.CLOSED


# --- 34: sglang#19035, sglang#24070, shunt#126 -------------------------------------------------------


async def test_field_failure_34_what_an_engine_took_is_sent_to_nobody_again(tmp_path: Path) -> None:
    async def takes_and_closes(wire: Wire) -> None:
        await wire.request()
        await wire.close()

    async with (
        fake_engine(takes_and_closes) as bad,
        fake_engine(always(OK)) as good,
        running(tmp_path, rows(bad, good)) as world,
    ):
        for asked in range(1, 100):
            before = len(bad.received)
            status, content, _ = await ask(world, rid=f"x{asked}")
            assert len(bad.received) + len(good.received) == asked
            if len(bad.received) == before:
                assert status == 200
                continue
            assert (status, json.loads(content)["error"]["code"]) == (
                502,
                "upstream_body_incomplete",
            )
            if state(world) is BreakerState.OPEN:
                break
        assert len(bad.received) == 5


async def test_field_failure_34_a_timeout_is_answered_once_and_not_tried_again(
    tmp_path: Path,
) -> None:
    async def silent(wire: Wire) -> None:
        await wire.request()
        await wire.gone()

    routing = PoolSettings(timeouts=Timeouts(answer_head=0.1))
    async with (
        fake_engine(silent) as one,
        fake_engine(silent) as two,
        running(tmp_path, rows(one, two), routing=routing) as world,
    ):
        status, content, _ = await ask(world, rid="x")
        assert (status, json.loads(content)["error"]["code"]) == (504, "upstream_timeout")
        assert len(one.received) + len(two.received) == 1


async def test_field_failure_34_a_refused_connection_is_tried_elsewhere_under_a_fresh_id(
    tmp_path: Path,
) -> None:
    async with fake_engine(always(OK)) as gone:
        pass
    async with (
        fake_engine(always(OK)) as good,
        running(tmp_path, rows(gone, good), rid_header={"pool": "x-override-rid"}) as world,
    ):
        for _ in range(20):
            assert (await ask(world))[0] == 200
        ids = [received.values(b"x-override-rid") for received in good.received]
        assert len({value for (value,) in ids}) == len(good.received) == 20


# --- 36: sglang-omni#931, vllm-router#215, production-stack#1072 -------------------------------------

STREAMS = 100


@pytest.mark.parametrize("moment", ["a before the head", "b before the body", "c within the body"])
async def test_field_failure_36_nothing_is_counted_of_clients_that_left(
    tmp_path: Path, moment: str
) -> None:
    arrived = 0
    closed = 0

    async def script(wire: Wire) -> None:
        nonlocal arrived, closed
        await wire.request()
        if moment != "a before the head":
            await wire.send(STREAM)
        if moment == "c within the body":
            await wire.send(b"5\r\nhello\r\n")
        arrived += 1
        await wire.gone()
        closed += 1

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine)) as world,
    ):

        async def one() -> None:
            async with world.client.post(
                f"{world.url}/generate", json=BODY | {"stream": True}
            ) as a:
                await a.content.readexactly(5)
                await asyncio.Event().wait()

        clients = [asyncio.create_task(one()) for _ in range(STREAMS)]
        await until(lambda: arrived == STREAMS)
        assert world.engine("e0").load.requests == STREAMS
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

        await until(lambda: world.engine("e0").load.requests == 0, within=1.0)
        await until(lambda: closed == STREAMS)
        assert state(world) is BreakerState.CLOSED
        assert world.engine("e0").breaker.failures == 0


async def test_field_failure_36_d_an_engine_that_resets_what_is_being_closed(
    tmp_path: Path,
) -> None:
    arrived = 0
    leave = asyncio.Event()

    async def script(wire: Wire) -> None:
        nonlocal arrived
        await wire.request()
        await wire.send(STREAM, b"5\r\nhello\r\n")
        arrived += 1
        await leave.wait()
        wire.reset()

    async with fake_engine(script) as engine, running(tmp_path, rows(engine)) as world:

        async def one() -> None:
            async with world.client.post(
                f"{world.url}/generate", json=BODY | {"stream": True}
            ) as a:
                await a.content.readexactly(5)
                await leave.wait()

        clients = [asyncio.create_task(one()) for _ in range(STREAMS)]
        await until(lambda: arrived == STREAMS)
        leave.set()
        await asyncio.gather(*clients, return_exceptions=True)

        await until(lambda: world.engine("e0").load.requests == 0, within=1.0)
        ended = world.engine("e0").breaker.outcomes
        assert sum(ended.values()) == STREAMS, "each is judged once"


async def test_field_failure_36_d_closing_the_engine_s_connection_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Attempt.close
    raised = 0

    def close_and_raise(attempt: Attempt) -> None:
        nonlocal raised
        ours = attempt.drop is not None
        close(attempt)
        if ours:
            raised += 1
            raise OSError(errno.ENOTCONN, "the socket is not connected any more")

    monkeypatch.setattr(Attempt, "close", close_and_raise)
    script = Watched(STREAM, b"5\r\nhello\r\n")
    async with fake_engine(script) as engine, running(tmp_path, rows(engine)) as world:
        async with world.client.post(f"{world.url}/generate", json=BODY | {"stream": True}) as a:
            await a.content.readexactly(5)
            assert world.engine("e0").load.requests == 1
        await until(lambda: world.engine("e0").load.requests == 0, within=1.0)
        await script.closed.wait()
        assert raised == 1
        assert world.engine("e0").breaker.failures == 0


async def test_field_failure_36_d_a_reset_after_the_answer_is_no_failure(tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        wire.reset()

    async with fake_engine(script) as engine, running(tmp_path, rows(engine)) as world:
        whole = 0
        for _ in range(20):
            status, _, _ = await ask(world)
            whole += status == 200
        breaker = world.engine("e0").breaker
        assert world.engine("e0").load.requests == 0
        # A reset may overtake the answer that it follows; then that answer was broken.
        assert breaker.outcomes["success"] == whole  # type: ignore[index]
        assert breaker.outcomes["failure"] == len(engine.received) - whole  # type: ignore[index]


async def test_field_failure_36_e_clients_that_reset_while_they_are_written_to(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=EngineConfig(speed=50.0)) as world:
        body = json.dumps(
            {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}
        ).encode()
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)

        async def one(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.app.port)
            writer.write(head + body)
            if number % 2:
                await reader.readuntil(b"\r\n\r\n")  # the other half leaves at any moment before
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

        await asyncio.gather(*map(one, range(STREAMS)))
        await until(lambda: not any(e.load.requests for e in world.app.fleet.engines()), within=5.0)
        await until(lambda: all(e.core.in_flight == 0 for e in world.engines.values()))
        assert {state(world, name) for name in ("e0", "e1")} == {BreakerState.CLOSED}
