"""Runs the fleet core on an event loop.

Events go in one at a time, and their commands are carried out before the next event; what takes time
runs as a task and comes back as an event. The order of events is the only order there is.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

from steersman.clock import Clock
from steersman.errors import SteersmanError
from steersman.table import Epoch
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
    Event,
    InFlight,
    LoadSeen,
    Nacked,
    Observed,
    ProxyHeard,
    ProxyJoined,
    ProxyLost,
    ProxyRef,
    Published,
    Stored,
    Suspected,
    Tick,
)
from steersman_operator.fleet.facts import Observation, Outcome
from steersman_operator.fleet.state import State, Timing
from steersman_operator.fleet.step import step
from steersman_operator.shell.observer import ShellObserver
from steersman_operator.shell.ports import (
    EngineCaller,
    EventRecorder,
    IntentStore,
    TablePublisher,
)
from steersman_operator.shell.publishing import is_awaited

_log = logging.getLogger("steersman.fleet")

BUSY_TICK = 0.1
"""Seconds between ticks while an operation is under way."""

REST_TICK = 0.5

LOOK_TICK = 0.2
"""So much sooner, if engines are to be looked at: their turns are spread out, and are taken so."""


class FleetShell:
    """The core, its state, and the hands that it has.

    Also the listener of the control socket: what proxies say becomes events.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        engines: EngineCaller,
        store: IntentStore,
        timing: Timing,
        observer: ShellObserver | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        self.state = State()
        self.timing = timing
        self.publisher: TablePublisher | None = None
        """Set before the first event that publishes."""
        self.on_change: list[Callable[[], None]] = []
        """Called after each event that changed the state."""
        self.on_later_term: Callable[[int], None] | None = None
        """Called with a term that a proxy follows and that is later than ours. Whoever can get a
        still later one then feeds :class:`~steersman_operator.fleet.events.Elected`."""
        self.peers: Callable[[], Sequence[str]] | None = None
        """Where the other proxies are, by the platform's account; each table names them."""
        self._clock = clock
        self._engines = engines
        self._store = store
        self._observer = observer or ShellObserver()
        self._recorder = recorder
        self._queue: deque[Event] = deque()
        self._running = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to tick; needs the running loop."""
        self._ticker = asyncio.create_task(self._tick(), name="fleet tick")

    async def close(self) -> None:
        """Stop. Calls under way are left to end as they end; the next leader looks."""
        tasks = [*self._tasks]
        if self._ticker is not None:
            tasks.append(self._ticker)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._until_tick())
            self.feed(Tick(now=self.now))

    def _until_tick(self) -> float:
        state = self.state
        if not state.leading:
            return REST_TICK
        busy = any(engine.op is not None for engine in state.engines.values())
        longest = BUSY_TICK if busy or not state.published else REST_TICK
        return min(longest, max(LOOK_TICK, state.look_due - self.now))

    @property
    def now(self) -> float:
        """The time that events carry."""
        return self._clock.now()

    # --- events -----------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let something have happened."""
        self._queue.append(event)
        if self._running:
            return  # from a command of the event before; its turn comes
        self._running = True
        try:
            while self._queue:
                self._step(self._queue.popleft())
        finally:
            self._running = False

    def _step(self, event: Event) -> None:
        if self._recorder is not None:
            self._recorder.record(event)
        before = self.state
        self.state, commands = step(before, event, timing=self.timing)
        self._observer.stepped(before, self.state, event, commands)
        for command in commands:
            self._carry_out(command)
        if self.state is not before:
            for hook in self.on_change:
                hook()

    # --- what proxies say (ControlListener) -------------------------------------------------------

    def joined(self, ref: ProxyRef) -> None:
        """A proxy has said hello."""
        self.feed(ProxyJoined(now=self.now, proxy=ref))

    def heard(self, ref: ProxyRef) -> None:
        """A proxy has answered."""
        self.feed(ProxyHeard(now=self.now, proxy=ref))

    def lost(self, ref: ProxyRef) -> None:
        """A proxy's connection is gone."""
        self.feed(ProxyLost(now=self.now, proxy=ref))

    def acked(self, ref: ProxyRef, epoch: Epoch) -> None:
        """A proxy has applied a table."""
        self.feed(Acked(now=self.now, proxy=ref, epoch=epoch))

    def nacked(self, ref: ProxyRef, epoch: Epoch, detail: str) -> None:
        """A proxy has refused a table."""
        _log.error("proxy %s refused table %s: %s", ref.uid, epoch, detail)
        self.feed(Nacked(now=self.now, proxy=ref, epoch=epoch, detail=detail))

    def in_flight(self, ref: ProxyRef, epoch: Epoch, counts: dict[str, int]) -> None:
        """A proxy has said what it has running."""
        self.feed(InFlight(now=self.now, proxy=ref, epoch=epoch, counts=counts))

    def observed_by_proxy(self, ref: ProxyRef, engine: str, kind: str, sample: str) -> None:
        """A proxy has seen something odd of an engine; advisory."""
        _log.info("proxy %s saw %s of engine %s: %s", ref.uid, kind, engine, sample)

    def seen(self, ref: ProxyRef, engine: str, version: str | None) -> None:
        """An engine has told a proxy's client another version than the table says."""
        _log.info("proxy %s saw version %s of engine %s", ref.uid, version, engine)
        self.feed(Suspected(now=self.now, engine=engine, version=version))

    # --- what a trainer says ----------------------------------------------------------------------

    async def publish(self, pool: str, version: str) -> None:
        """Take it that the trainer has transferred a version to the engines of a pool.

        Returns once the core knows; that engines open with it comes later. Does nothing if all engines
        have it already.

        :raises NotAwaiting: if none of them waits for it.
        """
        if is_awaited(self.state, pool, version):
            self.feed(Published(now=self.now, pool=pool, version=version))

    def max_term_seen(self, term: int) -> None:
        """A proxy follows a later leader than this one."""
        if term <= self.state.term:
            return
        _log.warning("a proxy follows term %d, this operator has %d", term, self.state.term)
        if self.on_later_term is not None:
            self.on_later_term(term)

    # --- commands ---------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Publish(table=table, urgent=urgent):
                if self.publisher is not None:
                    peers = () if self.peers is None else self.peers()
                    self.publisher.publish(table, urgent=urgent, peers=peers)
            case Watch(engines=engines):
                if self.publisher is not None:
                    self.publisher.watch(engines)
            case CutRequests(engine=engine, reason=reason):
                if self.publisher is not None:
                    self.publisher.cut(engine, reason)
            case Note():
                self._note(command)
            case Look():
                self._spawn(self._look(command, self._look_began(command.engine)))
            case AskLoad():
                asked = self.state.engines[command.engine].asking_load
                self._spawn(self._ask_load(command, self.now if asked is None else asked))
            case Store():
                self._spawn(self._write(command))
            case Forget():
                self._spawn(self._forget(command))
            case Call():
                self._spawn(self._call(command))

    def _look_began(self, engine: str) -> float:
        """When the look that was just commanded began, in the core's words."""
        looking = self.state.engines[engine].looking
        return self.now if looking is None else looking

    def _note(self, note: Note) -> None:
        level = logging.WARNING if note.warning else logging.INFO
        where = note.engine or note.pool or "fleet"
        _log.log(level, "%s %s: %s", where, note.reason, note.message)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, command: Look, asked: float) -> None:
        try:
            seen = await self._engines.look(command)
        except SteersmanError as error:
            seen = Observation(reachable=False, detail=str(error))
        self.feed(Observed(now=self.now, engine=command.engine, asked=asked, seen=seen))

    async def _ask_load(self, command: AskLoad, asked: float) -> None:
        busy: int | None = None
        with contextlib.suppress(SteersmanError):
            busy = await self._engines.ask_load(command)
        self.feed(LoadSeen(now=self.now, engine=command.engine, asked=asked, busy=busy))

    async def _call(self, command: Call) -> None:
        try:
            result = await self._engines.perform(command)
            outcome, detail = result.outcome, result.detail
        except SteersmanError as error:
            outcome, detail = Outcome.UNKNOWN, str(error)
        self.feed(
            CallEnded(
                now=self.now,
                engine=command.engine,
                number=command.number,
                outcome=outcome,
                detail=detail,
            )
        )

    async def _write(self, command: Store) -> None:
        ok, detail = True, ""
        try:
            # Tasks begin in the order of their commands, and the store keeps it.
            await self._store.write(command.record)
        except (SteersmanError, OSError) as error:
            ok, detail = False, str(error)
        self.feed(
            Stored(
                now=self.now,
                engine=command.record.engine,
                number=command.number,
                ok=ok,
                detail=detail,
            )
        )

    async def _forget(self, command: Forget) -> None:
        try:
            await self._store.forget(command.engine)
        except (SteersmanError, OSError) as error:
            _log.warning("the record of engine %s could not be removed: %s", command.engine, error)
