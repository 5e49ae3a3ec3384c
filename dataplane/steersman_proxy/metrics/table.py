"""How the reading of the fleet table is going: what ``/status`` and the metrics tell of it."""

import msgspec

from steersman.clock import Clock
from steersman.table import Table
from steersman_proxy.tablefile.watch import TableWatcher


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the table in force, and how it fares."""

    source: str
    """Where tables come from: a file name."""
    table: Table | None = None
    """The table in force; ``None`` before the first."""
    age: float | None = None
    """Seconds since the table in force was read."""
    failures: int = 0
    """Tables that could not be used, ever."""
    problems: tuple[str, ...] = ()
    """Why the newest table cannot be used; empty if it is in force."""


def status_of_file(watcher: TableWatcher, *, clock: Clock) -> TableStatus:
    """The status of a table that is read from a file; ``clock`` is the watcher's."""
    status = watcher.status
    return TableStatus(
        source=status.path,
        table=watcher.table,
        age=None if status.loaded_at is None else clock.now() - status.loaded_at,
        failures=status.failures,
        problems=status.problems,
    )
