"""Proxies: the real routing of one, with a model of its clients and of its control connection.

The connection is modelled as it has to be: a table counts when it is acknowledged after it is in
force, and contact counts from when the proxy itself has last spoken, if its leader has heard that
and the proxy has the leader's newest table.
"""

import random
from typing import TYPE_CHECKING

from steersman.engine import EngineRow
from steersman.policy import AnyVersion, LatestOnly
from steersman.settings import PoolSettings
from steersman.table import Epoch, Table
from steersman_operator.fleet.events import ProxyRef
from steersman_proxy.load.inflight import Guard
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import RouteRequest, Selected, Wait
from tests.fleet.world.scheduler import Process

if TYPE_CHECKING:
    from tests.fleet.world.manager import Manager
    from tests.fleet.world.world import World

HELLO_EVERY = 0.8
SILENCE = 2.5
"""Without a word from an operator for so long, a proxy says hello to it again."""
REPORT_EVERY = 0.4
REQUESTS = [
    RouteRequest(pool="pool"),
    RouteRequest(pool="pool", policy=AnyVersion()),
    RouteRequest(pool="pool", policy=LatestOnly()),
    RouteRequest(pool="pool", affinity="k1"),
    RouteRequest(pool="pool", affinity="k2"),
]


class Request:
    """One request in flight."""

    __slots__ = ("aborted", "duration", "ended", "engine", "guard", "number", "proxy", "sent")

    def __init__(
        self, number: int, proxy: "ModelProxy", engine: Engine, guard: Guard, duration: float
    ) -> None:
        self.number = number
        self.proxy = proxy
        self.engine = engine
        self.guard = guard
        self.duration = duration
        self.sent = False
        self.aborted = False
        """Whether the engine has noticed that its connection is gone."""
        self.ended = False

    def end(self) -> None:
        """The engine has answered, or its connection broke."""
        self.proxy.later(0.0, self.proxy.finished, self)


