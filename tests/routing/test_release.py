"""Opening does not stampede: thousands wait, engines open one after the other.

A small simulation on a fake clock: engines answer after a fixed time, and the hold queue is pumped
once after each event, as the event loop would.
"""

import heapq
from collections import Counter
from collections.abc import Callable

import pytest

from steersman.clock import FakeClock
from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import RouteRequest, Selected
from steersman_proxy.routing.room import WINDOW_FLOOR, release_window
from tests.routing.support import CLOSED, POOL, fleet, request, row, table, waits

GENERATION = 0.5
BODY = 1000


class Simulation:
    """Engines that are all closed, and requests that wait for them."""

    def __init__(
        self,
        engines: int,
        *,
        limit: int = 0,
        policy: RoutingPolicy = RoutingPolicy.POWER_OF_TWO,
        sticky_pause: bool = False,
    ) -> None:
        self.clock = FakeClock(0.0)
        self.names = [f"e{n}" for n in range(engines)]
        self.opened: set[str] = set()
        self.fleet = fleet(
            *(row(name, gate=CLOSED) for name in self.names),
            clock=self.clock,
            settings=PoolSettings(
                policy=policy,
                max_in_flight_per_engine=limit,
                sticky_pause=sticky_pause,
                hold=HoldSettings(max_bytes=10_000 * BODY),
            ),
        )
        self.hold = HoldQueue(self.fleet, clock=self.clock)
        self.hold.on_wake = self._wake
        self.awake = False
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.served: list[tuple[int, str, float]] = []
        self.received: Counter[str] = Counter()
        self.most_in_flight = 0
        self._count = 0

    def _wake(self) -> None:
        self.awake = True

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self.events, (when, self._count, event))

    def open(self, *names: str) -> None:
        self.opened.update(names)
        self.fleet.apply(
            table(
                [
                    row(name, **({} if name in self.opened else {"gate": CLOSED}))
                    for name in self.names
                ],
                seq=len(self.opened) + 2,
            )
        )

    def arrive(self, number: int, asked: RouteRequest) -> None:
        def released(selected: Selected) -> None:
            self.served.append((number, selected.engine.id, self.clock.now()))
            self.received[selected.engine.id] += 1
            self.most_in_flight = max(self.most_in_flight, selected.engine.load.requests)
            self.at(self.clock.now() + GENERATION, selected.guard.release)

        def failed(error: Exception) -> None:
            raise AssertionError(error)

        self.hold.enter(asked, waits(self.fleet, asked).lane, on_release=released, on_fail=failed)

    def fill(self, count: int, asked: Callable[[int], RouteRequest] | None = None) -> None:
        for number in range(count):
            self.arrive(number, asked(number) if asked else request(body_bytes=BODY))

    def settle(self) -> None:
        """Turns of the loop at one moment."""
        while self.awake:
            self.awake = self.hold.pump()

    def run(self, until: float = 1e9) -> None:
        self.settle()
        while self.events and self.events[0][0] <= until:
            when, _, event = heapq.heappop(self.events)
            self.clock.advance(when - self.clock.now())
            event()
            self.settle()

    @property
    def unevenness(self) -> float:
        """The most that one engine received over the mean of all."""
        return max(self.received.values()) * len(self.names) / sum(self.received.values())


def opening_one_after_the_other(simulation: Simulation, *, every: float = 0.2) -> None:
    for place, name in enumerate(simulation.names):
        simulation.at(place * every, lambda name=name: simulation.open(name))  # type: ignore[misc]


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.ROUND_ROBIN, RoutingPolicy.POWER_OF_TWO, RoutingPolicy.LOAD_ONLY]
)
def test_2000_held_over_8_engines_with_a_limit(policy: RoutingPolicy) -> None:
    simulation = Simulation(8, limit=32, policy=policy)
    simulation.fill(2000)
    assert simulation.hold.bytes(POOL) == 2000 * BODY
    opening_one_after_the_other(simulation)
    simulation.run()
    assert [number for number, _, _ in simulation.served] == list(range(2000))
    assert simulation.unevenness <= 1.5
    assert simulation.most_in_flight == 32
    assert simulation.hold.bytes(POOL) == 0
    # 8 engines x 32 requests in 0.5 s: the queue costs nothing on top of that.
    assert simulation.clock.now() < 2000 / (8 * 32) * GENERATION + 8 * 0.2 + 2 * GENERATION


