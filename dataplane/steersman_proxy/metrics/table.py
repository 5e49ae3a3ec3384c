"""How the reading of the fleet table is going: what ``/status`` and the metrics tell of it."""

from collections.abc import Sequence

import msgspec

from steersman.clock import Clock
from steersman_proxy.control.status import ControlStatus
from steersman_proxy.tablefile.watch import TableWatcher


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the table in force, and how it fares."""

    source: str
    """Where tables come from: a file name, or the addresses of operators."""
    digest: str | None = None
    """Of the table in force; ``None`` before the first."""
    age: float | None = None
    """Seconds since the table in force was read, or made by the operator."""
    failures: int = 0
    """Tables that could not be used, ever."""
    problems: tuple[str, ...] = ()
    """Why the newest table cannot be used; empty if it is in force."""


def status_of_file(watcher: TableWatcher, *, clock: Clock) -> TableStatus:
    """The status of a table that is read from a file; ``clock`` is the watcher's."""
    status = watcher.status
    return TableStatus(
        source=status.path,
        digest=None if watcher.table is None else watcher.table.digest(),
        age=None if status.loaded_at is None else clock.now() - status.loaded_at,
        failures=status.failures,
        problems=status.problems,
    )


def status_of_control(status: ControlStatus, *, addresses: Sequence[str]) -> TableStatus:
    """The status of a table that comes from an operator."""
    return TableStatus(
        source=", ".join(addresses),
        digest=status.digest or None,
        age=status.age,
        failures=status.nacks,
        problems=(status.last_problem,) if status.last_problem else (),
    )
