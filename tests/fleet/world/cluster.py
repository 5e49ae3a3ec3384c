"""What outlives every process: the store of records, the lease, the spec, the list of proxies."""

from typing import TYPE_CHECKING

from steersman_operator.fleet.events import ProxyRef
from steersman_operator.fleet.facts import Durable
from steersman_operator.fleet.spec import PoolSpec

if TYPE_CHECKING:
    from tests.fleet.world.manager import Manager

LEASE = 5.0


class Lease:
    """Held by one operator process at a time, each time under a new term."""

    def __init__(self) -> None:
        self.holder: Manager | None = None
        self.term = 0
        self.expires = 0.0

    def take(self, manager: "Manager", *, now: float) -> bool:
        """Take the lease or keep it; whether it is held now."""
        if self.holder is not manager or now >= self.expires:
            if self.holder is not None and now < self.expires:
                return False
            self.holder = manager
            self.term += 1
        self.expires = now + LEASE
        return True


class Cluster:
    """The API server, so to say."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.records: dict[str, Durable] = {}
        self.pools: tuple[PoolSpec, ...] = ()
        self.deliberate = False
        self.proxies: tuple[ProxyRef, ...] = ()
        self.listing = 0
        """Goes up with each change of the list."""
        self.unreachable: set[str] = set()
        """Operator processes that are cut off from here."""

    def write(self, record: Durable) -> bool:
        """Write a record, unless a later leader has begun."""
        if record.term < self.lease.term:
            return False
        self.records[record.engine] = record
        return True

    def forget(self, engine: str, *, term: int) -> None:
        if term >= self.lease.term:
            self.records.pop(engine, None)
