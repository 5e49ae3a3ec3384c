"""Version policies: which versions a request accepts.

The grammar is SMG's, case-sensitive and without spaces inside:

``any``
    every engine that is not unsynced, whatever its version;
``latest-only``
    engines that are not older than the pool's newest version;
``min-version:<v>``
    engines at version ``v`` or newer;
``max-staleness:<k>``
    engines at most ``k`` versions behind the newest; counts only where versions are numbers.

An engine without a version is accepted by ``any`` alone, and by ``latest-only`` and
``max-staleness`` while its pool has no version at all.
"""

from enum import Enum
from functools import lru_cache

import msgspec

from steersman.errors import InvalidVersionPolicy
from steersman.versions import MAX_VERSION_BYTES, Order, VersionOrder, numeric


class AnyVersion(msgspec.Struct, frozen=True, tag="any"):
    """``any``."""

    def __str__(self) -> str:
        return "any"


class LatestOnly(msgspec.Struct, frozen=True, tag="latest-only"):
    """``latest-only``."""

    def __str__(self) -> str:
        return "latest-only"


class MinVersion(msgspec.Struct, frozen=True, tag="min-version"):
    """``min-version:<v>``."""

    version: str

    def __str__(self) -> str:
        return f"min-version:{self.version}"


class MaxStaleness(msgspec.Struct, frozen=True, tag="max-staleness"):
    """``max-staleness:<k>``; ``steps`` is an unsigned 64-bit number."""

    steps: int

    def __str__(self) -> str:
        return f"max-staleness:{self.steps}"


VersionPolicy = AnyVersion | LatestOnly | MinVersion | MaxStaleness

GRAMMAR = "any | latest-only | min-version:<v> | max-staleness:<k>"


class Verdict(Enum):
    """What a policy says of one engine."""

    ELIGIBLE = "eligible"
    STALE = "stale"
    UNVERSIONED = "unversioned"


@lru_cache(maxsize=1024)
def parse_policy(text: str) -> VersionPolicy:
    """Read a policy; surrounding white space is allowed, as around any header value.

    :raises InvalidVersionPolicy: if the text is not in the grammar.
    """
    name, colon, argument = text.strip().partition(":")
    match name:
        case "any" if not colon:
            return AnyVersion()
        case "latest-only" if not colon:
            return LatestOnly()
        case "min-version" if (
            argument and len(argument) <= MAX_VERSION_BYTES and argument.isprintable()
        ):
            # Unlike a written version, the argument is only "not empty, no white space" (SMG).
            if argument.isascii() and not any(char.isspace() for char in argument):
                return MinVersion(argument)
        case "max-staleness":
            steps = numeric(argument) if argument else None
            if steps is not None:
                return MaxStaleness(steps)
    raise InvalidVersionPolicy(text)


def judge(
    policy: VersionPolicy, *, version: str | None, fleet_max: str | None, order: VersionOrder
) -> Verdict:
    """What ``policy`` says of an engine at ``version`` in a pool whose newest is ``fleet_max``.

    Control state, gate and trust are not looked at here.
    """
    match policy:
        case AnyVersion():
            return Verdict.ELIGIBLE
        case MinVersion(floor):
            if version is None:
                return Verdict.UNVERSIONED
            return _eligible_if(order.compare(version, floor) is not Order.OLDER)
        case LatestOnly():
            if fleet_max is None:
                return Verdict.ELIGIBLE
            if version is None:
                return Verdict.UNVERSIONED
            # Not "equal": an engine seen ahead of the table is not stale.
            return _eligible_if(_is_newest(version, fleet_max, order))
        case MaxStaleness(steps):
            if fleet_max is None:
                return Verdict.ELIGIBLE
            if version is None:
                return Verdict.UNVERSIONED
            behind = order.staleness(version, fleet_max)
            return _eligible_if(behind is not None and behind <= steps)


def _is_newest(version: str, fleet_max: str, order: VersionOrder) -> bool:
    if order.compare(version, fleet_max) is Order.SAME:
        return True
    return order.newest((version, fleet_max)) == version


def _eligible_if(condition: bool) -> Verdict:
    return Verdict.ELIGIBLE if condition else Verdict.STALE
