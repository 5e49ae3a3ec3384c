"""The parts together: core, shell, control socket, dialects, two real proxies, engines that die."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from steersman.clock import MonotonicClock
from steersman.engine import Control
from steersman.engine import Runtime as SharedRuntime
from steersman_operator.control import ControlServer
from steersman_operator.engines import Engines
from steersman_operator.fleet.events import (
    Elected,
    LeaseRenewed,
    ProxiesRequired,
    ProxyRef,
    SpecChanged,
)
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_proxy.app import ProxyApp
from steersman_proxy.settings import ControlSettings, ProxySettings
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from tests.proxy.support import until

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
CHAT = {"prompt": "a", "max_tokens": 20, "ignore_eos": True, "model": "m"}


class Whole:
    def __init__(self, shell: FleetShell, proxies: list[ProxyApp], pool: PoolSpec) -> None:
        self.shell = shell
        self.proxies = proxies
        self.pool = pool

    async def become(self, state: Control) -> None:
        """Ask for a state and wait until every engine is in it."""
        pool = self.pool
        self.pool = msgspec.structs.replace(pool, state=state, generation=pool.generation + 1)
        self.shell.feed(SpecChanged(now=self.shell.now, pools=(self.pool,)))
        await until(lambda: self._all(state))

    def _all(self, state: Control) -> bool:
        engines = self.shell.state.engines.values()
        for engine in engines:
            assert not engine.problem, engine.problem
        return all(engine.op is None and engine.facts.control is state for engine in engines)


@contextlib.asynccontextmanager
async def whole(tmp_path: Path, engines: list[SimEngine]) -> AsyncIterator[Whole]:
    clock = MonotonicClock()
    endpoint = f"ipc://{tmp_path}/c.sock"
    store = FileStore(tmp_path / "state.json")
    term, durable = store.open()
    callers = Engines()
    shell = FleetShell(
        clock=clock, engines=callers, store=store, timing=Timing(idle_gap=0.1, look_every=0.5)
    )
    server = ControlServer(shell, clock=clock, endpoints=[endpoint])
    shell.publisher = server
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(callers.close)
        await server.start()
        stack.push_async_callback(server.close)
        server.lead(term=term, api_url="")
        shell.start()
        stack.push_async_callback(shell.close)
        pool = PoolSpec(
            name="p",
            models=("m",),
            engines=tuple(
                EngineSpec(
                    id=f"p/e{i}", url=engine.url, runtime=SharedRuntime(engine.config.runtime.value)
                )
                for i, engine in enumerate(engines)
            ),
        )
        refs = tuple(ProxyRef(uid=f"proxy-{i}", boot="") for i in range(2))
        shell.feed(LeaseRenewed(now=shell.now, valid_until=float("inf")))
        shell.feed(Elected(now=shell.now, term=term, durable=durable))
        shell.feed(ProxiesRequired(now=shell.now, proxies=refs))
        shell.feed(SpecChanged(now=shell.now, pools=(pool,)))
        proxies = [
            await stack.enter_async_context(
                ProxyApp(
                    ProxySettings(
                        port=0,
                        metrics_port=0,
                        access_log=False,
                        log_level="error",
                        control=ControlSettings(addresses=(endpoint,), uid=ref.uid),
                    )
                )
            )
            for ref in refs
        ]
        await until(lambda: all(proxy.fleet.view is not None for proxy in proxies))
        yield Whole(shell, proxies, pool)


@pytest.mark.parametrize("runtime", [Runtime.SGLANG, Runtime.VLLM])
async def test_engines_are_paused_and_slept_under_traffic_and_none_dies(
    tmp_path: Path, runtime: Runtime
) -> None:
    config = EngineConfig(runtime=runtime, speed=20.0, model="m", weight_version="7")
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
