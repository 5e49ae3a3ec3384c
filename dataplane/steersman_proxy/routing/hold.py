"""The hold queue: requests that wait in the proxy while engines are changed or full.

A trainer pauses its fleet for every weight update. Without a place to wait, thousands of requests
would fail at that moment, or pile up inside the first engine that opens. Here they wait, bounded in
time, number and bytes, and go on in the order of their arrival: within a lane always, and between
lanes as far as each can go on at all. When the last engine worth waiting for is gone, they fail
with the reason instead of waiting for their timeout.

No I/O and no timers: the shell calls :meth:`HoldQueue.pump` when it is woken and
:meth:`HoldQueue.expire` when :meth:`HoldQueue.next_deadline` has come.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from steersman.clock import Clock
from steersman.errors import ModelNotFound, RequestError
from steersman.settings import HoldSettings
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.refusal import too_many_wait, waited_too_long
from steersman_proxy.routing.request import LaneKey, RouteRequest, Selected, Wait
from steersman_proxy.routing.room import Room, release_window
from steersman_proxy.routing.selection import lane_of
from steersman_proxy.routing.ticket import Lane, Ticket
from steersman_proxy.routing.view import PoolView
from steersman_proxy.routing.waiting import PoolQueue

__all__ = ["HoldQueue", "Ticket"]

_NO_POOL_SLICE = HoldSettings().slice


class HoldQueue:
    """All requests that wait in this process, on top of one :class:`Fleet`."""

    def __init__(self, fleet: Fleet, *, clock: Clock) -> None:
        self.on_wake: Callable[[], None] | None = None
        """Asks the shell to call :meth:`pump` soon, outside the current call."""
        self._fleet = fleet
        self._clock = clock
        self._waiting = fleet.waiting
        self._waiting.on_due = self._wake
        self._pumping = False

    def depth(self, pool: str) -> int:
        """How many requests wait for a pool."""
        queue = self._waiting.queues.get(pool)
        return 0 if queue is None else len(queue.tickets)

    def bytes(self, pool: str) -> int:
        """The sum of their bodies."""
        queue = self._waiting.queues.get(pool)
        return 0 if queue is None else queue.bytes

    def enter(
        self,
        request: RouteRequest,
        lane: LaneKey,
        *,
        on_release: Callable[[Selected], None],
        on_fail: Callable[[RequestError], None],
    ) -> Ticket | RequestError:
        """Let a request wait that was told to :class:`Wait` in ``lane``.

        Exactly one of the callbacks is called, once, from :meth:`pump` or :meth:`expire`; neither
        if the ticket is cancelled first. ``on_release`` gets the request counted already.

        :returns: the ticket, or :class:`~steersman.errors.HoldFull` if it would exceed a bound.
        """
        pool = self._fleet.pool(lane.pool)
        if pool is None:
            return ModelNotFound(f"the pool {lane.pool!a} is gone")
        queue = self._waiting.of(lane.pool)
        limits = pool.settings.hold
        if (
            len(queue.tickets) >= limits.max_requests
            or queue.bytes + request.body_bytes > limits.max_bytes
        ):
            return too_many_wait(pool, request, waiting=len(queue.tickets), held=queue.bytes)
        ticket = Ticket(
            request, lane=lane, clock=self._clock, on_release=on_release, on_fail=on_fail
        )
        queue.add(ticket)
        return ticket

    def pump(self) -> bool:
        """Release those whose turn it is, at most ``hold.slice`` of each pool.

        The cost follows what is released, and the number of lanes that were looked at; not how many
        requests wait.

        :returns: whether more could be done at once: call again in the next turn of the loop.
        """
        if self._pumping:
            return True  # called from a callback of itself
        self._pumping = True
        try:
            for queue in list(self._waiting.due):
                if not self._pump_pool(queue):
                    self._waiting.settle(queue, known=self._fleet.pool(queue.name) is not None)
        finally:
            self._pumping = False
        return bool(self._waiting.due)

    def expire(self) -> None:
        """Fail those who have waited for ``hold.timeout``, and look at the breakers' cooldowns.

        The pool's present setting counts, also for those who came under another one, so that they
        expire in the order of their arrival.
        """
        self._fleet.catch_up()
        now = self._clock.now()
        for queue in list(self._waiting.queues.values()):
            pool = self._fleet.pool(queue.name)
            if pool is None:
                continue
            timeout = pool.settings.hold.timeout
            while (ticket := queue.first()) is not None and ticket.entered + timeout <= now:
                queue.remove(ticket)
                ticket.fail(waited_too_long(pool, ticket.request, waited=ticket.waited))

    def dismiss(self, error: RequestError) -> int:
        """Fail all who wait, because this process leaves; how many they were.

        None of them was sent, so that their clients may safely ask somebody else.
        """
        dismissed = 0
        for queue in list(self._waiting.queues.values()):
            while (ticket := queue.first()) is not None:
                queue.remove(ticket)
                ticket.fail(error)
                dismissed += 1
        return dismissed

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do, on the clock; ``None`` if nobody waits."""
        deadlines = [
            ticket.entered + pool.settings.hold.timeout
            for queue in self._waiting.queues.values()
            if (ticket := queue.first()) is not None
            and (pool := self._fleet.pool(queue.name)) is not None
        ]
        if not deadlines:
            return None
        # An engine whose breaker may be probed again is somebody that those who wait can go to.
        probe = self._fleet.cooldowns.next_due
        return min(deadlines) if probe is None else min(probe, *deadlines)

    def _wake(self) -> None:
        if self.on_wake is not None:
            self.on_wake()

    def _pump_pool(self, queue: PoolQueue) -> bool:
        """One slice for one pool; whether work is left."""
        pool = self._fleet.pool(queue.name)
        budget = _NO_POOL_SLICE if pool is None else max(1, pool.settings.hold.slice)
        due = queue.take_due()
        finished = False
        release = _Release(self._fleet, pool=pool, queue=queue)
        try:
            release.settle(budget)
            finished = release.run(queue.lanes_to_try(due), budget=budget)
        finally:
            if not finished:  # also because a callback failed
                queue.give_back(due)
        return queue.has_work


