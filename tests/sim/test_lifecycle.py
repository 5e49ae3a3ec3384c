"""Death, restart, time, many clients at once, and the process: the life of a sim engine."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from steersman_sim.engine import EngineConfig, SimEngine, TimeModel, Timings
from steersman_sim.engine.listener import _Server
from tests.sim.support import (
    CONNECTION_LOST,
    STREAM_CUT,
    chat_body,
    generate_body,
    running,
    serving,
    sglang,
    vllm,
)

BOTH = pytest.mark.parametrize("config", [sglang(), vllm()], ids=["sglang", "vllm"])


# --- Death and restart ----------------------------------------------------------------------------


@BOTH
async def test_death_resets_idle_and_busy_connections_and_refuses_new_ones(
    config: EngineConfig,
) -> None:
    async with SimEngine(config) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        await engine.until(lambda: engine.connections == 1)
        await engine.die("test")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", engine.port)
        assert (engine.running, engine.died) == (False, "test")
        with pytest.raises(RuntimeError, match="not running"):
            _ = engine.core


@BOTH
async def test_a_connection_that_is_accepted_while_it_dies_dies_too(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request that comes over it would wait for a process that is gone."""
    async with SimEngine(config) as engine:
        accepted = _Server.__call__

        def dies_then(server: _Server) -> Any:
            # The system has accepted a connection, of which the engine is told only after this.
            engine._crash("just then")
            return accepted(server)

        monkeypatch.setattr(_Server, "__call__", dies_then)
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        await engine.wait_dead()
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(10):
                await reader.read()
        writer.close()


async def test_death_in_the_middle_of_a_stream() -> None:
    async with serving(sglang(manual=True)) as client:
        body = generate_body(tokens=50, stream=True)
        async with client.session.post(client.engine.url + "/generate", json=body) as response:
            await running(client)
            assert (await response.content.readline()).startswith(b"data: ")
            await client.engine.die()
            with pytest.raises(STREAM_CUT):
                await response.content.read()


async def test_a_dead_engine_can_be_started_again_at_its_port() -> None:
    async with SimEngine(sglang()) as engine:
        port = engine.port
        await engine.die()
        await engine.start()
        assert (engine.port, engine.boot, engine.died) == (port, 2, None)
        with pytest.raises(RuntimeError, match="running already"):
            await engine.start()


async def test_an_orderly_restart_ends_connections_without_a_reset() -> None:
    async with SimEngine(sglang()) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        await engine.until(lambda: engine.connections == 1)
        await engine.restart(abruptly=False)
        assert await reader.read() == b""
        writer.close()


async def test_a_stop_lets_answers_under_way_finish_within_the_grace() -> None:
    async with serving(sglang(speed=1, time=TimeModel(step_s=0.05))) as client:
        task = client.soon("/generate", generate_body(tokens=2))
        await running(client)
        await client.engine.stop(grace_s=5)
        assert (await task).status == 200


