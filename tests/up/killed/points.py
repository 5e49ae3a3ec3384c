"""The points of an operation at which an operator is killed, from the first step to the last.

``decided`` is right after a step of the core, before any of its commands is carried out; ``done``
right after they were handed out; ``event`` before something that has happened is told to the core. At
the other points the engine is in the middle of the call, or the trainer has its turn, and whoever runs
the test kills.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from steersman.engine import Control
from steersman_operator.fleet.commands import Call, Command
from steersman_operator.fleet.events import (
    Acked,
    CallEnded,
    Event,
    LoadSeen,
    Observed,
    Stored,
)
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.state import EngineState, Phase, State


class Point(Enum):
    """Where the operator is killed; the words say what was left undone."""

    CLOSING = "the gate is closed, and no table says so"
    PUBLISHED = "the table that closes the gate is on its way, and nobody has acknowledged it"
    ACKNOWLEDGED = "one proxy has acknowledged it"
    DRAINED = "all proxies have let go, and the engine has said that it is idle"
    CLAIMING = "the intent is not on disk"
    WRITTEN = "the intent is on disk, and nobody knows"
    CALLING = "the call is decided, and not made"
    RECEIVED = "the engine has the call, and never carries it out"
    RUNNING = "the engine is carrying it out, and ends after the operator"
    CARRIED_OUT = "the engine has done it, and its answer is lost"
    AWAITING = "the trainer has its turn, and has not said that it is done"
    ANSWERED = "the engine has answered, and nobody has noted it"
    VERIFYING = "the engine was looked at, and nobody has noted it"
    OPENING = "the operation has ended, and no table and no record says so"
    RECORDED = "the record says so, and nobody knows"


BEFORE_THE_CALL = (
    Point.CLOSING,
    Point.PUBLISHED,
    Point.ACKNOWLEDGED,
    Point.DRAINED,
)
"""Only of operations that close a gate."""

DURING_THE_CALL = (Point.RECEIVED, Point.RUNNING, Point.CARRIED_OUT)
"""Told by the engine, not by the operator."""


class Watch:
    """Follows one engine on its way to a goal, and says when a point is reached."""

    def __init__(self, point: Point, *, engine: str, goal: Control, call: CallKind) -> None:
        self._point = point
        self._engine = engine
        self._goal = goal
        self._call = call
        self._published = False

    def event(self, state: State, event: Event) -> bool:
        """Whether this is the point, before ``event`` is told."""
        engine = state.engines.get(self._engine)
        if engine is None or getattr(event, "engine", self._engine) != self._engine:
            return False
        match self._point, event:
            case Point.ACKNOWLEDGED, Acked(epoch=epoch):
                closed = engine.closed_at
                return self._in(engine, Phase.DRAINING) and closed is not None and epoch >= closed
            case Point.DRAINED, LoadSeen():
                return self._in(engine, Phase.DRAINING)
            case Point.WRITTEN, Stored(number=number):
                return self._at_call(engine, Phase.CLAIMING) and number == engine.stored_as
            case Point.ANSWERED, CallEnded():
                return self._at_call(engine, Phase.EXECUTING)
            case Point.VERIFYING, Observed():
                return self._at_call(engine, Phase.VERIFYING)
            case Point.RECORDED, Stored(number=number):
                ended = engine.op is None and engine.settled is self._goal
                return ended and number == engine.stored_as
        return False

    def decided(self, before: State, after: State, commands: Sequence[Command]) -> bool:
        """Whether this is the point, before the commands of a step are carried out."""
        was, now = before.engines.get(self._engine), after.engines.get(self._engine)
        match self._point:
            case Point.CLOSING:
                return self._in(now) and not self._in(was)
            case Point.PUBLISHED:
                self._published = self._in(now) and not self._in(was)
            case Point.CLAIMING:
                return self._at_call(now, Phase.CLAIMING) and not self._at_call(was, Phase.CLAIMING)
            case Point.CALLING:
                made = any(isinstance(one, Call) and one.engine == self._engine for one in commands)
                return made and self._at_call(now, Phase.EXECUTING)
            case Point.OPENING:
                return self._in(was) and not self._in(now)
        return False

    def done(self) -> bool:
        """Whether this is the point, after the commands of the step were handed out."""
        return self._published

    def _in(self, engine: EngineState | None, phase: Phase | None = None) -> bool:
        """Whether the engine is on its way to the goal, in a phase."""
        operation = None if engine is None else engine.op
        return (
            operation is not None
            and operation.goal is self._goal
            and phase in (None, operation.phase)
        )

    def _at_call(self, engine: EngineState | None, phase: Phase) -> bool:
        """The same, and it is about the call."""
        if not self._in(engine, phase):
            return False
        assert engine is not None and engine.op is not None
        return engine.op.call is self._call


def install(
    watch: Watch, shell: type[Any], observer: type[Any], *, die: Callable[[], None]
) -> None:
    """Make a shell of this process call ``die`` at the point."""
    step, stepped = shell._step, observer.stepped

    def watched_step(self: Any, event: Event) -> None:
        if watch.event(self.state, event):
            die()
        step(self, event)
        if watch.done():
            die()

    def watched_stepped(
        self: Any, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        stepped(self, before, after, event, commands)
        if watch.decided(before, after, commands):
            die()

    shell._step, observer.stepped = watched_step, watched_stepped
