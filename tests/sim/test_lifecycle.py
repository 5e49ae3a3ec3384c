"""Death, restart, faults, journal and the time that things take: what the sim adds to an engine."""

import asyncio
import io
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

from steersman_sim.engine import EngineConfig, Fault, SimEngine, TimeModel, Timings
from tests.sim.support import (
    Client,
    chat_body,
    generate_body,
    running,
    serving,
    sglang,
    sglang_core,
    vllm,
)

CONNECTION_LOST = (aiohttp.ClientConnectionError, ConnectionError)
STREAM_CUT = (*CONNECTION_LOST, aiohttp.ClientPayloadError)
BOTH = pytest.mark.parametrize("config", [sglang(), vllm()], ids=["sglang", "vllm"])


# --- Death and restart ---------------------------------------------------------------------------


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


# --- Time ----------------------------------------------------------------------------------------


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
        assert client.engine.core.ranks[0].steps - steps <= 5
        task.cancel()


# --- Faults --------------------------------------------------------------------------------------


async def arm(client: Client, **faults: Any) -> None:
    wanted = {f"/{route}": fault for route, fault in faults.items()}
    assert (await client.post("/_sim/faults", wanted)).status == 200


async def test_a_fault_answers_instead_of_the_handler_so_many_times() -> None:
    async with serving(sglang()) as client:
        body = {"error": {"message": "busy"}}
        await arm(client, flush_cache={"status": 503, "body": body, "times": 2})
        for expected in (503, 503, 200):
            assert (await client.post("/flush_cache")).status == expected
        assert (await client.get("/_sim/faults")).json == {}


async def test_a_lie_about_success_has_no_effect() -> None:
    async with serving(sglang()) as client:
        await arm(client, update_weights_from_disk={"status": 200, "body": {"success": True}})
        body = {"model_path": "/w", "weight_version": "7"}
        assert (await client.post("/update_weights_from_disk", body)).json == {"success": True}
        assert (await client.get("/model_info")).json["weight_version"] == "default"


async def test_an_answer_can_be_lost_after_the_effect() -> None:
    async with serving(sglang()) as client:
        await arm(client, update_weight_version={"when": "after", "drop": True})
        with pytest.raises(CONNECTION_LOST):
            await client.post("/update_weight_version", {"new_version": "7"})
        assert (await client.get("/model_info")).json["weight_version"] == "7"


async def test_text_faults_and_several_in_order() -> None:
    async with serving(sglang()) as client:
        await arm(
            client,
            ping=[{"status": 500, "body": "oops", "times": 1}, {"status": 204, "times": 1}],
        )
        assert (await client.get("/ping")).text == "oops"
        assert (await client.get("/ping")).status == 204
        assert (await client.get("/ping")).status == 200


async def test_a_hang_lasts_until_the_client_leaves() -> None:
    async with serving(sglang()) as client:
        engine = client.engine
        engine.faults.arm("/generate", Fault(hang=True))
        task = client.soon("/generate", generate_body())
        await engine.until(lambda: bool(engine.journal.of("/generate")))
        task.cancel()
        await engine.until(lambda: engine.journal.entries[0].disconnected)
        assert engine.core.unfinished == 0
        assert '"hang":true' in engine.journal.entries[0].fault


async def test_latency_comes_before_the_handler() -> None:
    async with serving(sglang()) as client:
        await arm(client, ping={"latency": 0.1})
        began = time.monotonic()
        assert (await client.get("/ping")).status == 200
        assert time.monotonic() - began > 0.09


async def test_a_star_hits_every_route_but_the_side_channel() -> None:
    async with serving(sglang()) as client:
        await client.post("/_sim/faults", {"*": {"status": 418}})
        assert (await client.get("/ping")).status == 418
        assert (await client.post("/_sim/faults", {"*": None})).json == {}
        assert (await client.get("/ping")).status == 200


async def test_a_fault_can_kill() -> None:
    async with serving(sglang()) as client:
        await arm(client, ping={"die": True})
        with pytest.raises(CONNECTION_LOST):
            await client.get("/ping")
        assert "/ping" in await client.engine.wait_dead()


@pytest.mark.parametrize("kind", ["drop", "die", "hang"])
async def test_a_fault_after_so_many_tokens(kind: str) -> None:
    async with serving(sglang()) as client:
        fault = {"when": "tokens", "after_tokens": 3, kind: True}
        await arm(client, generate=fault)
        body = generate_body(tokens=50, stream=True)
        async with client.session.post(client.engine.url + "/generate", json=body) as response:
            for _ in range(2):
                assert (await response.content.readline()).startswith(b"data: ")
                await response.content.readline()
            if kind == "hang":
                await client.engine.until(lambda: client.engine.core.unfinished == 0)
                assert client.engine.core.in_flight == 1, "generated, but never answered"
            else:
                with pytest.raises(STREAM_CUT):
                    await response.content.readline()


@pytest.mark.parametrize("kind", ["drop", "die"])
async def test_a_buffered_answer_lost_after_so_many_tokens(kind: str) -> None:
    async with serving(sglang()) as client:
        fault = {"when": "tokens", "after_tokens": 3, kind: True}
        await arm(client, generate=fault)
        with pytest.raises(CONNECTION_LOST):
            await client.post("/generate", generate_body(tokens=50))


