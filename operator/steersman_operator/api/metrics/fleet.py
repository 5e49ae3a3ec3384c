"""What the operator counts, and how the counts are read.

What is told of each step is counted; everything that is a state rather than an event is read when a
scrape comes. A step changes few engines, and which they are is found by identity: hundreds of steps a
second must not cost what hundreds of scrapes would.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import is_not
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from steersman.clock import Clock
from steersman_operator.api.metrics.acks import Acks
from steersman_operator.api.metrics.calls import CallTally
from steersman_operator.api.metrics.control import control_metrics
from steersman_operator.api.metrics.gates import GateTally
from steersman_operator.api.metrics.instruments import Instruments
from steersman_operator.api.metrics.operations import OperationTally
from steersman_operator.api.metrics.state import state_metrics
from steersman_operator.api.metrics.tally import Tally
from steersman_operator.control.stats import ControlStats
from steersman_operator.fleet.commands import Call, Command, Look, Note, Publish, Store
from steersman_operator.fleet.events import Acked, CallEnded, Event, ProxyJoined, Stored
from steersman_operator.fleet.state import EngineState, State
from steersman_operator.shell.observer import ShellObserver

_log = logging.getLogger("steersman.metrics")

NO_NOTES: Sequence[str] = ()


class FleetMetrics(ShellObserver):
    """The metrics of one operator process; the observer of its shell. ``clock`` is the shell's."""

    def __init__(self, *, clock: Clock) -> None:
        self.faults = 0
        """Steps that could not be counted."""
        self.registry = CollectorRegistry()
        self._clock = clock
        self._state: Callable[[], State] = State
        self._control: Callable[[], ControlStats] | None = None
        instruments = Instruments(self.registry)
        self._operations = OperationTally(instruments)
        self._gates = GateTally()
        self._acks = Acks(instruments)
        self._calls = CallTally(instruments)
        self._steps: dict[type[Event], int] = {}
        self._looks = Tally("looks", "Looks at engines that were begun.", "pool")
        self._looks_failed = Tally("looks_failed", "Looks that found nobody.", "pool")
        self._writes = Tally("store_writes", "Durable records that were sent to the store.")
        self._failures = Tally("store_failures", "Durable records that could not be written.")
        self._brakes = Tally(
            "brake_engages", "Times that the removal of most of the engines was held back."
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_Scrape(self._collect))

    def watch(
        self, state: Callable[[], State], control: Callable[[], ControlStats] | None = None
    ) -> None:
        """Say where the state of the core and the statistics of the control socket are read.

        Without a control socket its series are left out.
        """
        self._state, self._control = state, control

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """All series as text and its content type, in the format that ``accept`` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    # --- each step --------------------------------------------------------------------------------

    def stepped(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        """One event has led from one state to the next."""
        try:
            self._count(before, after, event, commands)
        except Exception:  # noqa: BLE001 - see below
            # The commands of this very step come next; no count is worth an operator that stops.
            if not self.faults:
                _log.exception("a fault at counting; the metrics are wrong from here on")
            self.faults += 1

    def _count(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        kind = type(event)
        self._steps[kind] = self._steps.get(kind, 0) + 1
        notes = self._commanded(after, commands) if commands else {}
        olds, news = before.engines, after.engines
        if news is not olds:
            # Whoever changed is another object than any before, so that positions may be compared.
            known = olds.values() if len(olds) == len(news) else map(olds.get, news)
            for name in compress(news, map(is_not, news.values(), known)):
                self._changed(
                    name, olds.get(name), news[name], event, notes.get(name, NO_NOTES), after.now
                )
            if after.pools is not before.pools or len(news) != len(olds):
                for name in olds.keys() - news.keys():
                    self._changed(name, olds[name], None, event, NO_NOTES, after.now)
        match event:
            case Acked(proxy=ref):
                uid = ref.uid
                self._acks.acked(before.proxies.get(uid), after.proxies.get(uid), now=after.now)
            case ProxyJoined(proxy=ref):
                self._acks.joined(ref.uid, known=after.proxies, now=after.now)
            case CallEnded():
                self._calls.ended(event, now=after.now)
            case Stored(ok=False):
                self._failures.add()
            case _:
                pass
        if after.brake_until is not None and after.brake_until != before.brake_until:
            self._brakes.add()
        if after.pools is not before.pools:
            self._keep(after)

    def _commanded(self, after: State, commands: Sequence[Command]) -> dict[str, list[str]]:
        """Count what is to be done; returns the reasons of the notes, in order, by engine."""
        notes: dict[str, list[str]] = {}
        for command in commands:
            match command:
                case Note(engine=str() as name, reason=reason):
                    notes.setdefault(name, []).append(reason)
                case Look(engine=name):
                    self._looks.add(after.engines[name].pool)
                case Publish(table=table):
                    self._acks.published(table.epoch, now=after.now)
                case Call():
                    self._calls.began(command, now=after.now)
                case Store():
                    self._writes.add()
                case _:
                    pass
        return notes

    def _changed(
        self,
        name: str,
        old: EngineState | None,
        new: EngineState | None,
        event: Event,
        notes: Sequence[str],
        now: float,
    ) -> None:
        if old is new:
            return  # it has another place in the table
        if old is None or new is None or old.pool != new.pool:
            same_operation = same_gate = False
        else:
            same_operation = old.op is new.op and not notes
            same_gate = old.gate is new.gate
            if new.misses > old.misses:
                self._looks_failed.add(new.pool)
        if not same_operation:
            self._operations.changed(name, old, new, event=event, notes=notes, now=now)
        if not same_gate:
            self._gates.changed(old, new, event=event, notes=notes)

    def _keep(self, after: State) -> None:
        for tally in (self._operations, self._gates, self._looks, self._looks_failed):
            tally.keep(after.pools)

    # --- each scrape ------------------------------------------------------------------------------

    def _collect(self) -> Iterator[Metric]:
        state, now = self._state(), self._clock.now()
        pools = state.pools
        yield from state_metrics(state, now=now)
        yield from self._acks.metrics(state, now=now)
        yield from self._operations.metrics(pools, now=now)
        yield from self._gates.metrics(pools)
        yield from self._calls.metrics()
        yield self._looks.family((pool,) for pool in pools)
        yield self._looks_failed.family((pool,) for pool in pools)
        for tally in (self._writes, self._failures, self._brakes):
            yield tally.family([()])
        events = Tally("events", "Events that the core has taken in, by kind.", "event")
        for kind, count in self._steps.items():
            events.add(kind.__name__, by=count)
        yield events.family((kind.__name__,) for kind in get_args(Event))
        if self._control is not None:
            yield from control_metrics(self._control())


class _Scrape(Collector):
    """Makes a scrape ask for what is."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        """All series that are no histograms."""
        return self._collect()
