"""Operator processes: the real core, with models of the hands that the shell has."""

import random
from typing import TYPE_CHECKING

from steersman.table import Epoch, Table
from steersman_operator.fleet.commands import (
    AskLoad,
    Call,
    Command,
    CutRequests,
    Forget,
    Look,
    Note,
    Publish,
    Store,
    Watch,
)
from steersman_operator.fleet.events import (
    Acked,
    CallEnded,
    Deposed,
    Elected,
    Event,
    InFlight,
    LeaseRenewed,
    LoadSeen,
    Observed,
    ProxiesRequired,
    ProxyHeard,
    ProxyJoined,
    ProxyLost,
    ProxyRef,
    SpecChanged,
    Stored,
    Tick,
)
from steersman_operator.fleet.facts import Observation, Outcome
from steersman_operator.fleet.state import State
from steersman_operator.fleet.step import step
from tests.fleet.world.cluster import LEASE
from tests.fleet.world.scheduler import Process

if TYPE_CHECKING:
    from tests.fleet.world.proxy import ModelProxy
    from tests.fleet.world.world import World

TICK = 0.25
HEARTBEAT = 0.7
RENEW = 1.0
SESSION_SILENCE = 2.0


class Session:
    """A proxy that has said hello."""

    __slots__ = ("echo", "epoch", "heard", "proxy")

    def __init__(self, proxy: "ModelProxy", *, now: float, echo: float) -> None:
        self.proxy = proxy
        self.heard = now
        self.echo = echo
        """When the proxy sent the last thing that was heard of it, on its clock."""
        self.epoch: Epoch | None = None


