"""When a closure begins and ends, and when a version counts: what the judge goes by."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from steersman_sim.demo.engine_calls import EngineCalls
from steersman_sim.demo.proxy_status import FleetStatus, ProxyWatch
from steersman_sim.demo.records import NEW, OLD, Activity, Weights
from steersman_sim.demo.scenario import Action, Step
from steersman_sim.demo.steering import Steering
from tests.demo.made_up import BEGAN, URLS, records
from tests.demo.test_proxy_status import fleet_status, page

URL = URLS["engine-1"]


class Proxies(ProxyWatch):
    """Two proxies whose tables a test changes."""

    def __init__(self) -> None:
        super().__init__(["http://one", "http://two"], session=None)
        self.pages = [page(), page()]

    def move(self, *numbers: int, **changes) -> None:
        for number in numbers:
            self.pages[number] = page(**changes)

    async def ask(self) -> FleetStatus:
        self.last = fleet_status(*self.pages)
        return self.last


class Trainer(EngineCalls):
    def __init__(self) -> None:
        super().__init__("engine-1", url=URL, session=None)
        self.loaded: list[str] = []

    async def load(self, version: str) -> None:
        self.loaded.append(version)


class Stage:
    """Carries the commands out on the proxies, and notes when they began and had returned."""

    def __init__(self, proxies: Proxies, trainer: Trainer) -> None:
        self.said: list[str] = []
        self.times: list[tuple[str, float, float]] = []
        self.may_open = asyncio.Event()
        self.may_open.set()
        self._proxies = proxies
        self._trainer = trainer

    def say(self, step: str) -> None:
        self.said.append(step)

    async def run(self, *words: str) -> None:
        began = time.monotonic()
        verb, pool, _, engine = words
        assert (pool, engine) == ("rollout", "engine-1")
        version = (self._trainer.loaded or [OLD])[-1]
        if verb in ("pause", "sleep"):
            self._proxies.move(0, 1, is_open=False, version=version)
        else:
            self._proxies.move(0, is_open=True, version=version)
        await asyncio.sleep(0)
        self.times.append((verb, began, time.monotonic()))
        if verb in ("resume", "wake"):
            self._opening = asyncio.create_task(self._second(version))

    async def _second(self, version: str) -> None:
        await self.may_open.wait()
        self._proxies.move(1, is_open=True, version=version)


class Play:
    def __init__(self) -> None:
        self.proxies, self.trainer = Proxies(), Trainer()
        self.stage = Stage(self.proxies, self.trainer)
        self.records = records()
        self.records.weights.append(Weights(engine="engine-1", version=OLD, since=BEGAN))
        self.steering = Steering(
            records=self.records,
            proxies=self.proxies,
            engines={"engine-1": self.trainer},
            narrator=self.stage,
        )

    async def run(self, action: Action) -> None:
        await self.steering.run([Step(action=action, engine=0, at=0.0)])

    @property
    def activities(self) -> list[Activity]:
        return [phase.activity for phase in self.records.phases]


@pytest.fixture
async def play():
    @asynccontextmanager
    async def watched():
        play = Play()
        watching = asyncio.create_task(play.proxies.watch(play.records))
        try:
            yield play
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async with watched() as play:
        yield play


@pytest.mark.parametrize(
    ("action", "verbs", "activity"),
    [
        (Action.REFIT, ["pause", "resume"], Activity.REFIT),
        (Action.PAUSE, ["pause", "resume"], Activity.PAUSED),
        (Action.SLEEP, ["sleep", "wake"], Activity.ASLEEP),
    ],
)
async def test_a_closure_is_from_the_return_of_a_command_to_the_start_of_the_next(
    play, action, verbs, activity
):
    await play.run(action)
    (closing, _, closed), (opening, opens, _) = play.stage.times
    assert [closing, opening] == verbs
    (closure,) = play.records.closures
    assert closed <= closure.since <= closure.until <= opens < closure.opened
    assert play.activities == [Activity.DRAINING, activity]
    assert all(phase.until is not None for phase in play.records.phases)


async def test_only_a_refit_loads_weights(play):
    await play.run(Action.PAUSE)
    await play.run(Action.SLEEP)
    assert play.trainer.loaded == []
    assert [one.version for one in play.records.weights] == [OLD]
    assert [one.version for one in play.records.maxima] == [OLD]
    await play.run(Action.REFIT)
    assert play.trainer.loaded == [NEW]
    assert [one.version for one in play.records.weights] == [OLD, NEW]
    assert play.stage.said[-1] == "all engines serve 8"


async def test_a_version_is_the_newest_once_every_proxy_has_opened_the_engine_with_it(play):
    play.stage.may_open.clear()
    running = asyncio.create_task(play.run(Action.REFIT))
    await play.proxies.until(lambda status: status.version(URL) == NEW, what="open")
    await play.proxies.until(lambda _: True, what="be asked once more")
    assert play.records.weights[-1].version == NEW, "the engine serves"
    assert [one.version for one in play.records.maxima] == [OLD]
    before = time.monotonic()
    play.stage.may_open.set()
    await running
    assert play.records.maxima[-1].version == NEW
    assert play.records.maxima[-1].since >= before
