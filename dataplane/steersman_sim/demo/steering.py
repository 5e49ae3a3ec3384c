"""Changing an engine without breaking a promise: the order of docs/guarantees.md.

Close the gate in the table. Wait until the proxy has that table in force and nothing is in flight
on the engine. Only then touch the engine. At the end tell the table what became of it, and open.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from steersman_sim.demo.engine_calls import EngineCalls
from steersman_sim.demo.proxy_status import ProxyWatch, Status
from steersman_sim.demo.records import (
    NEW,
    Activity,
    Closure,
    FleetMax,
    Phase,
    Records,
    Weights,
)
from steersman_sim.demo.scenario import Action, Step
from steersman_sim.demo.table import Row, TableFile

Say = Callable[[str], None]


class Steering:
    """Carries out the steps of a scenario."""

    def __init__(
        self,
        *,
        records: Records,
        table: TableFile,
        proxy: ProxyWatch,
        engines: Mapping[str, EngineCalls],
        say: Say,
    ) -> None:
        """``say`` is told what happens now, in words."""
        self._records = records
        self._table = table
        self._proxy = proxy
        self._engines = engines
        self._say = say

    async def run(self, steps: list[Step]) -> None:
        """Carry out the steps, each at its time, one after the other."""
        for step in steps:
            await asyncio.sleep(max(0.0, self._records.began + step.at - time.monotonic()))
            engine = self._engines[self._records.engines[step.engine]]
            match step.action:
                case Action.REFIT:
                    await self._change(engine, stay=0.0, work=self._refit)
                case Action.PAUSE:
                    await self._change(engine, stay=step.stay, work=self._pause)
                case Action.SLEEP:
                    await self._change(engine, stay=step.stay, work=self._sleep)
            self._say(self._summary())

    # --- the operations, each behind a closed gate ---------------------------------------------------

    async def _refit(self, engine: EngineCalls, _: float) -> str | None:
        self._begin(engine, Activity.REFIT)
        self._say(f"{engine.name} is being refitted to {NEW}")
        await engine.refit(NEW)
        return NEW

    async def _pause(self, engine: EngineCalls, stay: float) -> str | None:
        self._begin(engine, Activity.PAUSED)
        await engine.pause()
        self._table.edit(engine.name, control="paused")
        self._say(f"{engine.name} is paused")
        await asyncio.sleep(stay)
        await engine.resume()
        return None

    async def _sleep(self, engine: EngineCalls, stay: float) -> str | None:
        self._begin(engine, Activity.ASLEEP)
        await engine.release_memory()
        self._table.edit(engine.name, control="asleep")
        self._say(f"{engine.name} is asleep, its memory is released")
        await asyncio.sleep(stay)
        self._begin(engine, Activity.WAKING)
        self._say(f"{engine.name} wakes up and loads {NEW}")
        await engine.resume_memory()
        await engine.load(NEW)
        return NEW

    # --- closing and opening -------------------------------------------------------------------------

    async def _change(
        self,
        engine: EngineCalls,
        *,
        stay: float,
        work: Callable[[EngineCalls, float], Awaitable[str | None]],
    ) -> None:
        """Do ``work`` behind a closed gate; it returns the version if the engine has a new one."""
        closure = await self._close(engine)
        version = await work(engine, stay)
        closure.until = time.monotonic()
        before = self._proxy.epoch
        row = self._table.edit(engine.name, gate="open", control="active", version=version)
        await self._in_force(row, before=before)
        self._end_phase(engine, at=closure.until)
        if version is not None:
            self._records.weights.append(
                Weights(engine=engine.name, version=version, since=closure.until)
            )
            # Whoever is chosen from now on is chosen by the new table; before, that is not sure.
            self._records.maxima.append(FleetMax(version=version, since=time.monotonic()))

    async def _close(self, engine: EngineCalls) -> Closure:
        """Close the gate and wait until nothing is in flight."""
        before = self._proxy.epoch
        row = self._table.edit(engine.name, gate="closed")
        self._begin(engine, Activity.DRAINING)
        self._say(f"{engine.name} is closed and finishes what it has")
        await self._in_force(row, before=before)
        await self._proxy.until(
            lambda status: _in_flight(status, engine.name) == 0,
            what=f"finish the requests on {engine.name}",
        )
        closure = Closure(engine=engine.name, since=time.monotonic())
        self._records.closures.append(closure)
        return closure

    async def _in_force(self, row: Row, *, before: str | None) -> None:
        """Wait until the proxy says that the table with this row is in force."""

        def shows(status: Status) -> bool:
            engine = status.engine(row.id)
            return (
                status.table.epoch != before
                and engine is not None
                and engine.gate.open is (row.gate == "open")
                and engine.control == row.control
                and engine.version == row.version
            )

        await self._proxy.until(shows, what=f"take up the table that changes {row.id}")

    # --- notes -----------------------------------------------------------------------------------------

    def _begin(self, engine: EngineCalls, activity: Activity) -> None:
        now = time.monotonic()
        self._end_phase(engine, at=now)
        self._records.phases.append(Phase(engine=engine.name, activity=activity, since=now))

    def _end_phase(self, engine: EngineCalls, *, at: float) -> None:
        for phase in self._records.phases:
            if phase.engine == engine.name and phase.until is None:
                phase.until = at

    def _summary(self) -> str:
        """Which engine serves what, when nothing is being done."""
        rows = self._table.rows.values()
        if len(versions := {row.version for row in rows}) == 1:
            return f"all engines serve {versions.pop()}"
        newest = [row.id for row in rows if row.version == NEW]
        return f"{NEW} is served by {', '.join(newest)}: latest-only goes nowhere else"


def _in_flight(status: Status, name: str) -> int | None:
    engine = status.engine(name)
    return None if engine is None else engine.in_flight