class ModelProxy(Process):
    """One life of a proxy process."""

    counts_unsent = True
    acks_before_applying = False
    asks_again = True

    def __init__(self, world: "World", uid: str, boot: str) -> None:
        super().__init__(world.scheduler)
        self.world = world
        self.uid = uid
        self.ref = ProxyRef(uid=uid, boot=boot)
        self.rng: random.Random = world.rng
        self.fleet = Fleet(
            clock=world.scheduler,
            defaults=PoolSettings(),
            pool_settings={},
            rl_enabled=True,
            random=self.rng,
        )
        self.epoch: Epoch | None = None
        self.rows: dict[str, EngineRow] = {}
        self.max_term = 0
        self.granted_from = float("-inf")
        """When it last spoke of what its leader has heard."""
        self.leader: Manager | None = None
        self.heard: dict[str, float] = {}
        """When each operator process last said something, by its name."""
        self.watched: tuple[str, ...] = ()
        self.requests: dict[str, set[Request]] = {}
        self.held: list[RouteRequest] = []
        self.later(self.rng.uniform(0, 0.3), self.every, HELLO_EVERY, self._say_hello)
        self.later(self.rng.uniform(0, 0.3), self.every, REPORT_EVERY, self._report_watched)
        self.later(self.rng.expovariate(world.rate), self._client)

    # --- what may begin ---------------------------------------------------------------------------

    def fresh(self) -> bool:
        return self.scheduler.time - self.granted_from < self.world.timing.grant

    def is_fenced_out(self) -> bool:
        return self.world.fencing and not self.fresh()

    def may_start(self, engine: str) -> bool:
        row = self.rows.get(engine)
        return row is not None and row.gate.open and not self.is_fenced_out()

    def in_flight(self, engine: str) -> int:
        return len(self.requests.get(engine, ()))

    # --- clients ----------------------------------------------------------------------------------

    def _client(self) -> None:
        self.later(self.rng.expovariate(self.world.rate), self._client)
        self._start(self.rng.choice(REQUESTS))

    def _start(self, request: RouteRequest) -> None:
        if self.is_fenced_out() or (isinstance(request.policy, LatestOnly) and not self.fresh()):
            return  # 503 control_stale
        chosen = self.fleet.select(request)
        if isinstance(chosen, Wait):
            if len(self.held) < 4:
                self.held.append(request)
        elif isinstance(chosen, Selected):
            self._selected(chosen)

    def _selected(self, chosen: Selected) -> None:
        name = chosen.engine.id
        self.world.rules.request_begins(self, name)
        request = Request(
            self.world.number(), self, chosen.engine, chosen.guard, self.world.duration()
        )
        self.requests.setdefault(name, set()).add(request)
        # Most connections are there already; some take their time.
        slow = self.rng.random() < 0.2
        self.later(self.rng.uniform(0, 0.8 if slow else 0.1), self._send, request)

    def _send(self, request: Request) -> None:
        if self.asks_again and self.is_fenced_out():
            # Between the choice and the first byte the process may have stood still.
            self.finished(request)
        elif not request.ended:
            request.sent = True
            self.world.rules.request_sent(self, request.engine.id)
            self.scheduler.after(
                self.rng.uniform(0, 0.05), self.world.engines[request.engine.id].arrive, request
            )

    def finished(self, request: Request) -> None:
        if request.ended:
            return
        request.ended = True
        request.guard.release()
        name = request.engine.id
        self.requests[name].discard(request)
        if name in self.watched and not self._count(name):
            self._report((name,))
        self._pump()

    def _pump(self) -> None:
        held, self.held = self.held, []
        for request in held:
            self._start(request)

    def _count(self, engine: str) -> int:
        requests = self.requests.get(engine, ())
        if self.counts_unsent:
            return len(requests)
        return sum(request.sent for request in requests)

    # --- the control connection -------------------------------------------------------------------

    def _say_hello(self) -> None:
        for manager in self.world.managers.values():
            last = self.heard.get(manager.name, float("-inf"))
            if self.scheduler.time - last > SILENCE:
                self._tell(
                    manager, manager.hello, self, self.epoch, self.max_term, self.scheduler.time
                )

    def _tell(self, manager: "Manager", work: object, *args: object) -> None:
        self.world.network.send(self.uid, manager.name, manager, work, *args)  # type: ignore[arg-type]

    def _heard(self, manager: "Manager", term: int) -> bool:
        """Whether a message is from a leader that this proxy follows."""
        self.heard[manager.name] = self.scheduler.time
        if term < self.max_term:
            return False
        self.max_term = term
        self.leader = manager
        return True

    def on_table(self, manager: "Manager", table: Table, echo: float) -> None:
        if not self._heard(manager, table.epoch.term):
            return
        if self.acks_before_applying:
            self._tell(manager, manager.acked, self.ref, table.epoch, self.scheduler.time)
            self.later(0.5, self._apply, table, echo)
            return
        self._apply(table, echo)
        assert self.epoch is not None
        self._tell(manager, manager.acked, self.ref, self.epoch, self.scheduler.time)
        self._report_watched()
        self._pump()

    def _apply(self, table: Table, echo: float) -> None:
        if self.epoch is None or table.epoch > self.epoch:
            self.world.rules.table_applied(self, self.epoch, table.epoch)
            self.fleet.apply(table)
            self.epoch = table.epoch
            self.rows = {row.id: row for row in table.engines}
        if self.epoch == table.epoch:
            self.granted_from = max(self.granted_from, echo)

    def on_ping(self, manager: "Manager", epoch: Epoch, echo: float) -> None:
        if not self._heard(manager, epoch.term):
            return
        if epoch == self.epoch:
            self.granted_from = max(self.granted_from, echo)
        self._tell(manager, manager.pong, self.ref, self.epoch, self.scheduler.time)

    def on_watch(self, manager: "Manager", term: int, engines: tuple[str, ...]) -> None:
        if self._heard(manager, term):
            self.watched = engines
            self._report_watched()

    def on_cut(self, manager: "Manager", term: int, engine: str) -> None:
        if self._heard(manager, term):
            for request in list(self.requests.get(engine, ())):
                self._abort(request)
                self.finished(request)

    def _report_watched(self) -> None:
        if self.watched:
            self._report(self.watched)

    def _report(self, engines: tuple[str, ...]) -> None:
        if self.leader is None or self.epoch is None:
            return
        counts = {name: self._count(name) for name in engines}
        self._tell(
            self.leader, self.leader.in_flight, self.ref, self.epoch, counts, self.scheduler.time
        )

    # --- the end ----------------------------------------------------------------------------------

    def _abort(self, request: Request) -> None:
        """The engine notices the end of a connection a moment later."""
        self.scheduler.after(self.rng.uniform(0, 1.0), self._aborted, request)

    def _aborted(self, request: Request) -> None:
        request.aborted = True
        self.world.engines[request.engine.id].abort(request)

    def crash(self) -> None:
        self.alive = False
        for requests in self.requests.values():
            for request in requests:
                if request.sent:
                    self._abort(request)
