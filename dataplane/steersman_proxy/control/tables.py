"""The table in force, and whether another one may replace it."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from steersman.clock import Clock
from steersman.control import Snapshot
from steersman.table import Epoch, Table
from steersman_proxy.routing.fleet import Fleet

_log = logging.getLogger("steersman.control")


class Refusal(NamedTuple):
    """Why a table cannot be used: a code for machines, a sentence for people."""

    code: str
    detail: str


class Tables:
    """Applies tables to the fleet. Never written down: after a restart an old table would send
    requests to engines that were closed meanwhile.
    """

    def __init__(
        self, fleet: Fleet, *, clock: Clock, on_applied: Callable[[Table], None] | None
    ) -> None:
        self.digest = ""
        """Of the table in force, as the operator gave it."""
        self.made_at: float | None = None
        """When the table in force was made, on the clock."""
        self.applied = 0
        self.apply_seconds = 0.0
        self.refused = 0
        self.problem = ""
        """Why the newest table cannot be used; empty if it is in force."""
        self._fleet = fleet
        self._clock = clock
        self._on_applied = on_applied

    @property
    def epoch(self) -> Epoch | None:
        """Of the table in force."""
        view = self._fleet.view
        return None if view is None else view.epoch

    def in_force(self, snapshot: Snapshot) -> bool:
        """Whether this very table is in force."""
        return (snapshot.table.epoch, snapshot.digest) == (self.epoch, self.digest)

    def apply(self, snapshot: Snapshot) -> Refusal | None:
        """Put a table in force, as a whole and within this turn of the loop."""
        table = snapshot.table
        if not table.engines and any(self._fleet.engines()) and not snapshot.removed_ok:
            return Refusal("empty", "it has no engines, and that is not said to be meant")
        began = self._clock.now()
        try:
            self._fleet.apply(table)
        except Exception as error:  # noqa: BLE001 - the operator is told
            _log.exception("a fault at putting table %s in force", table.epoch)
            return Refusal("fault", repr(error)[:500])
        ended = self._clock.now()
        self.digest = snapshot.digest
        self.made_at = ended - snapshot.age
        self.applied += 1
        self.apply_seconds += ended - began
        self.problem = ""
        if self._on_applied is not None:
            self._on_applied(table)
        return None

    def note(self, epoch: Epoch, refusal: Refusal) -> None:
        """A table was refused."""
        self.refused += 1
        self.problem = f"table {epoch}: {refusal.detail}"
        _log.error("the last good table stays in force: %s", self.problem)
