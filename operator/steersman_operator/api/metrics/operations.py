"""Operations: how many began, how each ended, and how long they stood in which phase.

Made from the states before and after a step, and from the notes of the step: only they tell of an
operation that began and ended within it.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

import msgspec
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from steersman.engine import Control
from steersman_operator.api.metrics.instruments import Instruments
from steersman_operator.api.metrics.tally import PREFIX, Tally
from steersman_operator.fleet.events import CallEnded, Deposed, Elected, Event
from steersman_operator.fleet.facts import CallKind, Facts, Outcome
from steersman_operator.fleet.state import EngineState, Phase


class Ending(StrEnum):
    """How an operation ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    """It was not wanted any more, and the engine had not been touched."""
    RETARGETED = "retargeted"
    """Something else was wanted; an operation of another kind went on from there."""
    TIMED_OUT = "timed_out"
    """Not drained in time, or the intent could not be written in that time. Not touched."""
    REFUSED = "refused"
    """The engine said no."""
    FAILED = "failed"
    """The engine said yes, or failed, and was seen not to have done it, again and again."""
    UNKNOWN = "unknown"
    """What the engine is now cannot be found out."""
    RESTARTED = "restarted"
    """Another process answers at the engine's address."""
    REMOVED = "removed"
    """The engine was taken out of the pool, or is at another address now."""
    DEPOSED = "deposed"
    """This operator does not lead any more; the next leader sees to it."""


class Running(msgspec.Struct):
    """One operation under way."""

    pool: str
    kind: CallKind
    goal: Control
    began: float
    phase: Phase | None = None
    """``None`` until the step in which it began is over."""
    since: float = 0.0
    """When it came into the phase."""


