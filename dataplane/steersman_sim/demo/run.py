"""One run of the demonstration, from the start of its processes to the verdict."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from steersman_sim.demo.commands import typed
from steersman_sim.demo.engine_calls import read_all
from steersman_sim.demo.fleet import Fleet, running_fleet
from steersman_sim.demo.judge import Verdict, judge
from steersman_sim.demo.options import DemoOptions
from steersman_sim.demo.records import OLD, FleetMax, Records, Weights
from steersman_sim.demo.scenario import plan
from steersman_sim.demo.snapshot import Snapshot, snapshot
from steersman_sim.demo.steering import Steering
from steersman_sim.demo.traffic import Mix, Traffic

_REFRESH = 0.2
"""Seconds between two pictures."""
_READ_EVERY = 3
"""The journals are read for every so many pictures."""

_DEATH_NOTICE = 2.0
"""Seconds that the system may take to tell of a death that somebody has felt already."""


class View(Protocol):
    """Shows a run while it goes on."""

    def say(self, step: str, *, at: float) -> None:
        """A step began, ``at`` seconds after the traffic."""
        ...

    def show(self, shown: Snapshot) -> None:
        """This is how things are now."""
        ...


class Result(msgspec.Struct, kw_only=True, frozen=True):
    """The end of a run."""

    records: Records
    verdict: Verdict
    url: str
    directory: Path
    """The directory of the fleet; the logs are in it."""


async def run_demo(
    options: DemoOptions,
    *,
    view: AbstractContextManager[View],
    finished: Callable[[Result], bool],
) -> bool:
    """Carry out one run; returns whether it was good.

    ``finished`` is told the result while everything still runs, and says whether it was good. With
    ``options.keep`` the processes then stay until the caller cancels.

    :raises DemoError: the run could not be carried out.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        running_fleet(options, session=session) as fleet,
    ):
        result = await _traffic_and_steps(fleet, options, session, view)
        good = finished(result)
        fleet.keep_directory = not good
        if options.keep:
            with suppress(asyncio.CancelledError):
                await fleet.watch()
    return good


async def _traffic_and_steps(
    fleet: Fleet,
    options: DemoOptions,
    session: aiohttp.ClientSession,
    view: AbstractContextManager[View],
) -> Result:
    began = time.monotonic()
    records = Records(
        engines=tuple(fleet.engines),
        urls={name: calls.url for name, calls in fleet.engines.items()},
        began=began,
        maxima=[FleetMax(version=OLD, since=began)],
        weights=[Weights(engine=name, version=OLD, since=began) for name in fleet.engines],
    )
    with view as shown:
        scene = _Scene(fleet, records=records, view=shown)
        traffic = Traffic(fleet.url, session=session, records=records)
        stop = asyncio.Event()
        steering = Steering(
            records=records,
            proxies=fleet.proxies,
            engines=fleet.engines,
            narrator=scene,
        )

        async def act() -> None:
            scene.say(f"all engines serve {OLD}")
            await steering.run(plan(engines=options.engines, duration=options.duration))
            await asyncio.sleep(max(0.0, began + options.duration - time.monotonic()))
            stop.set()

        await _run(
            traffic.run(Mix(options.seed), rate=options.rate, until=stop),
            beside=[act(), scene.play(), fleet.proxies.watch(records)],
            deaths=fleet.watch(),
        )
        verdict = await scene.settle()
    return Result(records=records, verdict=verdict, url=fleet.url, directory=fleet.directory)


class _Scene:
    """Gathers what is shown, and shows it."""

    def __init__(self, fleet: Fleet, *, records: Records, view: View) -> None:
        self._fleet = fleet
        self._records = records
        self._view = view
        self._step = ""
        self._command = ""

    def say(self, step: str) -> None:
        """A step began."""
        self._step = step
        self._view.say(step, at=time.monotonic() - self._records.began)

    async def run(self, *words: str) -> str:
        """Show a command, and run it; returns its output."""
        self._command = typed(words)
        self._view.say(f"$ {self._command}", at=time.monotonic() - self._records.began)
        return await self._fleet.commands.run(*words)

    async def play(self) -> None:
        """Show one picture after the other until cancelled."""
        while True:
            await self._read()
            verdict = judge(self._records)
            for _ in range(_READ_EVERY):
                self._show(verdict)
                await asyncio.sleep(_REFRESH)

    async def settle(self) -> Verdict:
        """The verdict after the last answer, and the last picture."""
        await self._read()
        verdict = judge(self._records)
        self._step = "the run is over"
        self._show(verdict)
        return verdict

    async def _read(self) -> None:
        self._records.arrivals = await read_all(list(self._fleet.engines.values()))
        self._records.held_total = await self._fleet.proxies.held_total()

    def _show(self, verdict: Verdict) -> None:
        self._view.show(
            snapshot(
                self._records,
                status=self._fleet.proxies.last,
                verdict=verdict,
                step=self._step,
                command=self._command,
                now=time.monotonic(),
            )
        )


async def _run(
    main: Coroutine[Any, Any, None],
    *,
    beside: Iterable[Coroutine[Any, Any, None]],
    deaths: Coroutine[Any, Any, None],
) -> None:
    """Run ``main`` to its end; the others go on beside it, and end it if they fail.

    ``deaths`` fails when a process has ended. Whoever talks to that process may fail a moment
    earlier, but the death is the cause and is what is told.
    """
    task, watch = asyncio.create_task(main), asyncio.create_task(deaths)
    others = {asyncio.create_task(other) for other in beside}
    running = {task, watch, *others}
    try:
        while not task.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for ended in sorted(done, key=lambda one: one is not watch):
                if ended is not watch and ended.exception() is not None:
                    await asyncio.wait({watch}, timeout=_DEATH_NOTICE)
                    if watch.done():
                        watch.result()
                ended.result()
    finally:
        for one in (task, watch, *others):
            one.cancel()
        await asyncio.gather(task, watch, *others, return_exceptions=True)
