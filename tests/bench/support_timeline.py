"""When an engine's gate closed and opened for an operation, and what happened in between."""

import time
from collections.abc import Sequence

import msgspec

from steersman.table import Epoch, Table
from steersman_operator.fleet.commands import Command, Publish
from steersman_operator.fleet.events import Acked, Event
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.state import EngineState, Phase, State
from steersman_operator.shell.observer import ShellObserver

PARTS = (
    "acks",
    "drain",
    "intents",
    "pause",
    "load",
    "resume",
    "looks",
    "between",
    "opening",
)


class Refit(msgspec.Struct, kw_only=True):
    """One engine on its way; seconds on the monotonic clock, which all processes share."""

    engine: str
    closed: float
    """When the table that closes its gate was handed to the control server."""
    closing: Epoch
    holding: set[str]
    """Proxies that have not acknowledged it."""
    drained: float = 0.0
    """When its first intent was about to be written."""
    opened: float = 0.0
    """When the table that opens it was handed over."""
    opening: Epoch | None = None
    ended: float = 0.0
    """When the last proxy had acknowledged that one."""
    spent: dict[str, float] = {}
    """Seconds, by the part."""
    part: str = "acks"
    since: float = 0.0
    own_load: float = 0.0
    own_requests: float = 0.0

    def enter(self, part: str, *, now: float) -> None:
        """Whatever it was at is over."""
        if part == self.part:
            return
        self.spent[self.part] = self.spent.get(self.part, 0.0) + now - self.since
        self.part, self.since = part, now
        if part == "intents" and not self.drained:
            self.drained = now

    def take_own(self, *, load: float, busy_until: float) -> None:
        """Tell the engine's own time from that of all others."""
        self.own_load = load
        # As long as a proxy may send to it, the requests that it has do not count.
        drain = self.spent.get("drain", 0.0)
        all_let_go = self.closed + self.spent.get("acks", 0.0)
        self.own_requests = min(drain, max(0.0, busy_until - all_let_go))
        self.spent["load"] -= load
        self.spent["drain"] = drain - self.own_requests

    @property
    def overhead(self) -> float:
        """Seconds without the engine's own."""
        return self.ended - self.closed - self.own_load - self.own_requests

    @property
    def until_published(self) -> float:
        """The same until the gate was open in the operator's table."""
        return self.overhead - (self.ended - self.opened)


class Timeline(ShellObserver):
    """Follows each engine from the table that closes it to the one that opens it."""

    def __init__(self) -> None:
        self.running: dict[str, Refit] = {}
        self._done: list[Refit] = []
        self._open: dict[str, bool] = {}

    def taken(self) -> list[Refit]:
        """What has ended since the last time."""
        done, self._done = self._done, []
        return done

    def stepped(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        now = time.monotonic()
        if isinstance(event, Acked):
            self._acked(event.proxy.uid, event.epoch, now=now)
        for command in commands:
            if isinstance(command, Publish):
                self._published(command.table, proxies=set(after.proxies), now=now)
        for name, refit in self.running.items():
            refit.enter(_part(refit, after.engines[name]), now=now)

    def _published(self, table: Table, *, proxies: set[str], now: float) -> None:
        for row in table.engines:
            was, self._open[row.id] = self._open.get(row.id), row.gate.open
            refit = self.running.get(row.id)
            if was and not row.gate.open:
                # One that had not ended yet: some proxy never came to open it.
                self.running[row.id] = Refit(
                    engine=row.id, closed=now, closing=table.epoch, holding=proxies, since=now
                )
            elif was is False and row.gate.open and refit is not None:
                refit.opened, refit.opening, refit.holding = now, table.epoch, set(proxies)

    def _acked(self, proxy: str, epoch: Epoch, *, now: float) -> None:
        for name, refit in list(self.running.items()):
            if epoch < (refit.closing if refit.opening is None else refit.opening):
                continue
            refit.holding.discard(proxy)
            if refit.opening is not None and not refit.holding:
                refit.enter("", now=now)
                refit.ended = now
                self._done.append(self.running.pop(name))


def _part(refit: Refit, engine: EngineState) -> str:
    operation = engine.op
    if operation is None:
        return "opening"
    match operation.phase:
        case Phase.CLAIMING:
            return "intents"
        case Phase.EXECUTING:
            call = operation.call
            return "load" if call is CallKind.REFIT else call.value if call else "between"
        case Phase.VERIFYING:
            return "looks"
        case _ if operation.disturbed:
            return "between"
        case _:
            return "acks" if refit.holding else "drain"
