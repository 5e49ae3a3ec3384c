"""Fleets of a few engines for the routing tests, and an independent opinion of who may serve."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from steersman.clock import Clock, FakeClock
from steersman.engine import Control, EngineRow, Gate, Role, Trust
from steersman.errors import RequestError
from steersman.policy import (
    AnyVersion,
    LatestOnly,
    MaxStaleness,
    MinVersion,
    VersionPolicy,
    parse_policy,
)
from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue, Ticket
from steersman_proxy.routing.request import RouteRequest, Selected, Wait

POOL = "qwen"
CLOSED = Gate(open=False, count=1)
ROUND_ROBIN = PoolSettings(policy=RoutingPolicy.ROUND_ROBIN)


def row(name: str, version: str | None = "7", **changes: Any) -> EngineRow:
    """A verified, active, open engine called ``name``."""
    facts: dict[str, Any] = {
        "id": name,
        "url": f"http://{name}:8000",
        "pool": POOL,
        "version": version,
        "trust": Trust.VERIFIED,
    }
    return EngineRow(**(facts | changes))


def table(
    engines: Iterable[EngineRow],
    *,
    fleet_max: str | None = "7",
    settings: PoolSettings | None = None,
    pools: Iterable[PoolRow] | None = None,
    seq: int = 1,
    **pool: Any,
) -> Table:
    """One pool ``qwen``, or ``pools``."""
    only = PoolRow(name=POOL, models=("Qwen3",), fleet_max=fleet_max, settings=settings, **pool)
    return Table(
        epoch=Epoch(1, seq),
        pools=(only,) if pools is None else tuple(pools),
        engines=tuple(engines),
    )


def fleet(
    *engines: EngineRow,
    clock: Clock | None = None,
    settings: PoolSettings = ROUND_ROBIN,
    fleet_max: str | None = "7",
    rl_enabled: bool = True,
    pool_settings: Mapping[str, PoolSettings] | None = None,
    seed: int = 1,
    **pool: Any,
) -> Fleet:
    """A fleet with a table of these engines in force, if there are any."""
    made = Fleet(
        clock=clock or FakeClock(),
        defaults=settings,
        pool_settings=pool_settings or {},
        rl_enabled=rl_enabled,
        random=random.Random(seed),
    )
    if engines:
        made.apply(table(engines, fleet_max=fleet_max, **pool))
    return made


def request(policy: str | None = None, **changes: Any) -> RouteRequest:
    """A request to the pool, ``policy`` as a header would say it."""
    return RouteRequest(
        pool=changes.pop("pool", POOL),
        policy=None if policy is None else parse_policy(policy),
        **changes,
    )


def selected(made: Fleet, asked: RouteRequest) -> Selected:
    """The selection, where nothing else is expected."""
    result = made.select(asked)
    assert isinstance(result, Selected), result
    return result


def chosen(made: Fleet, asked: RouteRequest) -> str:
    """The id of the engine that takes the request; the request ends at once."""
    result = selected(made, asked)
    result.guard.release()
    return result.engine.id


def outcomes(made: Fleet, asked: RouteRequest, *, count: int = 40) -> set[str]:
    """The ids of all engines that serve ``count`` such requests."""
    return {chosen(made, asked) for _ in range(count)}


def refused(made: Fleet, asked: RouteRequest) -> RequestError:
    """The error, where one is expected."""
    result = made.select(asked)
    assert isinstance(result, RequestError), result
    return result


def waits(made: Fleet, asked: RouteRequest) -> Wait:
    """The lane, where waiting is expected."""
    result = made.select(asked)
    assert isinstance(result, Wait), result
    return result


class Waiter:
    """A request in the hold queue and what became of it."""

    def __init__(self, hold: HoldQueue, made: Fleet, asked: RouteRequest) -> None:
        self.request = asked
        self.selected: Selected | None = None
        self.error: RequestError | None = None
        self.calls = 0
        entered = hold.enter(
            asked, waits(made, asked).lane, on_release=self._released, on_fail=self._failed
        )
        self.ticket: Ticket | None = None
        if isinstance(entered, RequestError):
            self.error = entered
        else:
            self.ticket = entered

    def _released(self, result: Selected) -> None:
        self.calls += 1
        self.selected = result

    def _failed(self, error: RequestError) -> None:
        self.calls += 1
        self.error = error

    @property
    def waiting(self) -> bool:
        return self.ticket is not None and self.ticket.waiting

    @property
    def engine(self) -> str | None:
        return None if self.selected is None else self.selected.engine.id

    def cancel(self) -> None:
        assert self.ticket is not None
        self.ticket.cancel()


def pump_all(hold: HoldQueue) -> int:
    """Pump until there is nothing to do; how many turns it took."""
    turns = 1
    while hold.pump():
        turns += 1
        assert turns < 10_000, "the queue never settles"
    return turns


def hold_settings(**changes: Any) -> HoldSettings:
    return HoldSettings(**changes)


# --- A second opinion ------------------------------------------------------------------------------
# Written from the rules in words, engine by engine, sharing nothing with the code under test but the
# vocabulary. Versions are plain numbers here.


def may_serve(
    engine: EngineRow,
    policy: VersionPolicy,
    *,
    fleet_max: str | None,
    version: str | None,
    trust: Trust,
    healthy: bool,
    admit_unsynced: bool = False,
    role: Role = Role.PLAIN,
) -> bool:
    """Whether the engine may take a request of ``role`` under ``policy`` right now."""
    return (
        could_serve(
            engine,
            policy,
            fleet_max=fleet_max,
            trust=trust,
            healthy=healthy,
            admit_unsynced=admit_unsynced,
            role=role,
        )
        and engine.control is Control.ACTIVE
        and engine.gate.open
        and accepts(policy, version=version, fleet_max=fleet_max)
    )


def could_serve(
    engine: EngineRow,
    policy: VersionPolicy,
    *,
    fleet_max: str | None,
    trust: Trust,
    healthy: bool,
    admit_unsynced: bool = False,
    role: Role = Role.PLAIN,
) -> bool:
    """Whether nothing but a pause, a closed gate or an old version keeps the engine out."""
    if engine.role is not role or engine.failed or not healthy:
        return False
    if engine.control is Control.ASLEEP or trust is Trust.UNCERTAIN:
        return False
    if trust is Trust.UNSYNCED or (trust is Trust.UNKNOWN and fleet_max is not None):
        return admit_unsynced and isinstance(policy, AnyVersion)
    return True


def accepts(policy: VersionPolicy, *, version: str | None, fleet_max: str | None) -> bool:
    """Whether the policy accepts the version."""
    match policy:
        case AnyVersion():
            return True
        case LatestOnly():
            return fleet_max is None or (version is not None and int(version) >= int(fleet_max))
        case MinVersion(floor):
            return version is not None and int(version) >= int(floor)
        case MaxStaleness(steps):
            return fleet_max is None or (
                version is not None and int(fleet_max) - int(version) <= steps
            )
