"""What happens to the core. Each event carries the time ``now`` of the operator's monotonic clock."""

import msgspec

from steersman.table import Epoch
from steersman_operator.fleet.facts import Durable, Observation, Outcome
from steersman_operator.fleet.spec import PoolSpec


class ProxyRef(msgspec.Struct, frozen=True, order=True):
    """One proxy process. A restarted one is another."""

    uid: str
    boot: str


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    now: float


class Elected(_Event, frozen=True, kw_only=True, tag=True):
    """This operator leads. ``durable`` is everything that a leader before it left behind."""

    term: int
    durable: tuple[Durable, ...] = ()


class Deposed(_Event, frozen=True, kw_only=True, tag=True):
    """This operator leads no more."""


class LeaseRenewed(_Event, frozen=True, kw_only=True, tag=True):
    """Until ``valid_until`` nobody else leads; on the operator's clock."""

    valid_until: float


class SpecChanged(_Event, frozen=True, kw_only=True, tag=True):
    """All pools, as they are wanted now.

    ``deliberate`` says that whoever removed rows meant it (their pods are gone as well).
    """

    pools: tuple[PoolSpec, ...]
    deliberate: bool = False


class ProxiesRequired(_Event, frozen=True, kw_only=True, tag=True):
    """The proxy processes that exist, by the platform's account. One that is left out has ended."""

    proxies: tuple[ProxyRef, ...]


class ProxyJoined(_Event, frozen=True, kw_only=True, tag=True):
    """A proxy said hello on the control socket."""

    proxy: ProxyRef


class ProxyHeard(_Event, frozen=True, kw_only=True, tag=True):
    """A proxy answered from its routing loop."""

    proxy: ProxyRef


class ProxyLost(_Event, frozen=True, kw_only=True, tag=True):
    """A proxy's connection is gone. That says nothing about whether it still serves."""

    proxy: ProxyRef


class Acked(_Event, frozen=True, kw_only=True, tag=True):
    """A proxy has applied the table of an epoch: it starts nothing by an older one any more."""

    proxy: ProxyRef
    epoch: Epoch


class Nacked(_Event, frozen=True, kw_only=True, tag=True):
    """A proxy could not apply a table; it stays on the one before."""

    proxy: ProxyRef
    epoch: Epoch
    detail: str = ""


class InFlight(_Event, frozen=True, kw_only=True, tag=True):
    """What a proxy has running on the engines that are watched, under the table of an epoch."""

    proxy: ProxyRef
    epoch: Epoch
    counts: dict[str, int]


class Observed(_Event, frozen=True, kw_only=True, tag=True):
    """An engine was looked at. ``asked`` is when that look began."""

    engine: str
    asked: float
    seen: Observation


class LoadSeen(_Event, frozen=True, kw_only=True, tag=True):
    """An engine was asked what it has running; ``busy`` is ``None`` if it could not say."""

    engine: str
    asked: float
    busy: int | None


class CallEnded(_Event, frozen=True, kw_only=True, tag=True):
    """A call to an engine ended. ``number`` is the command's."""

    engine: str
    number: int
    outcome: Outcome
    detail: str = ""


class Stored(_Event, frozen=True, kw_only=True, tag=True):
    """A durable record is written; ``number`` is the command's."""

    engine: str
    number: int
    ok: bool = True
    detail: str = ""


class Suspected(_Event, frozen=True, kw_only=True, tag=True):
    """An engine has told somebody's client another version than the table has of it."""

    engine: str
    version: str | None


class Published(_Event, frozen=True, kw_only=True, tag=True):
    """A trainer says that its transfer of a version to the engines of a pool is done."""

    pool: str
    version: str


class Tick(_Event, frozen=True, kw_only=True, tag=True):
    """Time has passed."""


Event = (
    Elected
    | Deposed
    | LeaseRenewed
    | SpecChanged
    | ProxiesRequired
    | ProxyJoined
    | ProxyHeard
    | ProxyLost
    | Acked
    | Nacked
    | InFlight
    | Observed
    | LoadSeen
    | CallEnded
    | Stored
    | Published
    | Suspected
    | Tick
)
