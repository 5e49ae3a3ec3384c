"""The sim engine as an object: start it, let it die, start it again, and read what it received."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from steersman_sim.engine.call import Routes
from steersman_sim.engine.config import EngineConfig, Runtime
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.dispatch import Dispatcher
from steersman_sim.engine.faults import Faults
from steersman_sim.engine.journal import Journal
from steersman_sim.engine.listener import Listener
from steersman_sim.engine.sglang.core import SglangCore
from steersman_sim.engine.sglang.routes import sglang_routes
from steersman_sim.engine.sidechannel import SideChannel
from steersman_sim.engine.vllm.core import VllmCore
from steersman_sim.engine.vllm.routes import vllm_routes
from steersman_sim.engine.watch import Watch


class SimEngine:
    """One engine at one address.

    ``journal``, ``faults`` and the address outlive a death and a restart; everything else belongs
    to one boot and is found in ``core``.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = EngineConfig() if config is None else config
        self.journal = Journal(
            limit=self.config.journal_limit, body_bytes=self.config.journal_body_bytes
        )
        self.faults = Faults()
        self.watch = Watch()
        self.boot = 0
        """Counts the starts; a restarted engine is a different one."""
        self.died: str | None = None
        """Why the engine crashed, as long as it is down for that reason."""
        self._listener = Listener(
            self.config.host, port=self.config.port, keep_alive_s=self.config.keep_alive_s
        )
        self._core: EngineCore | None = None
        self._ending: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._side = SideChannel(self)

    async def __aenter__(self) -> "SimEngine":
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    # --- Reading ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The base URL; known once started, and the same after a restart."""
        return self._listener.url

    @property
    def port(self) -> int:
        """The port; known once started."""
        return self._listener.port

    @property
    def running(self) -> bool:
        """Whether it accepts connections."""
        return self._core is not None and self._ending is None

    @property
    def core(self) -> EngineCore:
        """The present boot.

        Raises:
            RuntimeError: the engine is not running.
        """
        if self._core is None:
            raise RuntimeError("the engine is not running")
        return self._core

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return self._listener.connections

    # --- Life ------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start and return the base URL.

        Raises:
            OSError: the address cannot be bound.
            RuntimeError: it is running already.
        """
        if self._core is not None:
            raise RuntimeError("the engine is running already")
        self.boot += 1
        self.died = None
        core, routes = self._make_core()
        dispatcher = Dispatcher(
            core,
            routes=routes,
            journal=self.journal,
            faults=self.faults,
            side_channel=self._side.handle,
        )
        await self._listener.open(dispatcher.dispatch)
        self._core = core
        core.start()
        self.watch.notify()
        return self.url

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """End in good order: no new connections, ``grace_s`` wall seconds for answers under way."""
        if self._restarting is not None:
            await self._restarting
        if self._ending is not None:
            await self._ending
        await self._end(abruptly=False, grace_s=grace_s)
        self._listener.release()

    async def die(self, reason: str = "told to") -> None:
        """Crash: reset every connection, refuse new ones, forget everything."""
        self._crash(reason)
        if self._ending is not None:
            await self._ending

    async def restart(self, *, abruptly: bool = True) -> str:
        """Start anew at the same port, after a death or instead of one."""
        if self._ending is not None:
            await self._ending
        await self._end(abruptly=abruptly)
        return await self.start()

    def schedule_restart(self) -> None:
        """Restart soon: whoever asks over HTTP can be answered first."""
        if self._restarting is None:
            self._restarting = asyncio.create_task(self._restart_soon(), name="sim-restart")

    async def _restart_soon(self) -> None:
        try:
            await asyncio.sleep(0.02)
            await self.restart()
        finally:
            self._restarting = None

    async def wait_dead(self) -> str:
        """Wait until the engine has crashed, and return why."""
        await self.watch.until(lambda: self.died is not None)
        assert self.died is not None
        return self.died

    # --- Steering from a test --------------------------------------------------------------------

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until ``predicate()`` holds; asked again after each change of the engine."""
        await self.watch.until(predicate)

    async def step(self, count: int = 1, *, rank: int = 0) -> None:
        """With ``manual``: take ``count`` steps of a rank, waiting for work if there is none."""
        await self.core.ranks[rank].step(count)

    def state(self) -> dict[str, Any]:
        """What ``GET /_sim/state`` shows."""
        shown: dict[str, Any] = {
            "runtime": self.config.runtime.value,
            "url": self.url,
            "boot": self.boot,
            "running": self.running,
            "died": self.died,
            "connections": self.connections,
            "requests": self.journal.count,
        }
        if self._core is not None:
            shown |= {
                "uptime": time.time() - self._core.started,
                "in_flight": self._core.in_flight,
                "model": self._core.model,
                "ranks": [rank.summary() for rank in self._core.ranks],
                **self._core.summary(),
            }
        return shown

    # --- Inside ----------------------------------------------------------------------------------

    def _make_core(self) -> tuple[EngineCore, Routes]:
        config, boot, watch, die = self.config, self.boot, self.watch, self._crash
        match config.runtime:
            case Runtime.SGLANG:
                return SglangCore(config, boot=boot, watch=watch, die=die), sglang_routes()
            case Runtime.VLLM:
                return VllmCore(config, boot=boot, watch=watch, die=die), vllm_routes(config)

    def _crash(self, reason: str) -> None:
        if self._core is None or self._ending is not None:
            return
        self._ending = asyncio.create_task(self._finish_crash(reason), name="sim-engine-death")

    async def _finish_crash(self, reason: str) -> None:
        try:
            await self._end(abruptly=True)
        finally:
            self._ending = None
            self.died = reason
            self.watch.notify()

    async def _end(self, *, abruptly: bool, grace_s: float = 0.0) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        core.ending = True
        await self._listener.close(abruptly=abruptly, grace_s=grace_s)
        await core.stop()
        self.watch.notify()
