"""Faults that a test injects, and the journal of what the engine received."""

import asyncio
import io
import json
import time
from typing import Any

import aiohttp
import pytest

from steersman_sim.engine import Fault, SimEngine
from tests.sim.support import (
    CONNECTION_LOST,
    STREAM_CUT,
    Client,
    generate_body,
    running,
    serving,
    sglang,
    sglang_core,
    vllm,
)

BOTH = pytest.mark.parametrize("config", [sglang(), vllm()], ids=["sglang", "vllm"])


# --- Faults ---------------------------------------------------------------------------------------


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


# --- Journal --------------------------------------------------------------------------------------


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
