"""Who waits, in which order: the data structure below the hold queue.

Requests that wait for the same thing form a *lane*; inside it, first come is first served. Lanes
are independent: requests for the newest version may wait while others pass. Everything here is
constant time or a logarithm, so that thousands may wait and leave; what it costs to release does
not depend on how many stay.
"""

from collections import OrderedDict
from collections.abc import Callable, Container

from steersman_proxy.routing.request import LaneKey
from steersman_proxy.routing.ticket import Lane, Ticket


class Due:
    """What has happened since the lanes of a pool were tried."""

    __slots__ = ("changed", "entered", "freed")

    def __init__(self) -> None:
        self.changed = False
        """Table, health or reports: any lane may be able to go on."""
        self.freed: set[str] = set()
        """Ids of engines that gave back a request."""
        self.entered: set[LaneKey] = set()
        """Lanes in which somebody began to wait."""

    def __bool__(self) -> bool:
        return self.changed or bool(self.freed) or bool(self.entered)

    @property
    def room(self) -> bool:
        """Whether an engine may have room that nobody was offered yet."""
        return self.changed or bool(self.freed)

    def add(self, other: "Due") -> None:
        """Both have happened."""
        self.changed = self.changed or other.changed
        self.freed |= other.freed
        self.entered |= other.entered


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
        self.due = Due()
        self._lanes: dict[LaneKey, Lane] = {}
        self._by_engine: dict[str | None, dict[LaneKey, Lane]] = {}
        self._next_seq = 0
        self._on_due = on_due

    @property
    def has_work(self) -> bool:
        """Whether a release has to look at this queue."""
        return bool(self.due) or bool(self.unsettled)

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
            # The first of its lane: what it was told to wait for may have come meanwhile.
            self.due.entered.add(ticket.lane)
            self._on_due(self)

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket that waits here. Its bytes count no longer."""
        del self.tickets[ticket.seq]
        self.bytes -= ticket.request.body_bytes
        ticket.leave()
        self._drop(ticket)
        if not self.tickets:
            self.answered.clear()
            self.unsettled.clear()
            self.due = Due()

    def move(self, ticket: Ticket, key: LaneKey) -> Lane:
        """Let a ticket wait for something else, at its place in time."""
        self._drop(ticket)
        ticket.lane = key
        self._push(ticket)
        self.due.entered.add(key)
        return self._lanes[key]

    def mark_changed(self) -> None:
        """Table, health or reports changed: every lane has to be looked at."""
        if self.tickets:
            self.due.changed = True
            self._on_due(self)

    def mark_answered(self, engine_id: str) -> None:
        """An engine gave back a request."""
        if self.tickets:
            self.answered[engine_id] = self.answered.get(engine_id, 0) + 1
            self.due.freed.add(engine_id)
            self._on_due(self)

    def unsettle(self, *, policies: bool) -> None:
        """What requests wait for may be another engine now: let their lanes be found anew.

        Those that name an engine or a routing key; with ``policies`` also those that have the
        pool's version policy.
        """
        self.unsettled = [
            ticket
            for ticket in reversed(self.tickets.values())
            if ticket.request.target is not None
            or ticket.request.affinity is not None
            or (policies and ticket.request.policy is None)
        ]

    def first(self) -> Ticket | None:
        """Who waits longest."""
        return next(iter(self.tickets.values()), None)

    def take_due(self) -> Due:
        """What has happened; from here on only later events make the queue due again."""
        due, self.due = self.due, Due()
        return due

    def give_back(self, due: Due) -> None:
        """Not all lanes that ``due`` is about could be tried."""
        if self.tickets:
            self.due.add(due)

    def lanes_to_try(self, due: Due) -> list[Lane]:
        """The lanes that may be able to go on."""
        if due.changed:
            return list(self._lanes.values())
        if not due.freed:
            return [self._lanes[key] for key in due.entered if key in self._lanes]
        lanes = [
            lane
            for engine_id in (None, *due.freed)
            for lane in self._by_engine.get(engine_id, {}).values()
        ]
        known = {lane.key for lane in lanes}
        entered = due.entered - known
        return lanes + [self._lanes[key] for key in entered if key in self._lanes]

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
