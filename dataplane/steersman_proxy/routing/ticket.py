"""One waiting request, and the lane of those that wait for the same."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from steersman.clock import Clock
from steersman.errors import RequestError
from steersman_proxy.routing.request import LaneKey, RouteRequest, Selected

if TYPE_CHECKING:
    from steersman_proxy.routing.waiting import PoolQueue


class Ticket:
    """One waiting request. Exactly one of three ends it: its release, its failure, its cancelling."""

    __slots__ = (
        "_clock",
        "_left",
        "_on_fail",
        "_on_release",
        "entered",
        "lane",
        "queue",
        "request",
        "seq",
    )

    def __init__(
        self,
        request: RouteRequest,
        *,
        lane: LaneKey,
        clock: Clock,
        on_release: Callable[[Selected], None],
        on_fail: Callable[[RequestError], None],
    ) -> None:
        self.request = request
        self.lane = lane
        self.entered = clock.now()
        self._on_release = on_release
        self._on_fail = on_fail
        self.queue: PoolQueue | None = None
        """Where it waits; ``None`` before and afterwards."""
        self.seq = 0
        """Order of arrival in the pool."""
        self._clock = clock
        self._left: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether it has not ended yet."""
        return self.queue is not None

    @property
    def waited(self) -> float:
        """Seconds from its arrival to its end, or to now."""
        end = self._clock.now() if self._left is None else self._left
        return end - self.entered

    def cancel(self) -> None:
        """The client has left. Nothing is called any more; idempotent."""
        if self.queue is not None:
            self.queue.remove(self)

    def release(self, selected: Selected) -> None:
        """An engine takes the request; the ticket has left its queue."""
        self._on_release(selected)

    def fail(self, error: RequestError) -> None:
        """Nobody will take the request; the ticket has left its queue."""
        self._on_fail(error)

    def leave(self) -> None:
        """Wait no longer, whatever the reason."""
        self.queue = None
        self._left = self._clock.now()


class Lane:
    """The waiting requests of one :class:`LaneKey`, in the order of their arrival.

    A heap of arrival numbers, because a ticket can move here from another lane and keeps its place
    in time. Numbers of tickets that left are dropped when they surface, or when they are many; the
    tickets themselves are gone at once.
    """

    __slots__ = ("_heap", "_tickets", "key", "live")

    def __init__(self, key: LaneKey, *, tickets: Mapping[int, Ticket]) -> None:
        self.key = key
        self.live = 0
        self._tickets = tickets
        self._heap: list[int] = []

    def push(self, ticket: Ticket) -> None:
        """Take in a ticket at its place in time."""
        heappush(self._heap, ticket.seq)
        self.live += 1

    def head(self) -> Ticket | None:
        """The first in the order of arrival; ``None`` if the lane is empty."""
        heap = self._heap
        while heap:
            ticket = self._tickets.get(heap[0])
            if ticket is not None and ticket.lane == self.key:
                return ticket
            heappop(heap)
        return None

    def dropped_one(self) -> None:
        """A ticket of this lane has left it."""
        self.live -= 1
        if len(self._heap) > 2 * self.live + 16:
            here = {seq for seq in self._heap if self._is_here(seq)}
            self._heap = sorted(here)  # which is a heap

    def _is_here(self, seq: int) -> bool:
        ticket = self._tickets.get(seq)
        return ticket is not None and ticket.lane == self.key
