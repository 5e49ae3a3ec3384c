"""For how long the leader's word is good; see :mod:`~steersman_proxy.control.follower`."""

import logging

from steersman.clock import Clock
from steersman_proxy.routing.fleet import Fleet

_log = logging.getLogger("steersman.control")


class Contact:
    """Tells the fleet whether its table is fresh, and until when. Stale at first."""

    def __init__(self, fleet: Fleet, *, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._until = float("-inf")
        self._fresh = False
        self.proven_at: float | None = None
        """When the last message was sent that the leader has certainly heard."""
        fleet.set_control(False)

    @property
    def fresh(self) -> bool:
        """Whether the leader's word is good now."""
        return self._fresh and self._clock.now() < self._until

    @property
    def due(self) -> float | None:
        """When :meth:`tick` has something to do, on the clock."""
        return self._until if self._fresh else None

    def prove(self, at: float, *, grant: float) -> None:
        """The leader has heard what was sent at ``at``; its word is good for ``grant`` seconds."""
        self.proven_at = at if self.proven_at is None else max(at, self.proven_at)
        self._until = max(self._until, at + grant)
        if self._clock.now() < self._until:
            if not self._fresh:
                _log.info("in contact with the operator")
            self._fresh = True
            self._fleet.set_control(True, until=self._until)

    def tick(self) -> None:
        """See whether the time is over."""
        if self._fresh and self._clock.now() >= self._until:
            self._fresh = False
            self._fleet.set_control(False)
            _log.warning("the operator is out of contact; only the last table is known")
