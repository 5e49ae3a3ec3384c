"""Which versions count for a pool's fleet max, where the table file leaves that to the reader.

An engine counts with the version that it was last seen *serving and verified* at, not with the one
that its row has now: while a refit writes version 8 behind a closed gate, the newest version that a
request can ask for is still 7. It goes on counting through pauses and sleeps, and stops when it
leaves the file, fails, or its weights become uncertain. So the max goes down only when the engines
that had it are gone for good.
"""

from collections.abc import Iterable, Mapping

from steersman.engine import Control, EngineRow, Trust
from steersman.versions import VersionOrder

EngineKey = tuple[str, str, str]
"""Pool, id and URL: an engine that moves is a new one."""

Counted = Mapping[EngineKey, str]
"""The version that each engine counts with; engines without one are not in it."""


def counted_after(before: Counted | None, rows: Iterable[EngineRow]) -> dict[EngineKey, str]:
    """What counts once ``rows`` are in force.

    ``before`` is ``None`` at the first read: nobody has seen these engines serve, and without a
    better knowledge every verified row counts.
    """
    after: dict[EngineKey, str] = {}
    for row in rows:
        if row.failed or row.trust is Trust.UNCERTAIN:
            continue
        key = (row.pool, row.id, row.url)
        serving = row.gate.open and row.control is Control.ACTIVE
        if row.trust is Trust.VERIFIED and (serving or before is None):
            if row.version is not None:
                after[key] = row.version
        elif before is not None and key in before:
            after[key] = before[key]
    return after


def newest(counted: Counted, orders: Mapping[str, VersionOrder]) -> dict[str, str | None]:
    """The fleet max of each pool in ``orders``; ``None`` where no version counts."""
    versions: dict[str, list[str]] = {pool: [] for pool in orders}
    for (pool, _, _), version in counted.items():
        versions[pool].append(version)
    return {pool: order.newest(versions[pool]) for pool, order in orders.items()}
