"""Whether an engine has room for one more request.

Two rules limit what is in flight on one engine. ``max_in_flight_per_engine`` is the user's, holds
always, and is the better one. Where it is not set, the *release window* applies, to held requests
only: without it, the first of eight engines to open would get everything that waited for eight.

The window is an equal share, over the engines that are open or about to open, of all requests that
wait or are in flight, but at least :data:`WINDOW_FLOOR`. With all engines open it delays nothing;
with one open and seven closed the one gets an eighth at once. It then widens by half of what the
engine has answered since the queue formed, so that engines which stay closed for hours do not
leave the others idle: throughput grows by half with each generation until nobody waits.
"""

from collections.abc import Mapping, Set

from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine

WINDOW_FLOOR = 64
"""Requests in flight that an engine may always reach with held ones: any engine batches that many,
and a few do not stampede."""


class Room:
    """The limits of one selection."""

    __slots__ = ("_answered", "_excluded", "_limit", "_window")

    def __init__(
        self,
        *,
        limit: int = 0,
        window: int = 0,
        answered: Mapping[str, int] | None = None,
        excluded: Set[str] = frozenset(),
    ) -> None:
        self._limit = limit
        self._window = window
        self._answered = answered or {}
        self._excluded = excluded

    @property
    def unlimited(self) -> bool:
        """Whether every engine is admitted."""
        return not self._limit and not self._window and not self._excluded

    def full(self, engine: Engine) -> bool:
        """Whether the user's limit is reached."""
        return 0 < self._limit <= engine.load.requests

    def admits(self, engine: Engine) -> bool:
        """Whether a request that may go anywhere may go there."""
        if engine.id in self._excluded:
            return False
        requests = engine.load.requests
        if self._limit:
            return requests < self._limit
        if self._window:
            return requests < self._window + self._answered.get(engine.id, 0) // 2
        return True


def release_window(eligible: Eligible, *, waiting: int, in_flight: int) -> int:
    """Requests in flight up to which one engine takes held requests; see the top of this module."""
    sharing = len(eligible.engines) + eligible.waitable_mask.bit_count()
    return max(WINDOW_FLOOR, -(-(waiting + in_flight) // max(1, sharing)))
