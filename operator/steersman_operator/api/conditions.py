"""The conditions of a pool: few, truthful, and made for ``wait``."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from steersman.engine import Trust
from steersman_operator.fleet.goals import effective_goal
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, Phase


class ConditionType(StrEnum):
    """The names, as on a RolloutEngine."""

    READY = "Ready"
    """Every engine is in the state that is asked for, and can be reached."""
    PROGRESSING = "Progressing"
    """Some engine is on its way."""
    DEGRADED = "Degraded"
    """Some engine cannot be brought to where it should be, or cannot be reached."""
    EXTERNALLY_CONTROLLED = "ExternallyControlled"
    """Somebody else has changed the state of an engine."""
    UNSYNCED = "Unsynced"
    """Some engine has not shown the pool's version."""
    REMOVAL_HELD_BACK = "RemovalHeldBack"
    """Most of the engines would go at once; they are kept for a while."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition; ``status`` is ``True`` or ``False``, as in Kubernetes."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


def settled(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether an engine is where the spec wants it."""
    goal = pool.goal(engine.spec.id)
    return engine.op is None and engine.facts.control is goal and engine.settled is goal


def phase_of(engine: EngineState, pool: PoolSpec) -> str:
    """The word for where an engine stands."""
    if engine.op is not None:
        return engine.op.phase.value
    if not engine.known:
        return "Unknown"
    if not engine.reachable:
        return "Unreachable"
    if engine.given_up is not None and effective_goal(engine, pool) is not pool.goal(
        engine.spec.id
    ):
        return "GivenUp"
    if engine.external:
        return "External"
    return "Settled" if settled(engine, pool) else Phase.CLOSING.value


def conditions_of(
    pool: PoolSpec, engines: Sequence[EngineState], *, fleet_max: str | None
) -> list[Condition]:
    """All conditions of a pool, always in the same order."""
    moving = [engine for engine in engines if engine.op is not None]
    lost = [engine for engine in engines if engine.known and not engine.reachable]
    stuck = [engine for engine in engines if engine.problem and engine.op is None]
    external = [engine for engine in engines if engine.external]
    unsynced = [
        engine
        for engine in engines
        if fleet_max is not None and engine.known and engine.trust is not Trust.VERIFIED
    ]
    leaving = [engine for engine in engines if engine.leaving]
    unready = [engine for engine in engines if not settled(engine, pool) or not engine.reachable]
    bad = list(dict.fromkeys((*lost, *stuck)))
    return [
        _condition(ConditionType.READY, not unready and bool(engines), unready or [], "Settled"),
        _condition(ConditionType.PROGRESSING, bool(moving), moving, "Operation"),
        _condition(ConditionType.DEGRADED, bool(bad), bad, "EnginesInTrouble"),
        _condition(ConditionType.EXTERNALLY_CONTROLLED, bool(external), external, "Drift"),
        _condition(ConditionType.UNSYNCED, bool(unsynced), unsynced, "VersionNotShown"),
        _condition(ConditionType.REMOVAL_HELD_BACK, bool(leaving), leaving, "Brake"),
    ]


def _condition(
    kind: ConditionType, true: bool, engines: Sequence[EngineState], reason: str
) -> Condition:
    parts = []
    for engine in engines[:5]:
        why = engine.problem or (engine.op.phase.value if engine.op is not None else "")
        parts.append(f"{engine.spec.id}: {why}" if why else engine.spec.id)
    if len(engines) > len(parts):
        parts.append(f"and {len(engines) - len(parts)} more")
    return Condition(
        type=kind.value,
        status="True" if true else "False",
        reason=reason if true or engines else "",
        message="; ".join(parts),
    )