class OperationTally:
    """Follows the operations of all engines."""

    def __init__(self, instruments: Instruments) -> None:
        self.running: dict[str, Running] = {}
        """By engine."""
        self._instruments = instruments
        self._started = Tally(
            "operations_started",
            "Operations that began, those taken over from a leader before included.",
            "pool",
            "kind",
        )
        self._finished = Tally(
            "operations_finished", "Operations that ended, by how.", "pool", "kind", "outcome"
        )

    def changed(
        self,
        name: str,
        old: EngineState | None,
        new: EngineState | None,
        *,
        event: Event,
        notes: Sequence[str],
        now: float,
    ) -> None:
        """An engine came, went, or is another one than before the step; ``notes`` are the reasons."""
        running = self.running.get(name)
        if new is None:
            self._end(name, Ending.REMOVED, now=now)
            return
        if old is None or isinstance(event, Elected | Deposed):
            self._end(name, Ending.DEPOSED, now=now)
        elif old.spec.url != new.spec.url:
            self._end(name, Ending.REMOVED, now=now)
        elif running is not None and running.pool != new.pool:
            # It goes on, as an operation of the other pool.
            self._end(name, Ending.REMOVED, now=now)
            self._begin(name, running.goal, new, now=now)
        for note in notes:
            self._noted(name, note, old, new, event=event, now=now)
        operation, running = new.op, self.running.get(name)
        if operation is None:
            # Every end is noted, except for those that were seen above.
            self._end(name, Ending.UNKNOWN, now=now)
            return
        if running is None:
            running = self._begin(name, operation.goal, new, now=now)
        self._aim(name, operation.goal, new)
        if running.phase is not operation.phase:
            self._leave_phase(running, now=now)
            running.phase, running.since = operation.phase, now

    def _noted(
        self,
        name: str,
        note: str,
        old: EngineState | None,
        new: EngineState,
        *,
        event: Event,
        now: float,
    ) -> None:
        # Whatever begins or ends within one step has the goal that the engine had then.
        goal = new.settled if new.op is None else new.op.goal
        match note:
            case "Closing":
                self._begin(name, goal, new, now=now)
            case "Retargeted":
                self._aim(name, goal, new)
            case "Settled":
                self._aim(name, new.settled, new)
                self._end(name, Ending.DONE, now=now)
            case "Cancelled":
                self._end(name, Ending.CANCELLED, now=now)
            case "Restarted":
                self._end(name, Ending.RESTARTED, now=now)
            case "GivenUp":
                if new.given_up is not None and (old is None or new.given_up != old.given_up):
                    self._aim(name, new.given_up[0], new)
                self._end(name, self._why_given_up(name, new, event=event), now=now)
            case _:
                pass

    def _why_given_up(self, name: str, engine: EngineState, *, event: Event) -> Ending:
        running = self.running.get(name)
        phase = None if running is None else running.phase
        if phase not in (Phase.EXECUTING, Phase.VERIFYING):
            return Ending.TIMED_OUT
        if isinstance(event, CallEnded) and event.outcome is Outcome.REFUSED:
            return Ending.REFUSED
        if not engine.reachable or engine.facts.released is None:
            return Ending.UNKNOWN
        return Ending.FAILED

    # --- counting ---------------------------------------------------------------------------------

    def _begin(self, name: str, goal: Control, engine: EngineState, *, now: float) -> Running:
        kind = kind_of(goal, engine.facts)
        running = Running(pool=engine.pool, kind=kind, goal=goal, began=now, since=now)
        self.running[name] = running
        self._started.add(running.pool, kind.value)
        return running

    def _end(self, name: str, ending: Ending, *, now: float) -> None:
        running = self.running.pop(name, None)
        if running is None:
            return
        self._leave_phase(running, now=now)
        self._finished.add(running.pool, running.kind.value, ending.value)
        if ending is Ending.DONE:
            self._instruments.operation.labels(running.kind.value).observe(now - running.began)

    def _aim(self, name: str, goal: Control, engine: EngineState) -> None:
        """One operation ends and another goes on, in the phase in which the engine is."""
        running = self.running.get(name)
        if running is None or running.goal is goal:
            return
        self._finished.add(running.pool, running.kind.value, Ending.RETARGETED.value)
        running.goal, running.kind = goal, kind_of(goal, engine.facts)
        self._started.add(running.pool, running.kind.value)

    def _leave_phase(self, running: Running, *, now: float) -> None:
        if running.phase is not None:
            series = self._instruments.phase.labels(running.phase.value)
            series.observe(max(0.0, now - running.since))

    # --- reading ----------------------------------------------------------------------------------

    def keep(self, pools: Collection[str]) -> None:
        """Forget the pools that are not among these."""
        self._started.keep(pools)
        self._finished.keep(pools)

    def metrics(self, pools: Collection[str], *, now: float) -> Iterator[Metric]:
        """All series of the pools that there are."""
        kinds = [(pool, kind.value) for pool in pools for kind in CallKind]
        yield self._started.family(kinds)
        yield self._finished.family((*kind, ending.value) for kind in kinds for ending in Ending)
        under_way = dict.fromkeys(kinds, 0)
        oldest = {(pool, phase.value): 0.0 for pool in pools for phase in STAYS}
        for running in self.running.values():
            under_way[running.pool, running.kind.value] += 1
            if running.phase is not None:
                key = running.pool, running.phase.value
                oldest[key] = max(oldest[key], now - running.since)
        gauge = GaugeMetricFamily(
            PREFIX + "operations_under_way",
            "Operations that have begun and not ended.",
            labels=("pool", "kind"),
        )
        for labels, count in under_way.items():
            gauge.add_metric(labels, count)
        yield gauge
        gauge = GaugeMetricFamily(
            PREFIX + "phase_oldest_seconds",
            "How long the engine that has been in a phase for longest has been there; 0 if none is.",
            labels=("pool", "phase"),
        )
        for labels, seconds in oldest.items():
            gauge.add_metric(labels, seconds)
        yield gauge


STAYS = (Phase.DRAINING, Phase.CLAIMING, Phase.EXECUTING, Phase.VERIFYING)
"""The phases that last. Closing does not: the table that closes the gate goes out at once."""


def kind_of(goal: Control, facts: Facts) -> CallKind:
    """The word for an operation towards ``goal`` from what is known of the engine."""
    match goal:
        case Control.PAUSED:
            return CallKind.PAUSE
        case Control.ASLEEP:
            return CallKind.SLEEP
        case Control.ACTIVE:
            # It is awake only if that is certain.
            return CallKind.RESUME if facts.released == () else CallKind.WAKE