def test_without_a_limit_the_first_to_open_gets_its_share_and_not_everything() -> None:
    simulation = Simulation(8)
    simulation.fill(2000)
    opening_one_after_the_other(simulation)
    simulation.run(until=0.199)
    assert simulation.received == {"e0": 250}
    simulation.run(until=0.399)
    assert simulation.received == {"e0": 250, "e1": 250}
    simulation.run()
    assert [number for number, _, _ in simulation.served] == list(range(2000))
    assert sum(simulation.received.values()) == 2000
    # Who opened first has answered and asks for more before others open: that is not a stampede,
    # as long as nobody has more at one time than its share and half of what it answered.
    assert simulation.most_in_flight <= 1.5 * 250


def test_without_a_limit_engines_that_open_together_get_everything_at_once_evenly() -> None:
    simulation = Simulation(8)
    simulation.fill(2000)
    simulation.open(*simulation.names)
    simulation.run(until=0)
    assert sum(simulation.received.values()) == 2000
    assert simulation.unevenness < 1.05


def test_a_few_requests_are_not_delayed() -> None:
    simulation = Simulation(8)
    simulation.fill(WINDOW_FLOOR)
    simulation.open("e3")
    simulation.run(until=0)
    assert simulation.received == {"e3": WINDOW_FLOOR}


def test_engines_that_stay_closed_do_not_leave_the_open_one_idle_for_long() -> None:
    simulation = Simulation(8)
    simulation.fill(4000)
    simulation.open("e0")
    reached = []
    for generation in range(9):
        simulation.run(until=generation * GENERATION)
        reached.append(simulation.received["e0"])
    rounds = [after - before for before, after in zip([0, *reached], reached, strict=False)]
    assert rounds[0] == 500
    assert reached[-1] == 4000
    # Each generation takes more than the one before, until nobody waits.
    assert rounds[1] > rounds[0]
    assert rounds[2] > rounds[1]


def test_what_an_engine_answered_for_one_queue_does_not_widen_its_window_for_the_next() -> None:
    simulation = Simulation(2)
    for _ in range(2):
        simulation.received.clear()
        simulation.fill(1000)
        simulation.open("e0")
        simulation.run(until=simulation.clock.now())
        assert simulation.received == {"e0": 500}
        simulation.run()
        assert simulation.received == {"e0": 1000}
        simulation.opened.clear()
        simulation.fleet.apply(table([row(name, gate=CLOSED) for name in simulation.names]))


def test_requests_that_were_in_flight_before_count_into_the_share() -> None:
    simulation = Simulation(2)
    simulation.open("e0", "e1")
    for _ in range(300):
        simulation.fleet.select(request(target="e1"))
    simulation.opened.clear()
    simulation.fleet.apply(table([row(name, gate=CLOSED) for name in simulation.names]))
    simulation.fill(700)
    simulation.open("e1")
    simulation.run(until=0)
    assert simulation.received == {"e1": 200}


def test_the_window_does_not_break_pins() -> None:
    simulation = Simulation(4)
    simulation.fill(1000, lambda number: request(affinity="one busy key"))
    simulation.open(*simulation.names)
    simulation.run(until=0)
    assert list(simulation.received.values()) == [1000]


def test_displaced_keys_do_not_stampede() -> None:
    simulation = Simulation(4)
    simulation.fill(1000, lambda number: request(affinity=f"key {number}"))
    simulation.open("e2")
    simulation.run(until=0)
    assert 250 <= simulation.received["e2"] < 300
    waiting = set(range(1000)) - {number for number, _, _ in simulation.served}
    simulation.open(*simulation.names)
    simulation.run(until=0)
    pool = simulation.fleet.pool(POOL)
    assert pool is not None
    ranking = pool.rendezvous(row("x").role)
    for number, engine, _ in simulation.served:
        owner = ranking.first(f"key {number}")
        assert owner is not None
        assert engine == (owner.id if number in waiting else "e2")
    assert simulation.hold.depth(POOL) == 0


def test_the_window_is_the_share_of_open_and_opening_engines() -> None:
    made = fleet(
        row("a"), row("b", gate=CLOSED), row("c", released=("weights",)), row("d", paused=True)
    )
    pool = made.pool(POOL)
    assert pool is not None
    eligible = pool.eligible(row("x").role, pool.settings.version_policy)
    assert release_window(eligible, waiting=1000, in_flight=201) == 401
    assert release_window(eligible, waiting=10, in_flight=0) == WINDOW_FLOOR
    assert release_window(Eligible([]), waiting=1000, in_flight=0) == 1000
