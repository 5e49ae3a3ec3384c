"""An operation on its way: Closing, Draining, Claiming, Executing, Verifying, and its end.

The gate closes at once. The engine is called only behind the barrier, only with the intent written,
and only while the lease has time left. What the engine is afterwards is what it is seen to be.
"""

from steersman.engine import Control
from steersman_operator.fleet import awaiting
from steersman_operator.fleet.calling import call_is_late, claim_is_late, verify
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.draining import drain
from steersman_operator.fleet.endings import cancel, change_operation, finish
from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.fleet.state import EngineState, Operation, Phase


def begin(draft: Draft, engine: EngineState, goal: Control, weights: Weights | None = None) -> None:
    """Start an operation, which brings ``weights`` in on its way to the goal: the gate closes with the
    table of this very step.
    """
    name = engine.spec.id
    draft.close_gate(name)
    pool = draft.pool_of(engine)
    operation = Operation(
        goal=goal,
        phase=Phase.DRAINING,
        started=draft.now,
        drain_until=draft.now + pool.drain_timeout,
        weights=weights,
    )
    # A question for its load that is still under way was asked before the gate closed.
    changed = draft.change_engine(name, op=operation, external=False, asking_load=None)
    if goal is pool.goal(name):
        draft.change_engine(name, problem="")
    what = f"become {goal.value}" if weights is None else f"get weights {weights.version}"
    draft.note(changed, "Closing", f"closed to {what}")


def set_goal(
    draft: Draft, engine: EngineState, goal: Control, weights: Weights | None = None
) -> None:
    """The goal, or what is to be loaded, may have changed while an operation is under way."""
    operation = engine.op
    assert operation is not None, "there is nothing under way"
    if operation.goal is goal and operation.weights == weights:
        return
    if operation.phase in (Phase.EXECUTING, Phase.VERIFYING):
        # What was begun is finished first; the next step then follows from the facts.
        change_operation(draft, engine, goal=goal)
        return
    if operation.phase is Phase.AWAITING and weights is not None and _is_external(weights):
        if operation.weights != weights:
            awaiting.supersede(draft, engine, weights)
        change_operation(draft, engine, goal=goal)
        return
    if weights is None and engine.facts.reached(goal) and not operation.disturbed:
        cancel(draft, engine, goal=goal)
        return
    # Without reopening: whoever waits for the barrier has come that far already. A call that is
    # being claimed has not been made, and may not be the right one any more.
    same = weights == operation.weights
    engine = change_operation(
        draft,
        engine,
        goal=goal,
        phase=Phase.DRAINING,
        # What was tried with other weights says nothing of these.
        tries=operation.tries if same else 0,
        next_try=operation.next_try if same else draft.now,
        drain_until=draft.now + draft.pool_of(engine).drain_timeout,
        aborted=False,
        in_flight_allowed=False,
        idle_seen=(),
        weights=weights,
        transferred=operation.transferred and same,
    )
    draft.note(engine, "Retargeted", f"to {_aim(goal, weights)} instead of {_aim_of(operation)}")
    if weights is None and engine.facts.reached(goal):
        finish(draft, engine)


def _is_external(weights: Weights) -> bool:
    return weights.source is SourceKind.EXTERNAL


def _aim(goal: Control, weights: Weights | None) -> str:
    return f"become {goal.value}" + ("" if weights is None else f" with {weights.version}")


def _aim_of(operation: Operation) -> str:
    return _aim(operation.goal, operation.weights)


def take_in(draft: Draft, name: str) -> None:
    """See whether what is waited for has come about: a call's effect, or the trainer's word."""
    engine = draft.engines[name]
    if engine.op is not None and engine.op.phase is Phase.VERIFYING:
        verify(draft, engine)
    elif engine.op is not None and engine.op.phase is Phase.AWAITING:
        awaiting.advance(draft, engine)


def advance(draft: Draft, name: str) -> None:
    """Do what can be done now."""
    engine = draft.engines[name]
    if engine.op is None:
        return
    match engine.op.phase:
        case Phase.CLOSING | Phase.DRAINING:
            drain(draft, engine)
        case Phase.CLAIMING:
            claim_is_late(draft, engine)
        case Phase.EXECUTING:
            call_is_late(draft, engine)
        case Phase.VERIFYING | Phase.AWAITING:
            pass