class _Release:
    """One slice of releases for one pool.

    Callbacks may enter, cancel, select and give back requests meanwhile, so the head of a lane is
    looked up every time.
    """

    def __init__(self, fleet: Fleet, *, pool: PoolView | None, queue: PoolQueue) -> None:
        self._fleet = fleet
        self._pool = pool
        self._queue = queue
        self._rooms: dict[LaneKey, Room] = {}
        self._in_flight: int | None = None

    def settle(self, budget: int) -> None:
        """Move up to ``budget`` tickets to the lane that they belong to under the present table."""
        queue, pool = self._queue, self._pool
        while queue.unsettled and budget > 0:
            ticket = queue.unsettled.pop()
            if pool is None or not ticket.waiting:
                continue
            lane = lane_of(pool, ticket.request)
            if lane != ticket.lane:
                queue.move(ticket, lane)
            budget -= 1

    def run(self, lanes: Iterable[Lane], *, budget: int) -> bool:
        """Let the first of all heads go on, again and again; whether every lane is stuck or empty.

        A lane whose head has to go on waiting is stuck for this slice: all in it wait for the same.
        """
        active = list(lanes)
        heads = [
            (ticket.seq, place)
            for place, lane in enumerate(active)
            if (ticket := lane.head()) is not None
        ]
        heapify(heads)
        while heads:
            if budget <= 0:
                return False
            seq, place = heappop(heads)
            lane = active[place]
            ticket = lane.head()
            if ticket is not None and ticket.seq == seq:
                advanced, elsewhere = self._advance(ticket)
                if not advanced:
                    continue
                budget -= 1
                if elsewhere is not None:
                    active.append(elsewhere)
                    heappush(heads, (seq, len(active) - 1))
                ticket = lane.head()
            if ticket is not None:
                heappush(heads, (ticket.seq, place))
        return True

    def _advance(self, ticket: Ticket) -> tuple[bool, Lane | None]:
        """Try one ticket: whether it left its lane, and the lane that it moved to, if any."""
        outcome = self._fleet.dispatch(ticket.request, room=self._room(ticket.lane))
        if isinstance(outcome, Wait):
            if outcome.lane == ticket.lane:
                return False, None
            return True, self._queue.move(ticket, outcome.lane)
        self._queue.remove(ticket)
        if isinstance(outcome, Selected):
            ticket.release(outcome)
        else:
            ticket.fail(outcome)
        return True, None

    def _room(self, key: LaneKey) -> Room:
        """The limits for requests of one lane, as of the beginning of the slice."""
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = self._make_room(key)
        return room

    def _make_room(self, key: LaneKey) -> Room:
        pool, queue = self._pool, self._queue
        if pool is None or pool.limit:
            return Room(limit=0 if pool is None else pool.limit, excluded=key.excluded)
        if self._in_flight is None:
            self._in_flight = sum(engine.load.requests for engine in pool.engines)
        window = release_window(
            pool.eligible(key.role, key.policy),
            waiting=len(queue.tickets),
            in_flight=self._in_flight,
        )
        return Room(window=window, answered=queue.answered, excluded=key.excluded)