class Manager(Process):
    """One life of an operator process. Its clock has nothing to do with anybody else's."""

    obeys_the_lease = True

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.scheduler)
        self.world = world
        self.name = name
        self.rng: random.Random = world.rng
        self._offset = self.rng.uniform(-900, 5000)
        self.state = State()
        self.events: list[Event] = []
        """Everything that happened to it, for a replay."""
        self.sessions: dict[str, Session] = {}
        self._listing = -1
        self._valid_until = 0.0
        self._table: Table | None = None
        self._watched: tuple[str, ...] = ()
        self.later(0.01, self.read_spec)
        self.later(0.02, self.read_proxies, world.cluster.proxies, world.cluster.listing)
        self.later(self.rng.uniform(0.02, 0.5), self.every, RENEW, self._renew)
        self.later(self.rng.uniform(0.02, 0.3), self.every, TICK, self._tick)
        self.later(self.rng.uniform(0.02, 0.3), self.every, HEARTBEAT, self._ping)

    @property
    def clock(self) -> float:
        return self.scheduler.time + self._offset

    @property
    def leads(self) -> bool:
        return self.state.leading

    @property
    def _cluster_answers(self) -> bool:
        return self.name not in self.world.cluster.unreachable

    def feed(self, event: Event) -> None:
        self.events.append(event)
        self.state, commands = step(self.state, event, timing=self.world.timing)
        for command in commands:
            self._carry_out(command)

    # --- the cluster ------------------------------------------------------------------------------

    def _renew(self) -> None:
        now, cluster = self.clock, self.world.cluster
        if self.leads and now >= self._valid_until and self.obeys_the_lease:
            self.feed(Deposed(now=now))
            self.sessions.clear()
        if not self._cluster_answers:
            return
        if cluster.lease.take(self, now=self.scheduler.time):
            self._valid_until = now + LEASE
            if self.state.term < cluster.lease.term or not self.leads:
                self._lead()
            self.feed(LeaseRenewed(now=now, valid_until=self._valid_until))

    def _lead(self) -> None:
        cluster = self.world.cluster
        self.sessions.clear()
        self._table, self._watched = None, ()
        durable = tuple(cluster.records.values())
        self.feed(Elected(now=self.clock, term=cluster.lease.term, durable=durable))

    def begin_later_term(self) -> None:
        """A proxy is said to follow a later term than ours: lead on under one that is later still."""
        cluster = self.world.cluster
        held = cluster.lease.holder is self and self.clock < self._valid_until
        if held and self.leads and self._cluster_answers and not self.stalled:
            cluster.lease.term += 1
            self._lead()

    def _tick(self) -> None:
        if self.leads:
            if self.clock >= self._valid_until and self.obeys_the_lease:
                self._renew()
                return
            self.feed(Tick(now=self.clock))

    def read_spec(self) -> None:
        if self._cluster_answers:
            cluster = self.world.cluster
            self.feed(
                SpecChanged(now=self.clock, pools=cluster.pools, deliberate=cluster.deliberate)
            )
        else:
            self.later(1.0, self.read_spec)

    def read_proxies(self, refs: tuple[ProxyRef, ...], listing: int) -> None:
        if not self._cluster_answers:
            self.later(1.0, self.read_proxies, refs, listing)
        elif listing > self._listing:
            self._listing = listing
            self.feed(ProxiesRequired(now=self.clock, proxies=refs))

    # --- proxies ----------------------------------------------------------------------------------

    def hello(self, proxy: "ModelProxy", epoch: Epoch | None, max_term: int, echo: float) -> None:
        if not self.leads or max_term > self.state.term:
            return
        self.sessions[proxy.uid] = Session(proxy, now=self.clock, echo=echo)
        self.feed(ProxyJoined(now=self.clock, proxy=proxy.ref))
        self._send_table(proxy.uid)
        self._send(proxy.uid, proxy.on_watch, self, self.state.term, self._watched)

    def _session(self, ref: ProxyRef, echo: float) -> Session | None:
        session = self.sessions.get(ref.uid)
        if session is None or session.proxy.ref != ref:
            return None
        session.heard = self.clock
        session.echo = max(session.echo, echo)
        return session

    def pong(self, ref: ProxyRef, epoch: Epoch | None, echo: float) -> None:
        session = self._session(ref, echo)
        if session is None:
            return
        self.feed(ProxyHeard(now=self.clock, proxy=ref))
        if epoch is not None:
            # What is in force at a proxy it says with every sign of life.
            self.acked(ref, epoch, echo)
        if epoch != self.state.epoch:
            self._send_table(ref.uid)

    def acked(self, ref: ProxyRef, epoch: Epoch, echo: float) -> None:
        session = self._session(ref, echo)
        if session is not None and session.epoch != epoch:
            session.epoch = epoch
        if session is not None:
            known = self.state.proxies.get(ref.uid)
            if known is None or known.acked is None or known.acked < epoch:
                self.feed(Acked(now=self.clock, proxy=ref, epoch=epoch))

    def in_flight(self, ref: ProxyRef, epoch: Epoch, counts: dict[str, int], echo: float) -> None:
        if self._session(ref, echo) is not None:
            self.feed(InFlight(now=self.clock, proxy=ref, epoch=epoch, counts=counts))

    def _ping(self) -> None:
        if not self.leads:
            return
        for uid, session in list(self.sessions.items()):
            if self.clock - session.heard > SESSION_SILENCE:
                del self.sessions[uid]
                self.feed(ProxyLost(now=self.clock, proxy=session.proxy.ref))
            elif self.state.published:
                self._send(uid, session.proxy.on_ping, self, self.state.epoch, session.echo)
                self._send(uid, session.proxy.on_watch, self, self.state.term, self._watched)

    def _send(self, uid: str, work: object, *args: object) -> None:
        proxy = self.sessions[uid].proxy
        self.world.network.send(self.name, uid, proxy, work, *args)  # type: ignore[arg-type]

    def _send_table(self, uid: str) -> None:
        session = self.sessions[uid]
        if self._table is not None:
            self._send(uid, session.proxy.on_table, self, self._table, session.echo)

    # --- commands ---------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Publish(table=table):
                self._table = table
                for uid in self.sessions:
                    self._send_table(uid)
            case Watch(engines=engines):
                self._watched = engines
                for uid, session in self.sessions.items():
                    self._send(uid, session.proxy.on_watch, self, self.state.term, engines)
            case CutRequests(engine=engine):
                for uid, session in self.sessions.items():
                    self._send(uid, session.proxy.on_cut, self, self.state.term, engine)
            case Look(engine=engine):
                self._ask(self._look, engine, self.state.engines[engine].looking)
            case AskLoad(engine=engine):
                self._ask(self._load, engine, self.state.engines[engine].asking_load)
            case Store():
                self.scheduler.after(self._hand(), self._write, command)
            case Forget(engine=engine):
                self.scheduler.after(self._hand(), self._forget, engine, self.state.term)
            case Call():
                self.world.rules.call_begins(self, command)
                self.later(command.timeout, self._ended, command, Outcome.UNKNOWN, "no answer")
                self.scheduler.after(self._hand(), self._call, command)
            case Note():
                pass

    def _hand(self) -> float:
        """How long it takes to get out of this process, or back into it."""
        return self.rng.uniform(0.001, 0.03)

    def _ask(self, work: object, engine: str, asked: float | None) -> None:
        self.scheduler.after(self._hand(), work, engine, asked)  # type: ignore[arg-type]

    def _look(self, engine: str, asked: float) -> None:
        seen = self.world.engines[engine].observe()
        if not seen.reachable and self.rng.random() < 0.2:
            return  # not even that comes back
        self.later(self._hand(), self._observed, engine, asked, seen)

    def _observed(self, engine: str, asked: float, seen: Observation) -> None:
        self.feed(Observed(now=self.clock, engine=engine, asked=asked, seen=seen))

    def _load(self, engine: str, asked: float) -> None:
        busy = self.world.engines[engine].load()
        self.later(self._hand(), self._loaded, engine, asked, busy)

    def _loaded(self, engine: str, asked: float, busy: int | None) -> None:
        self.feed(LoadSeen(now=self.clock, engine=engine, asked=asked, busy=busy))

    def _write(self, command: Store) -> None:
        ok = self._cluster_answers and self.rng.random() >= self.world.store_trouble
        ok = ok and self.world.cluster.write(command.record)
        self.later(self._hand(), self._stored, command, ok)

    def _stored(self, command: Store, ok: bool) -> None:
        self.feed(
            Stored(now=self.clock, engine=command.record.engine, number=command.number, ok=ok)
        )

    def _forget(self, engine: str, term: int) -> None:
        if self._cluster_answers:
            self.world.cluster.forget(engine, term=term)

    def _call(self, command: Call) -> None:
        def reply(outcome: Outcome, detail: str) -> None:
            self.later(self._hand(), self._ended, command, outcome, detail)

        self.world.engines[command.engine].call(command, reply)

    def _ended(self, command: Call, outcome: Outcome, detail: str) -> None:
        self.feed(
            CallEnded(
                now=self.clock,
                engine=command.engine,
                number=command.number,
                outcome=outcome,
                detail=detail,
            )
        )
