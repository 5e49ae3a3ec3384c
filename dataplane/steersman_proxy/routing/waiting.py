"""Who waits, in which order: the data structure below the hold queue.

Requests that wait for the same thing form a *lane*; inside it, first come is first served. Lanes
are independent: requests for the newest version may wait while others pass. Everything here is
constant time or a logarithm, so that thousands may wait and leave; what it costs to release does
not depend on how many stay.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from heapq import heappop, heappush

from steersman.clock import Clock
from steersman.errors import RequestError
from steersman_proxy.routing.request import LaneKey, RouteRequest, Selected


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


class PoolQueue:
    """Everything that waits for one pool. Outlives tables, and the pool itself while it has to."""

    def __init__(self, name: str, *, on_due: "Callable[[PoolQueue], None]") -> None:
        self.name = name
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        """All of the pool, first come first."""
        self.bytes = 0
        self.answered: dict[str, int] = {}
        """Answers by engine since somebody began to wait; widens the release window."""
        self.unsettled: list[Ticket] = []
        """Tickets whose lane must be found anew, last first."""
        self.changed = False
        """Whether any lane may have become able to go on."""
        self.freed: set[str] = set()
        """Ids of engines that gave back a request since the last release."""
        self._lanes: dict[LaneKey, Lane] = {}
        self._by_engine: dict[str | None, dict[LaneKey, Lane]] = {}
        self._next_seq = 0
        self._on_due = on_due

    @property
    def due(self) -> bool:
        """Whether a release has to look at this queue."""
        return self.changed or bool(self.freed) or bool(self.unsettled)

    def lane(self, key: LaneKey) -> Lane | None:
        """The lane, if somebody waits in it."""
        return self._lanes.get(key)

    def add(self, ticket: Ticket) -> None:
        """Put a new arrival at the end."""
        ticket.seq = self._next_seq
        self._next_seq += 1
        ticket.queue = self
        self.tickets[ticket.seq] = ticket
        self.bytes += ticket.request.body_bytes
        if self._push(ticket):
            # The first of its lane: nobody has tried since the caller was told to wait.
            self.mark_changed()

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket that waits here. Its bytes count no longer."""
        del self.tickets[ticket.seq]
        self.bytes -= ticket.request.body_bytes
        ticket.leave()
        self._drop(ticket)
        if not self.tickets:
            self.answered.clear()
            self.freed.clear()
            self.unsettled.clear()
            self.changed = False

    def move(self, ticket: Ticket, key: LaneKey) -> Lane:
        """Let a ticket wait for something else, at its place in time."""
        self._drop(ticket)
        ticket.lane = key
        self._push(ticket)
        return self._lanes[key]

    def mark_changed(self) -> None:
        """Table, health or reports changed: every lane has to be looked at."""
        if self.tickets:
            self.changed = True
            self._on_due(self)

    def mark_answered(self, engine_id: str) -> None:
        """An engine gave back a request."""
        if self.tickets:
            self.answered[engine_id] = self.answered.get(engine_id, 0) + 1
            self.freed.add(engine_id)
            self._on_due(self)

    def unsettle(self) -> None:
        """What requests wait for may be another engine now: membership or settings changed."""
        self.unsettled = list(reversed(self.tickets.values()))
        self.mark_changed()

    def first(self) -> Ticket | None:
        """Who waits longest."""
        return next(iter(self.tickets.values()), None)

    def take_due(self) -> tuple[bool, set[str]]:
        """What makes the queue due: whether every lane has to be tried, and the engines with room.

        From here on only later events make it due again, and what is given back.
        """
        due = self.changed, self.freed
        self.changed, self.freed = False, set()
        return due

    def give_back_due(self, *, everything: bool, freed: set[str]) -> None:
        """Not all of what :meth:`take_due` named could be tried."""
        if self.tickets:
            self.changed = self.changed or everything
            self.freed |= freed

    def lanes_to_try(self, *, everything: bool, freed: Iterable[str]) -> Iterator[Lane]:
        """The lanes that may be able to go on."""
        if everything:
            yield from self._lanes.values()
            return
        for engine_id in (None, *freed):
            yield from self._by_engine.get(engine_id, {}).values()

    def _push(self, ticket: Ticket) -> bool:
        """Append to the ticket's lane; whether the lane is new."""
        lane = self._lanes.get(ticket.lane)
        if lane is not None:
            lane.push(ticket)
            return False
        lane = self._lanes[ticket.lane] = Lane(ticket.lane, tickets=self.tickets)
        self._by_engine.setdefault(ticket.lane.engine, {})[ticket.lane] = lane
        lane.push(ticket)
        return True

    def _drop(self, ticket: Ticket) -> None:
        """Uncount a ticket in its lane, and forget an empty lane."""
        lane = self._lanes[ticket.lane]
        if lane.live > 1:
            lane.dropped_one()
            return
        del self._lanes[lane.key]
        of_engine = self._by_engine[lane.key.engine]
        del of_engine[lane.key]
        if not of_engine:
            del self._by_engine[lane.key.engine]


class WaitingRoom:
    """The queues of all pools, and which of them have to be looked at."""

    def __init__(self) -> None:
        self.queues: dict[str, PoolQueue] = {}
        self.due: set[PoolQueue] = set()
        self.on_due: Callable[[], None] | None = None
        """Called whenever a queue becomes due, also if it was already."""

    def of(self, pool: str) -> PoolQueue:
        """The queue of a pool, made when it is first asked for."""
        queue = self.queues.get(pool)
        if queue is None:
            queue = self.queues[pool] = PoolQueue(pool, on_due=self._due)
        return queue

    def keep_only(self, pools: Container[str]) -> None:
        """Forget the queues of other pools, except where somebody still waits: those are due."""
        for name, queue in list(self.queues.items()):
            if name not in pools:
                if queue.tickets:
                    queue.mark_changed()
                else:
                    del self.queues[name]
                    self.due.discard(queue)

    def settle(self, queue: PoolQueue, *, known: bool) -> None:
        """Nothing is left to do for ``queue``; if its pool is not ``known`` it can go."""
        self.due.discard(queue)
        if not known and not queue.tickets:
            self.queues.pop(queue.name, None)

    def _due(self, queue: PoolQueue) -> None:
        self.due.add(queue)
        if self.on_due is not None:
            self.on_due()
