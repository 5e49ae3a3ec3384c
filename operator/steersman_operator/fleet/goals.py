"""What each engine is to become, compared with what it is: level-based, whatever happened before."""

from steersman.engine import Control, Trust
from steersman_operator.fleet import operations, records
from steersman_operator.fleet.aim import aim
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.endings import MEMORY_UNKNOWN
from steersman_operator.fleet.spec import Drift, PoolSpec
from steersman_operator.fleet.state import EngineState
from steersman_operator.fleet.weights import adopt


def reconcile(draft: Draft, name: str) -> None:
    """Begin, redirect or advance an engine's operation, and set its gate."""
    engine = draft.engines[name]
    if not draft.state.leading or not engine.known:
        return
    pool = draft.pool_of(engine)
    if engine.op is not None:
        _direct(draft, name)
        operations.take_in(draft, name)
        # What to do next may have changed with that.
        _direct(draft, name)
        operations.advance(draft, name)
    if draft.engines[name].op is None:
        _at_rest(draft, draft.engines[name], pool)
    records.write_again_if_due(draft, name)


def _direct(draft: Draft, name: str) -> None:
    """Let the operation under way know what is wanted now."""
    engine = draft.engines[name]
    if engine.op is not None:
        goal, weights = aim(
            engine, draft.pool_of(engine), engines=draft.engines, planning=draft.planning
        )
        operations.set_goal(draft, engine, goal, weights)


def _at_rest(draft: Draft, engine: EngineState, pool: PoolSpec) -> None:
    """Nothing is under way. Is there something to do, and may requests come in."""
    name = engine.spec.id
    if engine.reachable:
        engine = adopt(draft, engine, pool)
    goal, weights = aim(engine, pool, engines=draft.engines, planning=draft.planning)
    if engine.facts.released is None or not engine.reachable:
        draft.close_gate(name)
        if engine.reachable and not engine.problem.endswith(MEMORY_UNKNOWN):
            # The operation may have ended for another reason, before that was clear.
            why = f"{engine.problem}; {MEMORY_UNKNOWN}" if engine.problem else MEMORY_UNKNOWN
            draft.change_engine(name, problem=why)
        return
    if weights is not None or _must_act(engine, pool, goal):
        operations.begin(draft, engine, goal, weights)
        operations.advance(draft, name)
        if draft.engines[name].op is None:
            _set_gate(draft, draft.engines[name], goal)
        return
    if engine.returning and engine.facts.control is goal:
        engine = draft.change_engine(name, returning=False)
    _mark_external(draft, engine)
    _set_gate(draft, draft.engines[name], goal)


def _must_act(engine: EngineState, pool: PoolSpec, goal: Control) -> bool:
    """A changed spec, an unfinished return to what was before, or drift that is enforced."""
    if goal is not engine.settled:
        return True
    if engine.facts.control is goal:
        return False
    if engine.facts.control is None:
        # Not even whether it is paused is known; pausing and resuming may be done twice.
        return True
    if engine.given_up == (goal, pool.generation) and goal is not Control.ACTIVE:
        return False
    return engine.returning or pool.drift is Drift.ENFORCE


def _mark_external(draft: Draft, engine: EngineState) -> None:
    control = engine.facts.control
    external = control is not engine.settled
    if control is None or engine.external is external:
        return
    changed = draft.change_engine(engine.spec.id, external=external)
    if external:
        message = f"found {control.value}, was put {engine.settled.value}; it is left alone"
        draft.note(changed, "ExternallyControlled", message, warning=True)
    else:
        draft.note(changed, "BackInPlace", f"{control.value} again")


def _set_gate(draft: Draft, engine: EngineState, goal: Control) -> None:
    may_open = (
        goal is Control.ACTIVE
        and engine.op is None
        and engine.facts.control is Control.ACTIVE
        and engine.settled is Control.ACTIVE
        and engine.reachable
        and engine.facts.sound
        and engine.trust is not Trust.UNCERTAIN
    )
    if may_open:
        draft.open_gate(engine.spec.id)
    else:
        draft.close_gate(engine.spec.id)
