"""The parts together: core, shell, control socket, dialects, two real proxies, engines that die."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest

from steersman.engine import Control
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from tests.proxy.support import until
from tests.shell.whole import whole

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
CHAT = {"prompt": "a", "max_tokens": 20, "ignore_eos": True, "model": "m"}


@pytest.mark.parametrize("runtime", [Runtime.SGLANG, Runtime.VLLM])
async def test_engines_are_paused_and_slept_under_traffic_and_none_dies(
    tmp_path: Path, runtime: Runtime
) -> None:
    config = EngineConfig(
        runtime=runtime, speed=20.0, model="m", weight_version="7", weights_cpu_backup=True
    )
    path, body = ("/v1/completions", CHAT) if runtime is Runtime.VLLM else ("/generate", BODY)
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(config)) for _ in range(2)]
        fleet = await stack.enter_async_context(whole(tmp_path, engines))
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        stop = asyncio.Event()
        served: list[tuple[int, str | None]] = []

        async def trainer(number: int) -> None:
            proxy = fleet.proxies[number % 2]
            while not stop.is_set():
                async with client.post(proxy.url + path, json=body) as answer:
                    content = await answer.json()
                    code = content["error"]["code"] if answer.status != 200 else None
                    served.append((answer.status, code))
                await asyncio.sleep(0)

        trainers = [asyncio.create_task(trainer(number)) for number in range(12)]
        await until(lambda: len(served) > 50)
        for state in (Control.PAUSED, Control.ACTIVE, Control.ASLEEP, Control.ACTIVE) * 2:
            await fleet.become(state)
            if state is Control.ACTIVE:
                seen = len(served)
                await until(lambda seen=seen: len(served) > seen + 20)  # type: ignore[misc]
                continue
            # Behind the barrier nothing arrives, and nothing runs.
            counts = [len(engine.journal.of(path)) for engine in engines]
            assert [engine.core.in_flight for engine in engines] == [0, 0]
            for proxy in fleet.proxies:
                async with client.get(f"{proxy.metrics_url}/status") as answer:
                    assert answer.status == 200
            assert [len(engine.journal.of(path)) for engine in engines] == counts
        stop.set()
        await asyncio.gather(*trainers)

        assert [engine.died for engine in engines] == [None, None]
        assert {code for status, code in served if status != 200} <= {"no_available_workers"}
        assert {status for status, _ in served} <= {200, 503}
        for proxy in fleet.proxies:
            await until(
                lambda proxy=proxy: not any(e.load.requests for e in proxy.fleet.engines())  # type: ignore[misc]
            )
