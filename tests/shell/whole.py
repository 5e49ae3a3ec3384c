"""An operator and its proxies in the test's loop, over real sockets, with real dialects and engines."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

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
from steersman_operator.fleet.state import EngineState, Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_proxy.app import ProxyApp
from steersman_proxy.settings import ControlSettings, ProxySettings
from steersman_sim.engine import SimEngine
from tests.proxy.support import until

TIMING = Timing(idle_gap=0.1, look_every=0.5)


class Whole:
    def __init__(self, shell: FleetShell, proxies: list[ProxyApp], pool: PoolSpec) -> None:
        self.shell = shell
        self.proxies = proxies
        self.pool = pool

    def want(self, state: Control | None = None, **changes: Any) -> None:
        """Ask for a state, or change the pool otherwise."""
        pool = self.pool
        if state is not None:
            changes["state"] = state
        self.pool = msgspec.structs.replace(pool, generation=pool.generation + 1, **changes)
        self.shell.feed(SpecChanged(now=self.shell.now, pools=(self.pool,)))

    async def become(self, state: Control) -> None:
        """Ask for a state and wait until every engine is in it."""
        self.want(state)
        await until(lambda: self._all(state))

    def engine(self, number: int = 0) -> EngineState:
        """What the operator knows of an engine."""
        return self.shell.state.engines[f"p/e{number}"]

    def _all(self, state: Control) -> bool:
        engines = self.shell.state.engines.values()
        for engine in engines:
            assert not engine.problem, engine.problem
        return all(engine.op is None and engine.facts.control is state for engine in engines)


@contextlib.asynccontextmanager
async def whole(
    tmp_path: Path, engines: list[SimEngine], *, timing: Timing = TIMING, **settings: Any
) -> AsyncIterator[Whole]:
    """Two proxies that have a table, over these engines as one pool with these settings."""
    clock = MonotonicClock()
    endpoint = f"ipc://{tmp_path}/c.sock"
    store = FileStore(tmp_path / "state.json")
    term, durable = store.open()
    callers = Engines()
    shell = FleetShell(clock=clock, engines=callers, store=store, timing=timing)
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
            **settings,
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
