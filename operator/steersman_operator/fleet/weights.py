"""Which weights an engine is to have, and whether it has them.

The operator acts on a change of the target (another version, another nonce), on what it has begun
and not finished, and on another boot. What others load into an engine meanwhile is only seen, unless
drift is enforced: trainers do that.
"""

from steersman.engine import Trust
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.records import write_rest
from steersman_operator.fleet.spec import Drift, PoolSpec, SourceKind, Weights
from steersman_operator.fleet.state import EngineState, Phase


def wanted(engine: EngineState, pool: PoolSpec) -> Weights | None:
    """What is to be loaded into an engine; ``None`` if nothing is, or if that was given up."""
    target = pool.weights
    if target is None or engine.unloadable == (target.id, pool.generation):
        return None
    if not engine.facts.sound:
        return target
    if engine.loaded != target.id:
        return None if _is_adopted(engine, target) else target
    if pool.drift is Drift.ENFORCE and target.source is SourceKind.DISK:
        # A trainer would not know that it is waited for.
        return target if _differs(engine, target) else None
    return None


def adopt(draft: Draft, engine: EngineState, pool: PoolSpec) -> EngineState:
    """An engine that has the target already, by somebody else's doing, needs nothing."""
    target = pool.weights
    if target is None or engine.loaded == target.id or not _is_adopted(engine, target):
        return engine
    engine = draft.change_engine(engine.spec.id, loaded=target.id, unloadable=None)
    if target.nonce:
        # Without it the next operator could not tell this from an older load of the same version.
        write_rest(draft, engine, goal=engine.settled)
        engine = draft.engines[engine.spec.id]
    return engine


def _is_adopted(engine: EngineState, target: Weights) -> bool:
    return (
        engine.facts.sound
        and engine.trust is Trust.VERIFIED
        and engine.version == target.version
        and (engine.adopts or not target.nonce)
    )


def _differs(engine: EngineState, target: Weights) -> bool:
    return engine.trust is Trust.VERIFIED and engine.version != target.version


def trust_of(draft: Draft, engine: EngineState, version: str | None) -> Trust:
    """How far the weights of an engine that shows ``version`` may be trusted."""
    if engine.facts.uncertain and not _under_way(engine):
        return Trust.UNCERTAIN
    if version is not None:
        return Trust.VERIFIED
    return without_version(draft, engine)


def _under_way(engine: EngineState) -> bool:
    """Whether weights are being written as planned: the engine is closed, and what it had before goes
    on counting until it is known that they are lost.
    """
    operation = engine.op
    if operation is None or operation.weights is None or operation.unknown:
        return False
    return operation.phase in (Phase.EXECUTING, Phase.VERIFYING, Phase.AWAITING)


def without_version(draft: Draft, engine: EngineState) -> Trust:
    """Once a pool has had a version, an engine without one is suspect until it shows one.

    Also when nobody is left that has it: the weights of all engines together do not become right by
    all of them having been restarted.
    """
    pool = draft.state.pools.get(engine.pool)
    if (
        engine.trust in (Trust.UNSYNCED, Trust.UNCERTAIN)
        or draft.state.promoted.get(engine.pool) is not None
        or (pool is not None and pool.weights is not None)
    ):
        return Trust.UNSYNCED
    return Trust.UNKNOWN
