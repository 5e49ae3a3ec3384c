"""An operation on its way: Closing, Draining, Claiming, Executing, Verifying, and its end.

The gate closes at once. The engine is called only behind the barrier, only with the intent written,
and only while the lease has time left. What the engine is afterwards is what it is seen to be.
"""

from steersman.engine import Control
from steersman_operator.fleet.calling import call_is_late, claim_is_late, verify
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.draining import drain
from steersman_operator.fleet.endings import cancel, change_operation, finish
from steersman_operator.fleet.state import EngineState, Operation, Phase


def begin(draft: Draft, engine: EngineState, goal: Control) -> None:
    """Start an operation: the gate closes with the table of this very step."""
    name = engine.spec.id
    draft.close_gate(name)
    pool = draft.pool_of(engine)
    operation = Operation(
        goal=goal,
        phase=Phase.DRAINING,
        started=draft.now,
        drain_until=draft.now + pool.drain_timeout,
    )
    # A question for its load that is still under way was asked before the gate closed.
    changed = draft.change_engine(name, op=operation, external=False, asking_load=None)
    if goal is pool.goal(name):
        draft.change_engine(name, problem="")
    draft.note(changed, "Closing", f"closed to become {goal.value}")


def set_goal(draft: Draft, engine: EngineState, goal: Control) -> None:
    """The goal changed while an operation is under way."""
    operation = engine.op
    assert operation is not None, "there is nothing under way"
    if operation.goal is goal:
        return
    if operation.phase in (Phase.EXECUTING, Phase.VERIFYING):
        # What was begun is finished first; the next step then follows from the facts.
        change_operation(draft, engine, goal=goal)
        return
    if engine.facts.reached(goal) and not operation.disturbed:
        cancel(draft, engine, goal=goal)
        return
    # Without reopening: whoever waits for the barrier has come that far already. A call that is
    # being claimed has not been made, and may not be the right one any more.
    engine = change_operation(
        draft,
        engine,
        goal=goal,
        phase=Phase.DRAINING,
        drain_until=draft.now + draft.pool_of(engine).drain_timeout,
        aborted=False,
        in_flight_allowed=False,
        idle_seen=(),
    )
    draft.note(engine, "Retargeted", f"to become {goal.value} instead of {operation.goal.value}")
    if engine.facts.reached(goal):
        finish(draft, engine)


def advance(draft: Draft, name: str) -> None:
    """Do what can be done now."""
    engine = draft.engines[name]
    if engine.op is not None and engine.op.phase is Phase.VERIFYING:
        verify(draft, engine)
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
        case Phase.VERIFYING:
            pass
