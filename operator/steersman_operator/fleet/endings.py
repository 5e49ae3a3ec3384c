"""How an operation ends: reached, cancelled or given up; and how it is tried again."""

import msgspec

from steersman.engine import Control, Trust
from steersman_operator.fleet.aim import awaits_weights
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.records import take_back, write_rest
from steersman_operator.fleet.state import EngineState, Operation, Phase
from steersman_operator.fleet.weights import trust_of

MEMORY_UNKNOWN = (
    "which memory is released is unknown, and this engine cannot be asked; "
    "it stays closed until it is restarted"
)

AWAITING_WEIGHTS = (
    "its weights are lost with its memory: load weights into it, then let it go on "
    "(SGLang: POST /continue_generation, vLLM: POST /resume)"
)


REFUSALS = 2
"""How often a load that an engine has refused is tried again; it has what it had before."""


def change_operation(draft: Draft, engine: EngineState, **fields: object) -> EngineState:
    """Change fields of an engine's operation."""
    current = draft.engines[engine.spec.id].op
    assert current is not None, "the operation has ended"
    return draft.change_engine(engine.spec.id, op=msgspec.structs.replace(current, **fields))


def finish(draft: Draft, engine: EngineState) -> None:
    """The goal is reached."""
    operation = engine.op
    assert operation is not None
    write_rest(draft, engine, goal=operation.goal)
    engine = draft.change_engine(engine.spec.id, op=None, settled=operation.goal, returning=False)
    pool = draft.pool_of(engine)
    target = pool.weights
    gave_up = target is not None and engine.unloadable == (target.id, pool.generation)
    reached = operation.goal is pool.goal(engine.spec.id) or awaits_weights(engine, pool)
    if reached and not gave_up:
        engine = draft.change_engine(engine.spec.id, problem="", given_up=None)
    took = draft.now - operation.started
    draft.note(engine, "Settled", f"{operation.goal.value} after {took:.1f} s")
    if awaits_weights(engine, pool) and not gave_up:
        draft.note(engine, "AwaitingWeights", AWAITING_WEIGHTS, warning=True)


def cancel(draft: Draft, engine: EngineState, *, goal: Control) -> None:
    """The engine is where it is to be, and was not touched: opening again is all there is to it."""
    operation = engine.op
    assert operation is not None
    take_back(draft, engine, goal=goal)
    draft.change_engine(engine.spec.id, op=None, settled=goal)
    draft.note(engine, "Cancelled", f"no longer to become {operation.goal.value}")


def give_up(draft: Draft, engine: EngineState, why: str) -> None:
    """The goal is not reached. What was settled before is returned to, as far as it is known.

    If it was that return which is given up, the engine stays where it is: going to and fro between
    two goals that cannot be reached would keep it closed for ever.
    """
    operation, pool, name = engine.op, draft.pool_of(engine), engine.spec.id
    assert operation is not None
    goal, control = pool.goal(name), engine.facts.control
    if operation.weights is not None and engine.facts.sound:
        unloadable = (operation.weights.id, pool.generation)
        engine = draft.change_engine(name, unloadable=unloadable)
    if operation.goal is goal or engine.given_up != (goal, pool.generation):
        take_back(draft, engine, goal=engine.settled)
        engine = draft.change_engine(
            name,
            given_up=(operation.goal, pool.generation),
            returning=engine.returning or operation.disturbed,
        )
    elif control is not None:
        write_rest(draft, engine, goal=control)
        draft.change_engine(name, settled=control, returning=False)
    engine = draft.change_engine(name, op=None, problem=why)
    draft.note(engine, "GivenUp", why, warning=True)


def loaded(draft: Draft, engine: EngineState) -> EngineState:
    """The weights of an operation are in the engine, and were seen there."""
    operation, name = engine.op, engine.spec.id
    assert operation is not None and operation.weights is not None
    weights = operation.weights
    change_operation(draft, engine, weights=None, transferred=False)
    engine = draft.change_engine(
        name,
        facts=engine.facts.loaded(),
        trust=Trust.VERIFIED,
        loaded=weights.id,
        unloadable=None,
        # A state that was given up stays a problem.
        problem=engine.problem if engine.given_up is not None else "",
        adopts=False,
        cache_generation=engine.cache_generation + 1,
    )
    took = draft.now - operation.started
    draft.note(engine, "Loaded", f"{weights.version} after {took:.1f} s")
    return engine


def abandon(draft: Draft, engine: EngineState, why: str) -> None:
    """The weights of an operation are not loaded, and are not tried again before the spec changes.

    If what the engine has is untouched it goes on with that; else it stays closed.
    """
    operation, pool, name = engine.op, draft.pool_of(engine), engine.spec.id
    assert operation is not None and operation.weights is not None
    unloadable, goal = (operation.weights.id, pool.generation), operation.goal
    if not engine.facts.sound:
        goal = Control.PAUSED if goal is Control.ACTIVE else goal
        why += "; the engine stays closed until weights are loaded whole, or it is restarted"
    engine = draft.change_engine(name, unloadable=unloadable, problem=why)
    draft.note(engine, "NotLoaded", why, warning=True)
    drain_again(
        draft, engine, goal=goal, weights=None, transferred=False, tries=0, next_try=draft.now
    )
    engine = draft.change_engine(name, trust=trust_of(draft, draft.engines[name], engine.version))


def not_done(draft: Draft, engine: EngineState, why: str) -> None:
    """A call had no effect. Opening is tried for ever, closing is given up."""
    operation = engine.op
    assert operation is not None
    if operation.weights is not None:
        if engine.facts.sound and operation.tries >= REFUSALS:
            abandon(draft, engine, why)
            return
        # It may have been a matter of a moment; or it serves nothing in any case, and may be whole
        # after the next.
        drain_again(draft, engine, **later(draft, operation))
        if operation.call is not CallKind.REFIT or not engine.problem:
            # Else it says more: what the engine has said.
            draft.change_engine(engine.spec.id, problem=why)
        # As it stands now: the operation does not count as going as planned any more.
        engine = draft.engines[engine.spec.id]
        trust = trust_of(draft, engine, engine.version)
        draft.change_engine(engine.spec.id, trust=trust)
        return
    opening = draft.pool_of(engine).goal(engine.spec.id) is Control.ACTIVE and engine.facts.lost
    if operation.goal is Control.ACTIVE or opening:
        drain_again(draft, engine, **later(draft, operation))
        draft.change_engine(engine.spec.id, problem=why)
        return
    give_up(draft, engine, why)


def drain_again(draft: Draft, engine: EngineState, **fields: object) -> EngineState:
    """A call is done with; the next one needs the barrier anew, and has its own time for it."""
    until = draft.now + draft.pool_of(engine).drain_timeout
    return change_operation(
        draft, engine, phase=Phase.DRAINING, unknown=False, drain_until=until, **fields
    )


def later(draft: Draft, operation: Operation) -> dict[str, object]:
    """When something is tried again: the more often it was, the later."""
    tries = operation.tries + 1
    timing = draft.timing
    wait = min(timing.retry_limit, timing.retry * 2 ** min(tries - 1, 8))
    return {"tries": tries, "next_try": draft.now + wait}
