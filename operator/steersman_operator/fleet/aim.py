"""What an engine is to become now; not always what the spec asks for."""

from collections.abc import Mapping

from steersman.engine import Control
from steersman_operator.fleet.plan import may_close, serves
from steersman_operator.fleet.spec import PoolSpec, SourceKind, Weights
from steersman_operator.fleet.state import EngineState
from steersman_operator.fleet.weights import wanted


def aim(
    engine: EngineState, pool: PoolSpec, *, engines: Mapping[str, EngineState], planning: bool
) -> tuple[Control, Weights | None]:
    """The state, and the weights to be loaded on the way to it.

    ``planning`` says whether anything has happened that may give an engine its turn; looking at a
    pool for each of its engines at every look would cost the operator a fifth of its time.

    The state is what the spec asks for, unless that was tried and given up: then what was before. New
    weights wait for their turn, and for the engine to be awake. An engine whose weights are lost or
    uncertain is not resumed before it has others: what it would generate is undefined.
    """
    goal = pool.goal(engine.spec.id)
    if engine.given_up == (goal, pool.generation) and goal is not Control.ACTIVE:
        goal = engine.settled
    weights = None
    if goal is not Control.ASLEEP:
        weights = wanted(engine, pool)
        if weights is not None and not _has_its_turn(
            engine, pool, weights, engines, planning=planning
        ):
            weights = None
    if goal is Control.ACTIVE and not engine.facts.sound and weights is None:
        goal = Control.PAUSED
        if engine.given_up == (goal, pool.generation):
            # It is closed, and whoever does not let go keeps it from more. It stays as it is.
            goal = engine.facts.control or goal
    return goal, weights


def _has_its_turn(
    engine: EngineState,
    pool: PoolSpec,
    weights: Weights,
    engines: Mapping[str, EngineState],
    *,
    planning: bool,
) -> bool:
    if engine.op is not None and engine.op.weights is not None:
        return True  # it had it
    if pool.rollout_paused:
        return False
    if weights.source is SourceKind.EXTERNAL or not serves(engine, pool):
        return True
    # An engine that has drifted has done so in the very step that nobody else has a part in.
    name, drifted = engine.spec.id, engine.loaded == weights.id
    return (planning or drifted) and name in may_close(pool, (name,), engines=engines)


def awaits_weights(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether nothing but weights keeps an engine from serving."""
    facts = engine.facts
    return (
        engine.op is None
        and not facts.sound
        and facts.control is Control.PAUSED
        and pool.goal(engine.spec.id) is Control.ACTIVE
    )
