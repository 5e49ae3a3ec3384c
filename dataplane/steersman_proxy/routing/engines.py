"""One engine, as this process knows it: the table's row and what was seen since."""

from typing import TYPE_CHECKING

from steersman.engine import EngineRow, Trust
from steersman_proxy.load.breaker import Breaker
from steersman_proxy.load.inflight import EngineLoad

if TYPE_CHECKING:
    from steersman_proxy.routing.view import PoolView


class Engine:
    """An engine identity, (id, url), with the row of the table in force.

    The object is the same across tables, so holding it is holding the identity. ``version`` and
    ``trust`` are the row's, unless the engine's own answers said otherwise since the table came.
    """

    __slots__ = (
        "breaker",
        "healthy",
        "id",
        "index",
        "load",
        "pool",
        "row",
        "seen_version",
        "trust",
        "url",
        "version",
    )

    def __init__(self, row: EngineRow, *, load: EngineLoad, breaker: Breaker) -> None:
        self.breaker = breaker
        self.id = row.id
        self.url = row.url
        self.row = row
        self.load = load
        self.version: str | None = row.version
        self.trust: Trust = row.trust
        self.healthy = True
        """``False`` takes the engine out with the reason ``unhealthy``."""
        self.seen_version = False
        """Whether this process saw the engine itself report a version other than ``default``."""
        self.index = 0
        """Position in its pool: the bit of every mask, and SMG's index of a target."""
        self.pool: PoolView | None = None
        """``None`` once the engine has left the table."""

    def __repr__(self) -> str:
        return f"Engine({self.id!r}, {self.url!r}, version={self.version!r})"

    @property
    def overlaid(self) -> bool:
        """Whether the engine's own report stands in for the row."""
        return self.version != self.row.version or self.trust is not self.row.trust

    @property
    def breaker_open(self) -> bool:
        """Whether the breaker lets no request through."""
        return self.breaker.blocked

    def take_row(self, row: EngineRow, *, pool: "PoolView", index: int) -> None:
        """Stand at ``index`` of ``pool`` with a new row, which ends what was overlaid."""
        if self.row.boot_id != row.boot_id:
            # Another process at the same address: what was seen of the old one proves nothing.
            self.seen_version = False
            self.breaker.reset()
        self.row = row
        self.version = row.version
        self.trust = row.trust
        self.pool = pool
        self.index = index
