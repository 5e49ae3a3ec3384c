"""A client that leaves: the engine learns of it at once, and by name where the name is ours."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from steersman_sim.engine import EngineConfig, Runtime
from tests.proxy.support import rig, until

pytestmark = pytest.mark.usefixtures("adapter")

LONG = {"text": "a", "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": True}}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_stops_when_the_client_leaves(tmp_path: Path, stream: bool) -> None:
    async with rig(tmp_path, {"e0": "7"}) as world:
        engine = world.engines["e0"]
        request = asyncio.create_task(
            world.client.post(f"{world.url}/generate", json=LONG | {"stream": stream})
        )
        await engine.until(lambda: engine.core.in_flight == 1)
        if stream:
            answer = await request
            await answer.content.readany()
            answer.close()
        else:
            request.cancel()

        await until(lambda: engine.core.in_flight == 0, within=1.0)
        await world.idle()
        assert engine.journal.of("/generate")[0].disconnected
        assert engine.journal.of("/abort_request") == []
        assert world.engine("e0").healthy


@pytest.mark.parametrize(
    ("runtime", "header", "path"),
    [
        (Runtime.SGLANG, "x-override-rid", "/abort_request"),
        (Runtime.VLLM, "x-request-id", "/inference/v1/abort_requests"),
    ],
)
async def test_an_abort_follows_where_an_id_of_ours_travelled(
    tmp_path: Path, runtime: Runtime, header: str, path: str
) -> None:
    config = EngineConfig(runtime=runtime)
    async with rig(tmp_path, {"e0": "7"}, config=config, rid_header={"pool": header}) as world:
        engine = world.engines["e0"]
        body = {"model": "sim-model", "prompt": "a", "max_tokens": 100_000, "ignore_eos": True}
        request = asyncio.create_task(world.client.post(f"{world.url}/v1/completions", json=body))
        await engine.until(lambda: engine.core.in_flight == 1)
        (entry,) = engine.journal.of("/v1/completions")
        rid = entry.header(header)
        request.cancel()

        await until(lambda: bool(engine.journal.of(path)))
        await until(lambda: engine.journal.of(path)[0].ended is not None)
        abort = engine.journal.of(path)[0].json()
        assert rid in (abort.get("rid"), *abort.get("request_ids", []))


async def test_no_abort_is_sent_for_an_id_of_the_clients(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, rid_header={"pool": "x-override-rid"}) as world:
        engine = world.engines["e0"]
        request = asyncio.create_task(
            world.client.post(
                f"{world.url}/generate", json=LONG, headers={"X-Override-Rid": "mine"}
            )
        )
        await engine.until(lambda: engine.core.in_flight == 1)
        request.cancel()

        await until(lambda: engine.core.in_flight == 0)
        await world.idle()
        assert engine.journal.of("/generate")[0].header("x-override-rid") == "mine"
        assert engine.journal.of("/abort_request") == []


async def test_field_failure_36_the_count_is_back_at_zero_however_a_client_leaves(
    tmp_path: Path,
) -> None:
    """router#215: some 400 leaked requests per worker and day, from clients that had left."""
    async with rig(tmp_path, {"e0": "7", "e1": "7"}) as world:

        async def leave(when: Callable[[], bool] | None, read: bool) -> None:
            with_timeout = aiohttp.ClientTimeout(total=None)
            request = asyncio.create_task(
                world.client.post(
                    f"{world.url}/generate", json=LONG | {"stream": True}, timeout=with_timeout
                )
            )
            if when is not None:
                await until(when)
            if not read:
                request.cancel()
                return
            answer = await request
            await answer.content.readany()
            answer.close()

        total = world.app.fleet.pool("pool")
        assert total is not None
        for _ in range(20):
            await asyncio.gather(leave(None, read=False), leave(None, read=True))

        await until(
            lambda: not any(engine.load.requests for engine in world.app.fleet.engines()),
            within=1.0,
        )
        await until(lambda: all(e.core.in_flight == 0 for e in world.engines.values()))
