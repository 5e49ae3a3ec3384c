"""Asks every engine for its health, each at its own pace."""

import asyncio
import logging
import random

from steersman.engine import Runtime
from steersman_proxy.health.tracker import HealthTracker, ProbeResult
from steersman_proxy.own.asking import AskFailed, EngineAsker, NotAsked
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.settings import ProbeSettings

_log = logging.getLogger("steersman.health")

CONCURRENCY = 32
"""Probes in flight at a time."""

JITTER = 0.2
"""An interval is longer or shorter by up to this part, so that probes spread out."""

# SGLang's /health runs a request: on a paused engine it waits, fails after 20 s and marks the
# engine unhealthy. /ping asks nothing of the scheduler. vLLM's /health asks nothing either, and it
# also has /ping, so an engine of unknown runtime is asked for that.
_PATHS = {Runtime.SGLANG: "/ping", Runtime.VLLM: "/health", Runtime.UNKNOWN: "/ping"}


def result_of(status: int) -> ProbeResult:
    """What an answer's status says.

    Anything below 5xx comes from a server that works: an engine without the route answers 404.
    """
    if status in (401, 403):
        return ProbeResult.AUTH_FAILED
    return ProbeResult.UNHEALTHY if status >= 500 else ProbeResult.OK


class Prober:
    """One task per engine, so that an engine that hangs delays nobody.

    Engines with a closed gate, and sleeping ones, are not asked.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        tracker: HealthTracker,
        asker: EngineAsker,
        settings: ProbeSettings,
        random: random.Random,
    ) -> None:
        self._fleet = fleet
        self._tracker = tracker
        self._asker = asker
        self._settings = settings
        self._random = random
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._tasks: dict[Engine, asyncio.Task[None]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to ask, if the settings say so; needs the running event loop."""
        if self._settings.enabled:
            self._fleet.on_change.append(self._follow)
            self._follow()

    async def close(self) -> None:
        """Stop asking, and wait for what is under way to be cancelled."""
        if self._follow in self._fleet.on_change:
            self._fleet.on_change.remove(self._follow)
        for engine in list(self._tasks):
            self._cancel(engine)
        await asyncio.gather(*self._cancelled, return_exceptions=True)

    def _follow(self) -> None:
        """Have one task for each engine of the table."""
        engines = set(self._fleet.engines())
        for engine in self._tasks.keys() - engines:
            self._cancel(engine)
        for engine in engines - self._tasks.keys():
            name = f"probe {engine.id}"
            self._tasks[engine] = asyncio.create_task(self._watch(engine), name=name)

    def _cancel(self, engine: Engine) -> None:
        task = self._tasks.pop(engine)
        self._cancelled.add(task)
        task.add_done_callback(self._cancelled.discard)
        task.cancel()

    async def _watch(self, engine: Engine) -> None:
        # A new engine is asked soon, but a thousand of them not at once.
        pause = self._random.uniform(0, min(1.0, self._settings.interval))
        while True:
            await asyncio.sleep(pause)
            await self._probe(engine)
            pause = self._settings.interval * self._random.uniform(1 - JITTER, 1 + JITTER)

    async def _probe(self, engine: Engine) -> None:
        async with self._slots:
            path = _PATHS[engine.row.runtime]
            try:
                answer = await self._asker.ask(engine, target=path, timeout=self._settings.timeout)
                result = result_of(answer.status)
            except NotAsked:
                return
            except AskFailed as error:
                if error.exhausted:
                    return
                result = ProbeResult.TIMEOUT if error.timeout else ProbeResult.REFUSED
        was_healthy, before = engine.healthy, self._tracker.conditions(engine)
        self._tracker.probe_result(engine, result)
        if engine.healthy is not was_healthy or self._tracker.conditions(engine) != before:
            state = "in" if engine.healthy else "out"
            _log.warning("engine %s is %s: probe %s", engine.id, state, result.value)
