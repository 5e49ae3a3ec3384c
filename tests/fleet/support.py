"""One operator over obedient proxies and engines; a test says which of them falls silent."""

from collections.abc import Callable
from typing import Any

import msgspec

from steersman.engine import Control, EngineRow
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
    Elected,
    Event,
    InFlight,
    LeaseRenewed,
    LoadSeen,
    Observed,
    ProxiesRequired,
    ProxyJoined,
    ProxyRef,
    SpecChanged,
    Stored,
    Tick,
)
from steersman_operator.fleet.facts import CallKind, Durable, Observation, Outcome
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.fleet.state import EngineState, Operation, Phase, State, Timing
from steersman_operator.fleet.step import step

TIMING = Timing()
FOREVER = 1e9
A_TURN = 0.25


class Truth(msgspec.Struct):
    """What an engine really is."""

    boot: str = "boot-1"
    paused: bool = False
    released: tuple[str, ...] = ()
    version: str | None = "1"
    busy: int | None = 0
    answers: bool = True
    shows_paused: bool = True
    shows_released: bool = True
    backup: bool | None = True
    """Whether its weights survive a sleep."""
    detail: str = ""
    """What a look says in words."""

    def seen(self) -> Observation:
        if not self.answers:
            return Observation(reachable=False, detail=self.detail)
        return Observation(
            reachable=True,
            boot_id=self.boot,
            paused=self.paused if self.shows_paused else None,
            released=self.released if self.shows_released else None,
            backup=self.backup,
            version=self.version,
            version_known=True,
            detail=self.detail,
        )

    def restart(self) -> None:
        number = int(self.boot.rpartition("-")[2]) + 1
        self.boot, self.paused, self.released, self.version = f"boot-{number}", False, (), None

    def take(self, call: Call) -> None:
        match call.kind:
            case CallKind.PAUSE:
                self.paused = True
            case CallKind.RESUME:
                self.paused = False
            case CallKind.SLEEP:
                self.released = call.tags
            case CallKind.WAKE:
                self.released = tuple(tag for tag in self.released if tag not in call.tags)
            case CallKind.REFIT | CallKind.LABEL:
                assert call.weights is not None
                self.version = call.weights.version
            case CallKind.TRANSFER:
                raise AssertionError("nobody calls for it")


