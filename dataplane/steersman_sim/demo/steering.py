"""The steps of the run, by the commands that a person types, and the notes that the judge needs.

A command returns when what it asks for is so: from then on the engine must receive nothing, until
the command that lets it go on is started. The trainer's own call to the engine goes in between.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from steersman_sim.demo.engine_calls import EngineCalls
from steersman_sim.demo.manifest import POOL
from steersman_sim.demo.proxy_status import ProxyWatch
from steersman_sim.demo.records import (
    NEW,
    OLD,
    Activity,
    Closure,
    FleetMax,
    Phase,
    Records,
    Weights,
)
from steersman_sim.demo.scenario import Action, Step


class Narrator(Protocol):
    """Is told what happens."""

    def say(self, step: str) -> None:
        """This happens now, in words."""
        ...

    async def run(self, *words: str) -> object:
        """Show the command ``steersman WORDS`` and run it to its end."""
        ...


class Steering:
    """Carries out the steps of a scenario."""

    def __init__(
        self,
        *,
        records: Records,
        proxies: ProxyWatch,
        engines: Mapping[str, EngineCalls],
        narrator: Narrator,
    ) -> None:
        self._records = records
        self._proxies = proxies
        self._engines = engines
        self._narrator = narrator
        self._versions = dict.fromkeys(engines, OLD)

    async def run(self, steps: list[Step]) -> None:
        """Carry out the steps, each at its time, one after the other."""
        for step in steps:
            await asyncio.sleep(max(0.0, self._records.began + step.at - time.monotonic()))
            engine = self._engines[self._records.engines[step.engine]]
            match step.action:
                case Action.REFIT:
                    await self._refit(engine)
                case Action.PAUSE:
                    await self._pause(engine, stay=step.stay)
                case Action.SLEEP:
                    await self._sleep(engine, stay=step.stay)
            self._narrator.say(self._summary())

    # --- the operations ---------------------------------------------------------------------------

    async def _refit(self, engine: EngineCalls) -> None:
        closure = await self._close("pause", engine)
        self._begin(engine, Activity.REFIT)
        self._narrator.say(f"{engine.name} is paused; the trainer loads {NEW}")
        await engine.load(NEW)
        self._versions[engine.name] = NEW
        await self._open("resume", engine, closure)

    async def _pause(self, engine: EngineCalls, *, stay: float) -> None:
        closure = await self._close("pause", engine)
        self._begin(engine, Activity.PAUSED)
        self._narrator.say(f"{engine.name} is paused")
        await asyncio.sleep(stay)
        await self._open("resume", engine, closure)

    async def _sleep(self, engine: EngineCalls, *, stay: float) -> None:
        closure = await self._close("sleep", engine)
        self._begin(engine, Activity.ASLEEP)
        self._narrator.say(f"{engine.name} is asleep, its memory is released")
        await asyncio.sleep(stay)
        await self._open("wake", engine, closure)

    # --- closing and opening ----------------------------------------------------------------------

    async def _close(self, verb: str, engine: EngineCalls) -> Closure:
        """Run a command that keeps requests away; when it has returned, none may arrive."""

        def drains() -> None:
            self._begin(engine, Activity.DRAINING)
            self._narrator.say(f"{engine.name} is closed and finishes what it has")

        await self._order(verb, engine, opens=False, noticed=drains)
        closure = Closure(engine=engine.name, since=time.monotonic())
        self._records.closures.append(closure)
        return closure

    async def _open(self, verb: str, engine: EngineCalls, closure: Closure) -> None:
        """Run a command that lets requests in again."""
        closure.until = time.monotonic()
        version = self._versions[engine.name]

        def serves() -> None:
            closure.opened = now = time.monotonic()
            self._end_phase(engine, at=now)
            if version != self._served(engine):
                self._records.weights.append(
                    Weights(engine=engine.name, version=version, since=now)
                )

        await self._order(verb, engine, opens=True, noticed=serves)
        await self._proxies.until(
            lambda status: status.all_open(engine.url, version=version),
            what=f"open {engine.name} with weights {version}",
        )
        # Whoever is chosen from now on is chosen by such a table; before, that is not sure.
        if version not in {entry.version for entry in self._records.maxima}:
            self._records.maxima.append(FleetMax(version=version, since=time.monotonic()))

    async def _order(
        self, verb: str, engine: EngineCalls, *, opens: bool, noticed: Callable[[], None]
    ) -> None:
        """Run a command about one engine; ``noticed`` is called when the first proxy has moved the
        engine's gate.
        """

        async def notice() -> None:
            await self._proxies.until(
                lambda status: status.some_gate(engine.url, is_open=opens),
                what=f"{'open' if opens else 'close'} {engine.name}",
            )
            noticed()

        noticing = asyncio.create_task(notice(), name=f"notice {verb}")
        try:
            await self._narrator.run(verb, POOL, "--engine", engine.name)
            await noticing
        finally:
            noticing.cancel()
            await asyncio.gather(noticing, return_exceptions=True)

    # --- notes ------------------------------------------------------------------------------------

    def _begin(self, engine: EngineCalls, activity: Activity) -> None:
        now = time.monotonic()
        self._end_phase(engine, at=now)
        self._records.phases.append(Phase(engine=engine.name, activity=activity, since=now))

    def _end_phase(self, engine: EngineCalls, *, at: float) -> None:
        for phase in self._records.phases:
            if phase.engine == engine.name and phase.until is None:
                phase.until = at

    def _served(self, engine: EngineCalls) -> str:
        """The version that an engine served last."""
        return [one.version for one in self._records.weights if one.engine == engine.name][-1]

    def _summary(self) -> str:
        """Which engine serves what, when nothing is being done."""
        if len(versions := set(self._versions.values())) == 1:
            return f"all engines serve {versions.pop()}"
        newest = [name for name, version in self._versions.items() if version == NEW]
        return f"{NEW} is served by {', '.join(newest)}: latest-only goes nowhere else"
