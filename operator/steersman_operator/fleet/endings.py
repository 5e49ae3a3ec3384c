"""How an operation ends: reached, cancelled or given up; and how it is tried again."""

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.aim import awaits_weights
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.records import take_back, write_rest
from steersman_operator.fleet.state import EngineState, Operation, Phase

MEMORY_UNKNOWN = (
    "which memory is released is unknown, and this engine cannot be asked; "
    "it stays closed until it is restarted"
)

AWAITING_WEIGHTS = (
    "its weights are lost with its memory: load weights into it, then let it go on "
    "(SGLang: POST /continue_generation, vLLM: POST /resume)"
)


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
    if operation.goal is pool.goal(engine.spec.id) or awaits_weights(engine, pool):
        engine = draft.change_engine(engine.spec.id, problem="", given_up=None)
    took = draft.now - operation.started
    draft.note(engine, "Settled", f"{operation.goal.value} after {took:.1f} s")
    if awaits_weights(engine, pool):
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


def not_done(draft: Draft, engine: EngineState, why: str) -> None:
    """A call had no effect. Opening is tried for ever, closing is given up."""
    operation = engine.op
    assert operation is not None
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
