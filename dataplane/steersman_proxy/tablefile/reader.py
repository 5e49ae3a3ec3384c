"""From one version of a table file to the next :class:`~steersman.table.Table`.

A file says how things are; a table also says what changed. The reader adds that: the epoch, a
counter for each gate, and each pool's newest version where the file does not name it.
"""

from typing import NamedTuple

from steersman.documents.urls import authority
from steersman.engine import Control, EngineRow, Gate, Trust
from steersman.table import Epoch, PoolRow, Table
from steersman.versions import VersionOrder
from steersman_proxy.tablefile.newest import Counted, counted_after, newest
from steersman_proxy.tablefile.schema import ASLEEP_TAGS, EngineEntry, PoolEntry, TableFile


class TableReader:
    """Remembers what it read before. A file that is never given to it leaves no trace in it."""

    def __init__(self) -> None:
        self._table: Table | None = None
        self._counted: Counted | None = None

    @property
    def table(self) -> Table | None:
        """The table of the last file; ``None`` before the first."""
        return self._table

    def read(self, file: TableFile) -> Table:
        """The table that ``file`` makes now; the same one again if nothing in it changed.

        The term is 0, as there is no leader; the first table has the sequence number 1.
        """
        return self.commit(self.prepare(file))

    def prepare(self, file: TableFile) -> "Step":
        """The same without taking the step, so that a thread can do the work."""
        before = self._table
        gates = {(row.id, row.url): row.gate for row in before.engines} if before else {}
        engines = tuple(
            _engine_row(entry, pool=pool.name, gates=gates)
            for pool in file.pools
            for entry in pool.engines
        )
        counted = counted_after(self._counted, engines)
        found = newest(counted, {pool.name: VersionOrder(pool.ordinals) for pool in file.pools})
        pools = tuple(_pool_row(pool, found=found[pool.name]) for pool in file.pools)
        if before is not None and (before.pools, before.engines) == (pools, engines):
            return Step(before, counted)
        seq = before.epoch.seq + 1 if before else 1
        return Step(Table(epoch=Epoch(0, seq), pools=pools, engines=engines), counted)

    def commit(self, step: "Step") -> Table:
        """Take a step that was prepared since the last one."""
        self._table, self._counted = step.table, step.counted
        return step.table


class Step(NamedTuple):
    """A table, and what its reader must remember with it."""

    table: Table
    counted: Counted


def _pool_row(pool: PoolEntry, *, found: str | None) -> PoolRow:
    """``found`` is the newest version as the reader sees it; the file's own word wins."""
    return PoolRow(
        name=pool.name,
        models=pool.model_names,
        default=pool.default,
        fleet_max=found if pool.fleet_max is None else pool.fleet_max,
        ordinals=pool.ordinals,
    )


def _engine_row(entry: EngineEntry, *, pool: str, gates: dict[tuple[str, str], Gate]) -> EngineRow:
    name = entry.id or authority(entry.url)
    trust = entry.trust
    if trust is None:
        trust = Trust.VERIFIED if entry.weight_version is not None else Trust.UNKNOWN
    return EngineRow(
        id=name,
        url=entry.url,
        pool=pool,
        role=entry.role,
        runtime=entry.runtime,
        zone=entry.zone,
        gate=_gate(gates.get((name, entry.url)), is_open=entry.gate == "open"),
        paused=bool(entry.paused) or entry.control is Control.PAUSED,
        released=_released(entry),
        version=entry.weight_version,
        trust=trust,
        failed=entry.failed,
        boot_id=entry.boot_id,
        cache_generation=entry.cache_generation,
    )


def _gate(before: Gate | None, *, is_open: bool) -> Gate:
    if before is None:
        return Gate(open=is_open, count=0)
    return before if before.open is is_open else Gate(open=is_open, count=before.count + 1)


def _released(entry: EngineEntry) -> tuple[str, ...]:
    if entry.released is not None:
        return tuple(dict.fromkeys(entry.released))
    return ASLEEP_TAGS if entry.control is Control.ASLEEP else ()
