"""What an engine is to become now; not always what the spec asks for."""

from steersman.engine import Control
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState


def effective_goal(engine: EngineState, pool: PoolSpec) -> Control:
    """What the spec asks for, unless that was tried and given up: then what was before.

    An engine whose weights are lost is not resumed: what it would generate is undefined. It is awake
    and paused until somebody has loaded weights into it.
    """
    goal = pool.goal(engine.spec.id)
    if engine.given_up == (goal, pool.generation) and goal is not Control.ACTIVE:
        goal = engine.settled
    return Control.PAUSED if goal is Control.ACTIVE and engine.facts.lost else goal


def awaits_weights(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether nothing but weights keeps an engine from serving."""
    facts = engine.facts
    return (
        engine.op is None
        and facts.lost
        and facts.control is Control.PAUSED
        and pool.goal(engine.spec.id) is Control.ACTIVE
    )
