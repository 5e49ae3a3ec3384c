"""kill -9 of the operator at every point of every operation, and what the next one makes of it.

Proxies and operators are processes as `steersman up` starts them, with clients at both proxies. What
is asserted is what the engines received, what the clients read, and where the fleet ends.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from steersman_operator.fleet.facts import CallKind
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from steersman_sim.engine.config import Timings
from steersman_sim.engine.faults import Fault, When
from tests.up.fleet import UpFleet, engine_of, manifest
from tests.up.killed import refits
from tests.up.killed.cases import Case, cases_at
from tests.up.killed.journals import CALLS, trespassers
from tests.up.killed.points import DURING_THE_CALL, Point
from tests.up.killed.stage import PROXIES, WITHIN, Stage, stages
from tests.up.load import Load, load

SPEED = 20.0
QUICK = 0.01
LONG = 2.0
"""Seconds that a sleep, a wake or a load takes; a long one outlasts the operator."""

DEADLINES = {QUICK: 0.7, LONG: 2.4}
"""Seconds after which it has ended, by the intent."""

GENERATE = {"text": "a", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
COMPLETE = {"model": "m", "prompt": "a", "max_tokens": 100, "ignore_eos": True}
STATES = {"active": "Active", "paused": "Paused", "asleep": "Asleep"}
UNKNOWN = "which memory is released is unknown"


LANES = 4
"""Cases at a time: most of a case is waiting."""


@pytest.fixture(scope="module")
def places() -> Iterator[list[Stage]]:
    with stages(LANES) as made:
        yield made


class Run:
    """One case on its way."""

    def __init__(
        self,
        case: Case,
        place: Stage,
        *,
        engines: list[SimEngine],
        fleet: UpFleet,
        api: aiohttp.ClientSession,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self.case = case
        self.place = place
        self.engines = engines
        self.engine = engines[0]
        self.fleet = fleet
        self.loads: list[Load] = []
        self.stopped: int | None = None
        """The proxy that is stopped before the operation is asked for."""
        self._api = api
        self._stack = stack

    async def start_clients(self) -> None:
        """Some at each proxy."""
        path, body = self._request
        for url in self.place.urls:
            traffic = load(url, clients=1, path=path, body=body)
            self.loads.append(await self._stack.enter_async_context(traffic))

    @property
    def _request(self) -> tuple[str, dict[str, Any]]:
        """Where clients send, and what."""
        vllm = self.case.runtime is Runtime.VLLM
        return ("/v1/completions", COMPLETE) if vllm else ("/generate", GENERATE)

    def want(self, state: str, *, refit: bool = False) -> None:
        """Ask for a state of the first engine, or weights, as a person does: in the manifest."""
        override = f"  overrides:\n    - {{engine: e0, state: {STATES[state]}}}\n"
        extra = "" if state == "active" else override
        if refit:
            extra += refits.reference(self.case)
        text = manifest("m", self.engines, extra=extra)
        if refit:
            text += refits.weight_version(self.case)
        draft = self.fleet.directory / "m.new"
        draft.write_text(text)
        draft.replace(self.fleet.directory / "m.yaml")

    async def status(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait for a status of whichever operator leads."""
        return await self.fleet.until(condition, within=WITHIN)

    async def settled(self, state: str) -> None:
        await self.status(
            lambda status: (
                engine_of(status, "e0")["control"] == state == engine_of(status, "e0")["desired"]
                and all(engine_of(status, name)["phase"] == "Settled" for name in ("e0", "e1"))
            )
        )

    async def reached(self) -> None:
        """Wait for what was asked for."""
        await self.settled(self.case.operation.wanted)
        if not self.case.refits:
            return
        version = self.case.operation.version
        status = await self.status(
            lambda now: all(
                (one["version"], one["synced"], one["gate"], one["phase"])
                == (version, True, "open", "Settled")
                for one in (engine_of(now, "e0"), engine_of(now, "e1"))
            )
        )
        assert [engine_of(status, name)["problem"] for name in ("e0", "e1")] == ["", ""]

    async def served(self, *numbers: int) -> None:
        """Wait until both proxies serve from engines, from now on."""
        for traffic in self.loads:
            before = [traffic.stamps[self.engines[number].url] for number in numbers]
            await self.until(
                lambda traffic=traffic, before=before: all(  # type: ignore[misc]
                    traffic.stamps[self.engines[number].url] > count
                    for number, count in zip(numbers, before, strict=True)
                )
            )

    async def operator_dies(self) -> None:
        """Ask for the operation, and wait until its operator has been killed at the point."""
        case, place = self.case, self.place
        place.end_operators()
        self.want(case.operation.first)
        engine = self.engine.url.removeprefix("http://")
        words = (case.point.name, engine, case.operation.wanted, case.operation.call.value)
        doomed = await place.start_doomed(*words, DEADLINES[_seconds(case)])
        await self.settled(case.operation.first)
        place.start_successor()
        await self.fleet.told()
        await self.start_clients()
        await self.served(*((0, 1) if case.operation.first == "active" else (1,)))
        self._arm()
        if self.stopped is not None:
            os.kill(self.stopped, signal.SIGSTOP)
        self.want(case.operation.wanted, refit=case.refits)
        if case.point is Point.AWAITING:
            await self._awaits_trainer()
            os.kill(doomed, signal.SIGKILL)
        elif case.point in DURING_THE_CALL:
            await self.until(self._is_called)
            os.kill(doomed, signal.SIGKILL)
        assert await place.doomed_ended() == -signal.SIGKILL, self.fleet.log()

    async def _awaits_trainer(self) -> None:
        status = await self.status(lambda now: engine_of(now, "e0")["phase"] == "AwaitingTrainer")
        assert engine_of(status, "e0")["gate"] == "closed"
        assert engine_of(status, "e1")["gate"] == "open"

    async def waits_for_the_stopped(self) -> None:
        """See that the next operator waits for the proxy that stands still, and let that go on."""
        assert self.stopped is not None
        name = PROXIES[self.place.proxy_pids.index(self.stopped)]
        waiting = f"waiting for {name} (unreachable, never heard)"
        await self.status(lambda now: engine_of(now, "e0")["problem"] == waiting)
        assert not [entry for entry in self.engine.journal.entries if entry.path in CALLS]
        os.kill(self.stopped, signal.SIGCONT)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a state of this process."""
        try:
            async with asyncio.timeout(WITHIN):
                while not condition():  # noqa: ASYNC110 - any state, not one event
                    await asyncio.sleep(0.005)
        except TimeoutError:
            answers = [traffic.answers for traffic in self.loads]
            raise AssertionError(f"did not come: {answers}\n{self.fleet.log()}") from None

    def _arm(self) -> None:
        match self.case.point:
            case Point.RECEIVED:
                self.engine.faults.arm(self.case.route, Fault(hang=True, times=1))
            case Point.CARRIED_OUT:
                lost = Fault(hang=True, times=1, when=When.AFTER)
                self.engine.faults.arm(self.case.route, lost)
        self.called = len(self.engine.journal.of(self.case.route))

    def _is_called(self) -> bool:
        """Whether the engine is where the operator is to die."""
        if len(self.engine.journal.of(self.case.route)) == self.called:
            return False
        return self.case.point is not Point.CARRIED_OUT or self._has_effect()

    def _has_effect(self) -> bool:
        core: Any = self.engine.core
        sglang = self.case.runtime is Runtime.SGLANG
        released = bool(core.released if sglang else core.asleep)
        paused = core.gate.paused if sglang else core.paused()
        match self.case.operation.call:
            case CallKind.PAUSE:
                return bool(paused)
            case CallKind.RESUME:
                return not paused
            case CallKind.SLEEP:
                return released
            case CallKind.WAKE:
                return not released
            case CallKind.REFIT:
                return refits.has_loaded(self.engine, self.case.operation.version)
            case CallKind.TRANSFER | CallKind.LABEL:
                raise AssertionError("no operator is killed in the middle of it")

    async def goes_on(self) -> None:
        """Wait until the next operator has brought the fleet to where it was to be."""
        if self.case.lost:
            status = await self.status(lambda now: UNKNOWN in engine_of(now, "e0")["problem"])
            assert engine_of(status, "e0")["gate"] == "closed"
            await self.served(1)
            assert self.engine.died is None
            assert self._calls(boot=1) == self.case.calls
            await self.engine.restart()
        if self.case.point is Point.AWAITING:
            await self._awaits_trainer()
            await refits.transfer(self.engine, self.fleet.client)
            await self._awaits_trainer()
            assert self._calls(boot=1) == 0
            await refits.publish(self.case, self._api)
        await self.reached()
        await self.served(*((0, 1) if self.case.operation.wanted == "active" else (1,)))
        if self.case.refits:
            await self._shows_version()

    async def _shows_version(self) -> None:
        """See that both engines tell the version, and that clients of both proxies read it."""
        version, client = self.case.operation.version, self.fleet.client
        path, body = self._request
        for engine in self.engines:
            assert await refits.shown(engine, client) == version
            for url in self.place.urls:
                read = await refits.stamp(url, engine, client, path=path, body=body)
                assert read == version

    def _calls(self, *, boot: int) -> int:
        """How often the engine has received the call of the operation in a boot."""
        entries = self.engine.journal.of(self.case.route)
        return sum(entry.boot == boot for entry in entries) - self.called * (boot == 1)

    def judge(self) -> None:
        """What has reached the engines, and what the clients have read."""
        case = self.case
        assert [engine.died for engine in self.engines] == [None, None]
        for traffic in self.loads:
            assert traffic.undocumented == {}
            assert traffic.broken == []
        assert [trespassers(engine) for engine in self.engines] == [[], []]
        assert not [entry for entry in self.engines[1].journal.entries if entry.path in CALLS]
        if case.lost:
            again = case.operation.wanted == "asleep"
            assert self._calls(boot=2) == int(again)
        else:
            assert self._calls(boot=1) == case.calls
        if case.refits:
            refits.judge(case, self.engines)


@contextlib.asynccontextmanager
async def running(case: Case, place: Stage) -> AsyncIterator[Run]:
    """Two engines, and nobody who knows of them yet."""
    takes = SPEED * _seconds(case)
    timings = Timings(release_s=takes, resume_s=takes, refit_s=takes)
    configs = [
        EngineConfig(
            runtime=case.runtime,
            model="m",
            weight_version=version,
            weights_cpu_backup=True,
            speed=SPEED,
            timings=timings,
        )
        for version in refits.launched_with(case)
    ]
    api_socket = aiohttp.UnixConnector(str(place.layout.api))
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(config)) for config in configs]
        client = await stack.enter_async_context(aiohttp.ClientSession())
        api = await stack.enter_async_context(aiohttp.ClientSession(connector=api_socket))
        process: Any = None
        fleet = UpFleet(
            place.layout.directory,
            process=process,
            output=place.layout.log("operator"),
            client=client,
            api=api,
        )
        yield Run(case, place, engines=engines, fleet=fleet, api=api, stack=stack)


def _seconds(case: Case) -> float:
    """How long a sleep, a wake or a load takes."""
    return LONG if case.point is Point.RUNNING else QUICK


async def play(case: Case, place: Stage, *, stopped: bool = False) -> None:
    async with running(case, place) as run:
        if stopped:
            run.stopped = place.proxy_pids[0]
        await run.operator_dies()
        if stopped:
            await run.waits_for_the_stopped()
        await run.goes_on()
        for traffic in run.loads:
            traffic.stop()
        async with asyncio.timeout(WITHIN):
            while await run.fleet.in_flight():  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.02)
    run.judge()


async def play_all(cases: list[Case], places: list[Stage], *, stopped: bool = False) -> None:
    """Play cases, some at a time, and say which have failed."""
    waiting = [*cases]
    failures: list[Exception] = []

    async def lane(place: Stage) -> None:
        while waiting:
            case = waiting.pop(0)
            try:
                await play(case, place, stopped=stopped)
            except Exception as failure:  # noqa: BLE001 - the others go on
                place.end_operators(failed=True)
                failure.add_note(f"in the case: {case}")
                failures.append(failure)

    await asyncio.gather(*(lane(place) for place in places))
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases", failures)


@pytest.mark.parametrize("point", Point, ids=[point.name.lower() for point in Point])
async def test_the_operator_is_killed(point: Point, places: list[Stage]) -> None:
    await play_all(cases_at(point), places)


async def test_the_operator_is_killed_while_a_proxy_stands_still(places: list[Stage]) -> None:
    """The next operator waits for it though it has never heard it: it may send by its old table."""
    await play_all(cases_at(Point.PUBLISHED), places, stopped=True)