@pytest.mark.parametrize(
    "fault",
    [
        {"when": "tokens", "after_tokens": 3},
        {"latency": -1},
        {"times": 0},
        {"status": 99},
        {"nonsense": 1},
        3,
    ],
)
async def test_a_fault_without_sense_is_refused(fault: Any) -> None:
    async with serving(sglang()) as client:
        reply = await client.post("/_sim/faults", {"/ping": fault})
        assert reply.status == 400
        assert (await client.get("/ping")).status == 200


# --- Journal -------------------------------------------------------------------------------------


async def test_the_journal_has_what_the_engine_received() -> None:
    async with serving(sglang()) as client:
        headers = {"X-Thing": "a b"}
        await client.post("/generate?x=1", generate_body(rid="a"), headers=headers)
        (entry,) = client.engine.journal.entries
        assert (entry.method, entry.path, entry.query) == ("POST", "/generate", "x=1")
        assert entry.header("x-thing") == "a b"
        assert entry.header("x-nothing") is None
        assert entry.json()["rid"] == "a"
        assert (entry.status, entry.disconnected, entry.boot) == (200, False, 1)
        assert entry.ended is not None
        assert entry.ended >= entry.arrived
        (generation,) = entry.generations
        assert (generation.rid, len(generation.output)) == ("a", 8)
        with pytest.raises(KeyError):
            client.engine.journal.generation("b")


async def test_the_journal_tells_who_ended_a_request() -> None:
    async with serving(sglang(manual=True)) as client:
        journal = client.engine.journal
        await arm(client, flush_cache={"drop": True})
        with pytest.raises(CONNECTION_LOST):
            await client.post("/flush_cache")
        task = client.soon("/generate", generate_body())
        await running(client)
        await client.engine.die()
        with pytest.raises(CONNECTION_LOST):
            await task
        assert [(e.cut, e.disconnected, e.status) for e in journal.entries] == [
            (True, False, None),
            (True, False, None),
        ]


async def test_an_idle_connection_is_closed_after_the_keep_alive_time() -> None:
    async with SimEngine(sglang(keep_alive_s=0.05)) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_connections_are_told_apart_over_restarts() -> None:
    async with SimEngine(sglang()) as engine:
        for _ in range(2):
            async with aiohttp.ClientSession() as session:
                client = Client(engine, session)
                await client.get("/ping")
                await client.get("/ping")
            await engine.restart()
        seen = [(entry.boot, entry.connection) for entry in engine.journal.entries]
        assert seen == [(1, 1), (1, 1), (2, 2), (2, 2)]


async def test_long_bodies_are_cut_in_the_journal_only() -> None:
    async with serving(sglang(journal_body_bytes=10, journal_limit=2)) as client:
        for _ in range(3):
            reply = await client.post("/generate", generate_body("x" * 3000))
            assert reply.json["meta_info"]["prompt_tokens"] == 3000
        entry = client.engine.journal.entries[-1]
        assert len(entry.body) == 10
        assert entry.body_size > 3000
        assert [e.number for e in client.engine.journal.entries] == [2, 3]


async def test_a_body_of_many_megabytes_is_taken() -> None:
    async with serving(sglang()) as client:
        size = 20 << 20
        url = client.engine.url + "/generate"
        body = io.BytesIO(b"x" * size)
        async with client.session.post(url, data=body, expect100=True) as response:
            assert response.status == 400
        assert client.engine.journal.entries[0].body_size == size


async def test_journal_state_and_restart_over_http() -> None:
    async with serving(sglang()) as client:
        await client.post("/generate", generate_body(rid="a"))
        await client.get("/ping")
        await client.post("/v1/completions", b"\xff\xfe")
        shown = (await client.get("/_sim/journal?path=/generate")).json
        assert shown[0]["generations"][0]["rid"] == "a"
        assert json.loads(shown[0]["body"])["rid"] == "a"
        later = (await client.get("/_sim/journal?since=2")).json
        assert later[0]["body_base64"] == "//4="
        state = (await client.get("/_sim/state")).json
        assert (state["boot"], state["requests"], state["ranks"][0]["running"]) == (1, 3, 0)
        assert (await client.post("/_sim/restart")).json == {"ok": True}
        await client.engine.until(lambda: client.engine.boot == 2 and client.engine.running)
        assert (await client.get("/_sim/state")).json["boot"] == 2
        assert (await client.call("DELETE", "/_sim/journal")).status == 200
        assert (await client.get("/_sim/journal")).json == []
        assert (await client.get("/_sim/other")).status == 404
        assert (await client.post("/_sim/rank", {"rank": 9})).status == 400
        assert (await client.post("/_sim/rank", {"rank": 0, "hold": "x"})).status == 400
        assert (await client.call("DELETE", "/_sim/faults")).json == {}


async def test_a_control_call_goes_on_when_its_client_leaves() -> None:
    async with serving(sglang(manual=True)) as client:
        engine = client.engine
        busy = client.soon("/generate", generate_body(tokens=2))
        await running(client)
        body = {"model_path": "/w", "weight_version": "7"}
        refit = client.soon("/update_weights_from_disk", body)
        await engine.until(lambda: bool(engine.journal.of("/update_weights_from_disk")))
        refit.cancel()
        await engine.until(lambda: engine.journal.entries[1].disconnected)
        await engine.step()
        await busy
        core = sglang_core(client)
        await engine.until(lambda: core.version == "7")


# --- Many at once --------------------------------------------------------------------------------


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


# --- The process ---------------------------------------------------------------------------------


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
