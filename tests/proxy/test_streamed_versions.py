"""Weights that change under a stream, over sockets: heads, comments, counts and the log's records."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from steersman_proxy.exchange.messages import ExchangeRecord
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from tests.http.fake_engine import STREAM, Received, Wire, fake_engine
from tests.proxy.raw import chunk, connected, rows, sample
from tests.proxy.support import Rig, Watching, rig, running

pytestmark = pytest.mark.usefixtures("adapter")

TOKENS = 5
SGLANG = EngineConfig(manual=True)
VLLM = EngineConfig(manual=True, runtime=Runtime.VLLM)
CHANGES: dict[Runtime, tuple[tuple[str, dict[str, Any] | None], ...]] = {
    Runtime.SGLANG: (
        ("/pause_generation", {"mode": "in_place"}),
        (
            "/update_weights_from_disk",
            {"model_path": "/w", "weight_version": "8", "flush_cache": False},
        ),
        ("/continue_generation", {}),
    ),
    Runtime.VLLM: (
        ("/pause?mode=keep&clear_cache=false", None),
        ("/update_weight_version", {"new_version": "8"}),
        ("/resume", None),
    ),
}
PATHS = ("/generate", "/inference/v1/generate", "/v1/chat/completions", "/v1/completions")


def recorded(world: Rig) -> list[ExchangeRecord]:
    """What the metrics and the access log are told from now on."""
    found: list[ExchangeRecord] = []
    watching = Watching(world.app.context.observer, lambda engine: None)
    inner = watching.finished

    def finished(record: ExchangeRecord) -> None:
        found.append(record)
        inner(record)

    watching.finished = finished
    world.app.context.observer = watching
    return found


async def change(world: Rig, engine: SimEngine) -> None:
    """Give the engine version 8 in place: what runs keeps its KV and goes on with it."""
    for path, body in CHANGES[engine.config.runtime]:
        async with world.client.post(engine.url + path, json=body) as answer:
            assert answer.status == 200, await answer.text()


@contextlib.asynccontextmanager
async def stream(world: Rig, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    sampling = {"max_new_tokens": TOKENS, "max_tokens": TOKENS, "ignore_eos": True}
    content: dict[str, dict[str, Any]] = {
        "/generate": {"text": "a", "sampling_params": sampling},
        "/inference/v1/generate": {"token_ids": [1], "sampling_params": sampling},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]} | sampling,
        "/v1/completions": {"prompt": "a"} | sampling,
    }
    body = {"stream": True, "model": "sim-model"} | content[path]
    async with world.client.post(world.url + path, json=body) as answer:
        assert answer.status == 200
        yield answer


async def made(engine: SimEngine, tokens: int) -> None:
    """Have the engine make so many tokens of its only request in all."""
    while engine.core.ranks[0].scheduler.generated_tokens < tokens:
        await engine.step()


@pytest.mark.parametrize("at", range(1, TOKENS))
@pytest.mark.parametrize(
    ("config", "path", "reports"),
    [
        (SGLANG, "/generate", True),
        (VLLM, "/inference/v1/generate", True),
        (SGLANG, "/v1/chat/completions", False),
        (VLLM, "/v1/completions", False),
    ],
    ids=["SGLang", "vLLM", "SGLang chat", "vLLM completions"],
)
async def test_a_change_after_each_token_is_counted(
    tmp_path: Path, config: EngineConfig, path: str, reports: bool, at: int
) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=config) as world:
        engine, records = world.engines["e0"], recorded(world)
        async with stream(world, path) as answer:
            # The head goes out at once, with what is known at dispatch.
            assert answer.headers["x-smg-weight-version"] == "7"
            assert "x-smg-mixed-version" not in answer.headers
            await made(engine, at)
            await change(world, engine)
            if not reports:
                # Nothing on the wire tells; the table does, as the operator has changed it.
                await world.edit("e0", weightVersion="8")
            await made(engine, TOKENS)
            told = await answer.read()
        await world.idle()

        (entry,) = engine.journal.of(path)
        (generation,) = entry.generations
        stamped = [(span.version, span.end - span.start) for span in generation.stamped]
        assert stamped == [("7", at), ("8", TOKENS - at)]
        (record,) = records
        assert (record.streaming, record.mixed) == (True, True)
        assert record.weight_version == ("8" if reports else "7")
        assert (b": x-smg-mixed-version: true\n" in told) == (path == "/generate")
        assert await sample(world, "smg_rl_mixed_version_total") == 1
        assert (
            await sample(world, "steersman_mixed_version_total", pool="pool", streaming="true") == 1
        )
        assert await sample(world, "smg_rl_version_change_with_inflight_total") == 1
        assert world.engine("e0").version == "8"


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_stream_under_which_nothing_changes_is_not(tmp_path: Path, path: str) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=SGLANG) as world:
        records = recorded(world)
        await world.edit("e1", gate="closed")
        async with stream(world, path) as answer:
            await made(world.engines["e0"], 2)
            await world.edit("e1", weightVersion="8", gate="open")
            await world.edit("e0", gate="closed")
            await made(world.engines["e0"], TOKENS)
            await answer.read()
        await world.idle()

        assert [(record.weight_version, record.mixed) for record in records] == [("7", False)]
        assert await sample(world, "smg_rl_mixed_version_total") == 0


async def test_a_stream_whose_client_leaves_counts_what_it_has_seen(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=SGLANG) as world:
        engine, records = world.engines["e0"], recorded(world)
        async with stream(world, "/v1/completions") as answer:
            await made(engine, 2)
            await answer.content.readany()
            await change(world, engine)
            await world.edit("e0", weightVersion="8")
            answer.close()
        await world.idle()

        assert [(record.outcome.value, record.mixed) for record in records] == [
            ("client_gone", True)
        ]


async def test_an_answer_that_never_came_is_not_mixed(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=SGLANG) as world:
        records = recorded(world)
        asking = asyncio.create_task(world.generate())
        await world.engines["e0"].until(lambda: world.engines["e0"].core.in_flight == 1)
        await world.edit("e0", weightVersion="8")
        await world.engines["e0"].die()
        status, _, _ = await asking

        assert status == 502
        assert [record.mixed for record in records] == [False]


async def test_the_access_log_says_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with rig(
        tmp_path,
        {"e0": "7"},
        config=SGLANG,
        access_log=True,
        log_level="info",
        log_format="json",
    ) as world:
        engine = world.engines["e0"]
        async with stream(world, "/generate") as answer:
            await made(engine, 2)
            await change(world, engine)
            await made(engine, TOKENS)
            await answer.read()
        await world.idle()
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in (out + err).splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("route") == "/generate"]
    assert (line["mixed"], line["streaming"]) == (True, True)


# --- cuts -------------------------------------------------------------------------------------------


def event(meta: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"text": "x", "meta_info": meta}).encode() + b"\n\n"


FIRST = event({"weight_version": "7"})
LAST = event(
    {
        "weight_versions": [
            {"version": "7", "start": 0, "end": 1},
            {"version": "8", "start": 1, "end": 2},
        ],
        "weight_version": "8",
    }
)
DONE = b"data: [DONE]\n\n"
NOTE = b": x-smg-weight-version: 8\n: x-smg-mixed-version: true\n\n"
BEFORE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 36\r\n\r\n"
BEFORE += b'{"meta_info":{"weight_version":"7"}}'


@pytest.mark.parametrize("last", [LAST, event({"weight_version": "8"})], ids=["spans", "name"])
async def test_a_change_is_seen_wherever_reads_and_chunks_are_cut(
    tmp_path: Path, last: bytes
) -> None:
    events = FIRST + last + DONE
    answer = STREAM + chunk(FIRST) + chunk(last) + chunk(DONE) + b"0\r\n\r\n"
    cuts: dict[bytes, list[bytes]] = {b"in one": [answer]}
    for at in range(1, len(answer)):
        cuts[b"read at %d" % at] = [answer[:at], answer[at:]]
    for at in range(1, len(events), 2):
        parts = (events[:at], events[at : at + 3], events[at + 3 :])
        chunks = b"".join(chunk(part) for part in parts if part)
        cuts[b"chunk at %d" % at] = [STREAM + chunks + b"0\r\n\r\n"]

    def answer_to(request: Received) -> list[bytes]:
        # Asked in between, the engine seems to be at 7 again.
        return cuts.get(request.body) or [BEFORE]

    async def script(wire: Wire) -> None:
        while True:
            await wire.cut(*answer_to(await wire.request()))

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        records = recorded(world)
        for cut in cuts:
            await client.post()
            assert world.engine("e0").version == "7"
            records.clear()
            got = await client.post(cut)
            assert got.values(b"x-smg-weight-version") == [b"7"]
            assert got.values(b"x-smg-mixed-version") == []
            assert (got.body, got.whole) == (FIRST + last + NOTE + DONE, True), cut
            assert world.engine("e0").version == "8", cut
            assert [(one.mixed, one.weight_version) for one in records] == [(True, "8")], cut
