"""A fleet of two engines with its hold queue, for the tests of waiting."""

from steersman.clock import FakeClock
from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy
from steersman_proxy.routing.hold import HoldQueue
from tests.routing.support import CLOSED, Waiter, fleet, request, row, table


def settings(*, limit: int = 0, sticky: bool = False, **hold: float) -> PoolSettings:
    return PoolSettings(
        policy=RoutingPolicy.ROUND_ROBIN,
        max_in_flight_per_engine=limit,
        sticky_pause=sticky,
        hold=HoldSettings(**hold),  # type: ignore[arg-type]
    )


class World:
    """A fleet of two engines, both closed for a refit, and its hold queue."""

    def __init__(self, **changes: object) -> None:
        self.clock = FakeClock()
        self.settings = settings(**changes)  # type: ignore[arg-type]
        self.fleet = fleet(
            row("a", gate=CLOSED),
            row("b", gate=CLOSED),
            clock=self.clock,
            settings=self.settings,
        )
        self.hold = HoldQueue(self.fleet, clock=self.clock)
        self.wakes = 0
        self.hold.on_wake = self._wake
        self._seq = 1

    def _wake(self) -> None:
        self.wakes += 1

    def wait(self, policy: str | None = None, **changes: object) -> Waiter:
        return Waiter(self.hold, self.fleet, request(policy, **changes))

    def rows(
        self, *rows: object, fleet_max: str = "7", settings: PoolSettings | None = None
    ) -> None:
        self._seq += 1
        self.fleet.apply(
            table(rows, fleet_max=fleet_max, settings=settings, seq=self._seq)  # type: ignore[arg-type]
        )

    def open(self, *names: str) -> None:
        """Open the named engines of `a` and `b`, close the other."""
        self.rows(*(row(name, **({} if name in names else {"gate": CLOSED})) for name in "ab"))
