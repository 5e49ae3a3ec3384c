"""Whether an engine may be disturbed now."""

from steersman.engine import Control
from steersman_operator.fleet.barrier import Barrier, barrier
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import CallKind, next_call
from steersman_operator.fleet.spec import PoolSpec, RolloutMode
from steersman_operator.fleet.state import EngineState, Operation, Timing

_HARMLESS = (CallKind.WAKE, CallKind.RESUME, CallKind.LABEL)


def barrier_of(draft: Draft, engine: EngineState) -> Barrier:
    """Where the barrier of an engine stands in this step."""
    return barrier(
        engine,
        proxies=draft.proxies,
        on_unreachable=draft.pool_of(engine).on_unreachable,
        now=draft.now,
        since=draft.state.elected_at,
        timing=draft.timing,
    )


def needs_clear(operation: Operation, pool: PoolSpec) -> bool:
    """Whether nothing may be in flight when the engine is called."""
    if operation.goal is Control.ASLEEP:
        return True
    return pool.mode is RolloutMode.QUIESCE and not operation.in_flight_allowed


def idle_enough(operation: Operation, *, timing: Timing) -> bool:
    """Whether the engine has said often enough that it is idle since the barrier holds."""
    seen = operation.idle_seen
    if operation.goal is Control.ASLEEP:
        return len(seen) >= 2 and seen[-1] - seen[0] >= timing.idle_gap
    return bool(seen)


def disturbs_nobody(engine: EngineState, operation: Operation) -> bool:
    """Whether what comes next can hurt no request: opening, and giving memory back.

    The gate is closed, and closed it stays until what was done is verified.
    """
    if engine.facts.released is None:
        return operation.goal is Control.ACTIVE and operation.weights is None
    following = next_call(engine.facts, operation.goal, operation.load)
    if following is None:
        # Somebody else has done it; but "paused" also says that the proxies have let go.
        return operation.goal is Control.ACTIVE
    return following in _HARMLESS


def may_disturb(draft: Draft, engine: EngineState) -> bool:
    """Whether the barrier and the proof of idleness hold for the call that comes next."""
    operation = engine.op
    assert operation is not None
    if disturbs_nobody(engine, operation):
        return True
    stands = barrier_of(draft, engine)
    if not needs_clear(operation, draft.pool_of(engine)):
        return stands.acknowledged
    return stands.clear and idle_enough(operation, timing=draft.timing)