async def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engine = SimEngine(sglang(port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            await engine.start()
        await engine.stop()


@pytest.mark.parametrize(
    "wrong",
    [{"dp_size": 0}, {"kv_tokens": 8}, {"speed": -1.0}, {"mean_output_tokens": 0.0}],
)
def test_an_impossible_engine_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EngineConfig(**wrong)


# --- Time -----------------------------------------------------------------------------------------


async def test_tokens_come_at_the_rate_of_the_time_model() -> None:
    """Twenty steps of 10 ms at half speed: at least 0.4 s, and not wildly more."""
    async with serving(sglang(speed=0.5)) as client:
        began = time.monotonic()
        await client.post("/generate", generate_body(tokens=20))
        assert 0.39 < time.monotonic() - began < 4


async def test_speed_divides_the_time() -> None:
    async with serving(sglang(speed=1000)) as client:
        began = time.monotonic()
        await client.post("/generate", generate_body(tokens=1000))
        assert time.monotonic() - began < 5, "ten engine seconds"


async def test_control_calls_take_their_time_and_nothing_is_generated_meanwhile() -> None:
    timings = Timings(refit_s=0.2)
    async with serving(vllm(speed=1, timings=timings)) as client:
        task = client.soon("/v1/chat/completions", chat_body(tokens=1000))
        await running(client)
        began = time.monotonic()
        steps = client.engine.core.ranks[0].steps
        await client.post("/collective_rpc", {"method": "reload_weights"})
        assert time.monotonic() - began > 0.19
        # Twenty, if the load did not keep it from taking them; on a busy machine some come before.
        assert client.engine.core.ranks[0].steps - steps <= 12
        task.cancel()


# --- Many at once ---------------------------------------------------------------------------------


async def read_stream(port: int, number: int) -> bytes:
    """One streamed request on a connection of its own, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(generate_body(f"prompt {number}", tokens=20, stream=True)).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return answer


async def test_a_thousand_streams_at_once() -> None:
    config = sglang(max_running=1024, stream_incremental=True)
    async with SimEngine(config) as engine:
        answers = await asyncio.gather(*(read_stream(engine.port, n) for n in range(1000)))
        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
        assert all(b"data: [DONE]" in answer for answer in answers)
        generations = list(engine.journal.generations())
        assert len(generations) == 1000
        assert {len(generation.output) for generation in generations} == {20}
        assert engine.core.unfinished == 0
        assert engine.core.in_flight == 0


async def test_a_client_that_does_not_read_gets_everything_later() -> None:
    """While its socket is full the engine merges chunks instead of buffering them."""
    async with SimEngine(sglang(context_length=200_000)) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=1 << 16)
        body = json.dumps(generate_body("x", tokens=5_000, stream=True)).encode()
        request = f"POST /generate HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(request.encode() + body)
        await engine.until(lambda: engine.core.ranks[0].steps >= 5_000)
        answer = await reader.read(-1)
        writer.close()
        head, _, events = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower(), "HTTP/1.0 knows no chunks"
        *chunks, done = events.split(b"\n\n")[:-1]
        assert done == b"data: [DONE]"
        assert len(chunks) < 4_000
        last = json.loads(chunks[-1].removeprefix(b"data: "))
        assert len(last["output_ids"]) == 5_000


# --- The process ----------------------------------------------------------------------------------


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """``steersman sim-engine`` with its URL."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steersman.cli", "sim-engine", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        line = (await child.stdout.readline()).decode()
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield child, line.removeprefix("listening on ").strip()
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_the_process_serves_restarts_and_stops_on_sigterm() -> None:
    arguments = ("--runtime", "vllm", "--speed", "instant", "--model", "qwen")
    async with process(*arguments) as (child, url), aiohttp.ClientSession() as session:
        async with session.get(url + "/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "qwen"
        async with session.post(url + "/_sim/restart") as response:
            assert response.status == 200
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0


async def test_the_process_dies_with_a_code_of_its_own() -> None:
    arguments = ("--runtime", "sglang", "--time-step-s", "0.05")
    async with process(*arguments) as (child, url), aiohttp.ClientSession() as session:
        body = generate_body(tokens=1000)
        busy = asyncio.create_task(session.post(url + "/generate", json=body).__aenter__())
        while True:
            async with session.get(url + "/_sim/state") as response:
                if (await response.json())["in_flight"]:
                    break
        with pytest.raises(CONNECTION_LOST):
            await session.post(url + "/release_memory_occupation", json={})
        with pytest.raises(CONNECTION_LOST):
            await busy
        assert await child.wait() == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--runtime", "sglang", "--dp-size", "0"), 2),
        (("--runtime", "sglang", "--host", "192.0.2.1"), 1),
    ],
)
async def test_a_process_that_cannot_start_says_why(arguments: tuple[str, ...], code: int) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steersman.cli", "sim-engine", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    _, error = await child.communicate()
    assert child.returncode == code
    assert error.decode().startswith("steersman sim-engine: ")
    assert len(error.decode().splitlines()) == 1
