"""What is done with which engine, and when: a plan without I/O.

In short: one engine is refitted, so that requests with ``latest-only`` may go only there; that very
engine is paused, so that they are held; another one sleeps and wakes with the weights that it had;
then the rest are refitted, too.
"""

from enum import StrEnum

import msgspec


class Action(StrEnum):
    """What is done with an engine. Each begins by closing its gate and ends by opening it."""

    REFIT = "refit"
    """Paused, given new weights by the trainer, and resumed."""
    PAUSE = "pause"
    """Paused for a while."""
    SLEEP = "sleep"
    """Its memory is given up for a while."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one engine."""

    action: Action
    engine: int
    """Position in the manifest."""
    at: float
    """Seconds from the begin of the traffic; later if the step before is not done."""
    stay: float = 0.0
    """Seconds that the engine stays paused or asleep."""


REFIT_AT, PAUSE_AT, SLEEP_AT, REST_AT = 0.09, 0.28, 0.50, 0.72
"""When the steps begin, as shares of the duration."""
PAUSE_FOR, SLEEP_FOR = 0.12, 0.08
LOAD_FOR = 0.045
"""How long an engine loads new weights."""
_REST_WITHIN = 0.24
"""In which share of the duration the remaining engines begin their refit, one after the other."""


def plan(*, engines: int, duration: float) -> list[Step]:
    """The steps of a run over ``engines`` engines (at least 2)."""
    steps = [
        Step(action=Action.REFIT, engine=0, at=REFIT_AT * duration),
        Step(action=Action.PAUSE, engine=0, at=PAUSE_AT * duration, stay=PAUSE_FOR * duration),
        Step(action=Action.SLEEP, engine=1, at=SLEEP_AT * duration, stay=SLEEP_FOR * duration),
    ]
    rest = range(1, engines)
    return steps + [
        Step(
            action=Action.REFIT,
            engine=engine,
            at=(REST_AT + _REST_WITHIN * position / len(rest)) * duration,
        )
        for position, engine in enumerate(rest)
    ]
