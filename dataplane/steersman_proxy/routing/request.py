"""What is asked of the routing, and what it answers."""

import msgspec

from steersman.engine import Role
from steersman.policy import VersionPolicy
from steersman.table import Epoch
from steersman_proxy.load.inflight import Guard
from steersman_proxy.routing.engines import Engine


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as far as routing looks at it."""

    pool: str
    policy: VersionPolicy | None = None
    """The request's own version policy; ``None`` takes the pool's."""
    affinity: str | None = None
    """The routing key. It pins the request to one engine under every policy."""
    target: str | None = None
    """The only engine that may serve: an id, a URL, or an index into the pool's list."""
    role: Role = Role.PLAIN
    body_bytes: int = 0
    """What the request occupies while it waits."""
    excluded: frozenset[str] = frozenset()
    """Ids of engines that were tried already."""


class LaneKey(msgspec.Struct, frozen=True):
    """Requests that wait for the same thing. Inside a lane, first come is first served."""

    pool: str
    role: Role
    policy: VersionPolicy
    engine: str | None = None
    """The one engine that the lane waits for, by id; ``None`` waits for any eligible one. (Of a
    target that is not known, its text.)"""
    excluded: frozenset[str] = frozenset()


class Selected(msgspec.Struct, frozen=True, eq=False):
    """An engine was chosen, and the request is counted on it already."""

    engine: Engine
    guard: Guard
    version: str | None
    """The engine's version at this moment; ``None`` if it has none, or with RL switched off."""
    epoch: Epoch
    """Of the table that the choice was made by."""


class Wait(msgspec.Struct, frozen=True):
    """Nobody can take the request now, but somebody could after an operation or an answer."""

    lane: LaneKey