class Bench:
    """Drives the core; everybody answers at once unless told not to."""

    def __init__(
        self,
        engines: str = "a",
        *,
        proxies: str = "x",
        durable: tuple[Durable, ...] = (),
        term: int = 1,
        truths: dict[str, Truth] | None = None,
        started: bool = True,
        timing: Timing = TIMING,
        **pool: Any,
    ) -> None:
        self.timing = timing
        self.now = 100.0
        self.state = State()
        self.log: list[Command] = []
        """Every command so far."""
        self.truths = truths or {name: Truth() for name in engines}
        self.pool = PoolSpec(
            name="pool", models=("m",), engines=tuple(map(engine_spec, engines)), **pool
        )
        self.proxies = {uid: ref(uid) for uid in proxies}
        self.in_flight: dict[tuple[str, str], int] = {}
        """By proxy and engine."""
        self.table: Table | None = None
        self.quiet: set[str] = set()
        """Who does not answer: a proxy's uid, an engine's name, `store`, `calls`, `loads`."""
        self.stop: tuple[str, Phase, CallKind | None] | None = None
        """An engine that gets no answers while it is in a phase of a call."""
        self.stores: list[Store] = []
        self.calls: list[Call] = []
        self.looks: list[tuple[Look, float]] = []
        self.loads: list[tuple[AskLoad, float]] = []
        self.watched: tuple[str, ...] = ()
        if started:
            self.elect(term, durable)
            self.do(SpecChanged(now=self.now, pools=(self.pool,)))
            self.require()
            for proxy in self.proxies.values():
                self.do(ProxyJoined(now=self.now, proxy=proxy))
            self.run(1)

    # --- what happens -----------------------------------------------------------------------------

    def do(self, event: Event) -> list[Command]:
        self.state, commands = step(self.state, event, timing=self.timing)
        self.log += commands
        for command in commands:
            match command:
                case Store():
                    self.stores.append(command)
                case Call():
                    self.calls.append(command)
                case Look():
                    self.looks.append((command, self.state.now))
                case AskLoad():
                    self.loads.append((command, self.state.now))
                case Publish(table=table):
                    self.table = table
                case Watch(engines=engines):
                    self.watched = engines
                case CutRequests(engine=engine):
                    for uid in self.proxies.keys() - self.quiet:
                        self.in_flight[uid, engine] = 0
                case Forget() | Note():
                    pass
        return commands

    def elect(self, term: int, durable: tuple[Durable, ...] = ()) -> None:
        self.do(Elected(now=self.now, term=term, durable=durable))
        self.do(LeaseRenewed(now=self.now, valid_until=FOREVER))

    def lease(self, seconds: float) -> None:
        self.do(LeaseRenewed(now=self.now, valid_until=self.now + seconds))

    def require(self, *extra: ProxyRef) -> None:
        refs = (*self.proxies.values(), *extra)
        self.do(ProxiesRequired(now=self.now, proxies=refs))

    def join(self, uid: str, boot: str = "1", *, listed: bool = False) -> ProxyRef:
        self.proxies[uid] = ref(uid, boot)
        self.do(ProxyJoined(now=self.now, proxy=self.proxies[uid]))
        if listed:
            self.require()
        return self.proxies[uid]

    def want(self, state: Control | None = None, **pool: Any) -> None:
        """Change the spec."""
        changes = pool if state is None else {"state": state, **pool}
        generation = self.pool.generation + 1
        self.pool = msgspec.structs.replace(self.pool, generation=generation, **changes)
        self.do(SpecChanged(now=self.now, pools=(self.pool,)))

    def tick(self, seconds: float = A_TURN) -> None:
        self.now += seconds
        self.do(Tick(now=self.now))

    def ack(self, uid: str, epoch: Epoch | None = None) -> None:
        epoch = epoch or self.state.epoch
        self.do(Acked(now=self.now, proxy=self.proxies[uid], epoch=epoch))

    def report(self, uid: str, *, epoch: Epoch | None = None, **counts: int) -> None:
        epoch = epoch or self.state.epoch
        self.do(InFlight(now=self.now, proxy=self.proxies[uid], epoch=epoch, counts=counts))

    def stored(self, *, ok: bool = True) -> Store:
        command = self.stores.pop(0)
        engine = command.record.engine
        self.do(Stored(now=self.now, engine=engine, number=command.number, ok=ok, detail="no"))
        return command

    def end_call(self, outcome: Outcome = Outcome.OK, *, happens: bool | None = None) -> Call:
        """The oldest call ends; it has its effect if it was carried out, or ``happens``."""
        call = self.calls.pop(0)
        if outcome is Outcome.OK if happens is None else happens:
            self.truths[call.engine].take(call)
        self.do(
            CallEnded(
                now=self.now, engine=call.engine, number=call.number, outcome=outcome, detail="so"
            )
        )
        return call

    def look(self, name: str, **seen: Any) -> None:
        """The look under way at an engine is answered."""
        self.truths.setdefault(name, Truth())
        command, asked = next(one for one in self.looks if one[0].engine == name)
        self.looks.remove((command, asked))
        observation = msgspec.structs.replace(self.truths[name].seen(), **seen)
        self.do(Observed(now=self.now, engine=name, asked=asked, seen=observation))

    def load(self, busy: int | None = 0) -> None:
        """The oldest question for a load is answered."""
        command, asked = self.loads.pop(0)
        self.do(LoadSeen(now=self.now, engine=command.engine, asked=asked, busy=busy))

    # --- everybody obeys --------------------------------------------------------------------------

    def turn(self) -> None:
        """Some time passes, and everybody who is not quiet answers once."""
        self.tick()
        for uid in self.proxies.keys() - self.quiet:
            proxy = self.state.proxies.get(uid)
            if proxy is None or proxy.ref != self.proxies[uid]:
                continue
            if self.state.published and proxy.acked != self.state.epoch:
                self.ack(uid)
            counts = {name: self.in_flight.get((uid, name), 0) for name in self.watched}
            if counts:
                self.report(uid, **counts)
        for command, _ in list(self.looks):
            if command.engine not in self.quiet and not self._stopped(command.engine):
                self.look(command.engine)
        while self.loads and "loads" not in self.quiet:
            engine = self.loads[0][0].engine
            if self._stopped(engine):
                break
            self.load(self.truths[engine].busy)
        while self.stores and "store" not in self.quiet:
            if self._stopped(self.stores[0].record.engine):
                break
            self.stored()
        while self.calls and "calls" not in self.quiet and not self._stopped(self.calls[0].engine):
            self.end_call()

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Turns, until something holds or the time is over; whether it held."""
        end = self.now + seconds
        while self.now < end:
            if until is not None and until():
                return True
            self.turn()
        return until is None or until()

    def until_phase(self, phase: Phase, name: str = "a", call: CallKind | None = None) -> None:
        """Let things happen up to a phase and no further."""
        self.stop = (name, phase, call)
        assert self.run(60, lambda: self._stopped(name)), self.engine(name).op

    def release(self) -> None:
        """Everybody answers again."""
        self.stop = None
        self.quiet.clear()

    def _stopped(self, name: str) -> bool:
        op = self.engine(name).op
        if self.stop is None or op is None or self.stop[0] != name:
            return False
        return op.phase is self.stop[1] and self.stop[2] in (None, op.call)

    # --- what is ----------------------------------------------------------------------------------

    def engine(self, name: str = "a") -> EngineState:
        return self.state.engines[name]

    def op(self, name: str = "a") -> Operation:
        op = self.engine(name).op
        assert op is not None, f"nothing is under way at {name}"
        return op

    def row(self, name: str = "a") -> EngineRow:
        assert self.table is not None
        return next(row for row in self.table.engines if row.id == name)

    def fleet_max(self) -> str | None:
        assert self.table is not None
        return self.table.pools[0].fleet_max

    def settled(self, control: Control, name: str = "a") -> bool:
        engine = self.engine(name)
        open_ = engine.gate.open and self.row(name).gate.open
        return (
            engine.op is None
            and engine.settled is control
            and engine.facts.control is control
            and open_ is (control is Control.ACTIVE)
        )

    def called(self, name: str = "a") -> list[CallKind]:
        """The calls to an engine so far."""
        return [one.kind for one in self.log if isinstance(one, Call) and one.engine == name]

    def notes(self) -> list[str]:
        return [one.reason for one in self.log if isinstance(one, Note)]

    def records(self) -> tuple[Durable, ...]:
        """What the store holds if everything that was sent to it was written."""
        kept: dict[str, Durable] = {}
        for command in self.log:
            if isinstance(command, Store):
                kept[command.record.engine] = command.record
            elif isinstance(command, Forget):
                kept.pop(command.engine, None)
        return tuple(kept.values())

    def records_before_last(self) -> tuple[Durable, ...]:
        """The same if the last record was never written."""
        last = max(i for i, one in enumerate(self.log) if isinstance(one, Store))
        kept = {one.record.engine: one.record for one in self.log[:last] if isinstance(one, Store)}
        return tuple(kept.values())

    def successor(self, *, written: tuple[Durable, ...] | None = None) -> "Bench":
        """Another operator process takes over: same engines, same proxies, same wishes."""
        after = Bench(
            "".join(self.truths),
            proxies="".join(self.proxies),
            truths=self.truths,
            term=self.state.term + 1,
            durable=self.records() if written is None else written,
            started=False,
            timing=self.timing,
        )
        after.pool = self.pool
        after.in_flight = self.in_flight
        after.elect(self.state.term + 1, self.records() if written is None else written)
        after.do(SpecChanged(now=after.now, pools=(self.pool,)))
        after.require()
        for proxy in after.proxies.values():
            after.do(ProxyJoined(now=after.now, proxy=proxy))
        return after


def engine_spec(name: str, **more: Any) -> EngineSpec:
    return EngineSpec(id=name, url=f"http://{name}:30000", **more)


def ref(uid: str, boot: str = "1") -> ProxyRef:
    return ProxyRef(uid=uid, boot=boot)
