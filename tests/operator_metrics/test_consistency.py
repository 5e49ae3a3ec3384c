"""Whatever happens to the core, the counts agree with its state and with each other."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, rule

from steersman.engine import Control
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.fleet.commands import Command
from steersman_operator.fleet.events import Deposed, Event, SpecChanged
from steersman_operator.fleet.facts import Outcome
from steersman_operator.fleet.spec import OnTimeout, PoolSpec
from tests.fleet.support import Bench, Truth, engine_spec
from tests.fleet.test_machine import FleetMachine
from tests.operator_metrics.support import BenchClock, Counted, attach, balanced


class CountedMachine(FleetMachine):
    """The core's own machine, with every step of every operator counted."""

    def _follow(self, bench: Bench) -> None:
        super()._follow(bench)
        self.metrics = FleetMetrics(clock=BenchClock(lambda: bench.now))
        self.metrics.watch(lambda: bench.state)
        attach(self.metrics, bench.state)
        do = bench.do

        def counted(event: Event) -> list[Command]:
            before = bench.state
            commands = do(event)
            self.metrics.stepped(before, bench.state, event, commands)
            return commands

        bench.do = counted  # type: ignore[method-assign]

    @rule()
    def this_operator_stops_to_lead_and_begins_again(self) -> None:
        bench = self.bench
        bench.do(Deposed(now=bench.now))
        bench.elect(bench.state.term + 1, tuple(self.written.values()))

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "metrics"):
            balanced(self.metrics, self.bench.state)

    def teardown(self) -> None:
        super().teardown()
        self.the_counts_agree()


CountedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTheCounts = CountedMachine.TestCase


class Unstopped(Counted):
    """Also answers for engines that are gone."""

    def _stopped(self, name: str) -> bool:
        return False


class Churn:
    """Two pools whose engines come, go, move and restart, under an operator that is re-elected."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = Unstopped(
            "abcdef",
            proxies="xyz",
            drain_timeout=4.0,
            on_timeout=self.chance.choice(list(OnTimeout)),
        )
        self.names = "abcdefgh"
        for name in self.names:
            shows = self.chance.random() < 0.7
            self.bench.truths[name] = Truth(shows_paused=shows, shows_released=shows)
        self.urls = {name: engine_spec(name) for name in self.names}
        self.generation = 1

    def spec(self) -> None:
        """Another wish for all of it."""
        chance, controls = self.chance, list(Control)
        self.generation += 1
        pools: dict[str, list[str]] = {"one": [], "two": []}
        for name in self.names:
            if chance.random() < 0.8:
                pools["one" if chance.random() < 0.7 else "two"].append(name)
        kept = chance.sample(list(pools), chance.choice((1, 2, 2, 2)))
        specs = tuple(
            PoolSpec(
                name=pool,
                models=(pool,),
                engines=tuple(self.urls[name] for name in pools[pool]),
                state=chance.choice(controls),
                overrides={
                    name: chance.choice(controls) for name in pools[pool] if chance.random() < 0.3
                },
                generation=self.generation,
                drain_timeout=4.0,
            )
            for pool in kept
        )
        bench = self.bench
        bench.do(SpecChanged(now=bench.now, pools=specs, deliberate=chance.random() < 0.5))

    def move(self) -> None:
        name = self.chance.choice(self.names)
        url = f"http://{name}-{self.generation}:30000"
        self.urls[name] = msgspec.structs.replace(self.urls[name], url=url)

    def restart(self) -> None:
        self.bench.truths[self.chance.choice(self.names)].restart()

    def silence(self) -> None:
        whom: Any = ("x", "y", "store", "calls", "loads", *self.names)
        self.bench.quiet = {one for one in whom if self.chance.random() < 0.15}

    def fail(self) -> None:
        """Answers that are no good."""
        if self.bench.stores:
            self.bench.stored(ok=False)
        if self.bench.calls:
            self.bench.end_call(self.chance.choice(list(Outcome)))

    def election(self) -> None:
        bench = self.bench
        if self.chance.random() < 0.5:
            bench.do(Deposed(now=bench.now))
            if self.chance.random() < 0.5:
                self.spec()
        bench.elect(bench.state.term + 1, bench.records())

    def go(self, steps: int) -> None:
        rare = [self.move, self.restart, self.silence, self.fail, self.election]
        usual = [*[self.turns] * 8, self.spec, self.spec]
        for _ in range(steps):
            self.chance.choice(usual + rare)()
            balanced(self.bench.metrics, self.bench.state)

    def turns(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            self.bench.turn()


@pytest.mark.parametrize("seed", range(12))
def test_engines_and_pools_that_come_and_go(seed: int) -> None:
    Churn(seed).go(60)
