"""The fleet table: everything that a proxy must know to choose an engine.

One table replaces the one before as a whole. Its epoch says which of two is newer.
"""

import hashlib

import msgspec

from steersman.engine import EngineRow
from steersman.settings import PoolSettings


class Epoch(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The age of a table: ``term`` goes up with each leader, ``seq`` with each of its tables."""

    term: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.term}.{self.seq}"


class PoolRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The columns that the engines of one pool share."""

    name: str
    models: tuple[str, ...] = ()
    """The names under which clients ask for the pool's model; the first is the listed one."""
    default: bool = False
    """Whether a request that names no model goes here."""
    fleet_max: str | None = None
    """The newest version of the pool, as the writer of the table computed it."""
    ordinals: dict[str, int] = {}
    """Explicit order of versions; empty where versions order themselves."""
    settings: PoolSettings | None = None
    """``None`` leaves the settings to the proxy's own configuration."""


class Table(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A whole fleet at one epoch."""

    epoch: Epoch
    pools: tuple[PoolRow, ...] = ()
    engines: tuple[EngineRow, ...] = ()

    def digest(self) -> str:
        """Eight bytes in hex that differ when the contents differ, whatever the epoch."""
        content = msgspec.msgpack.encode(
            [
                sorted(self.pools, key=lambda row: row.name),
                sorted(self.engines, key=lambda row: row.id),
            ],
            order="deterministic",
        )
        return hashlib.blake2b(content, digest_size=8).hexdigest()
