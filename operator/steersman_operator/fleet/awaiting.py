"""The trainer's turn: an engine that is closed, drained and paused waits for its transfer.

Whether and how the trainer writes is not seen. It says that it is done, or the engine shows the
version, which engines take on with the end of a transfer. Until then the weights are uncertain.
"""

from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.endings import abandon, change_operation, drain_again
from steersman_operator.fleet.state import EngineState, Phase


def begin(draft: Draft, engine: EngineState) -> None:
    """The intent is written: the trainer may begin."""
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None and operation.call is not None and operation.weights is not None
    change_operation(
        draft,
        engine,
        phase=Phase.AWAITING,
        disturbed=True,
        unknown=False,
        call_until=draft.now + pool.trainer_timeout,
    )
    changed = draft.change_engine(
        engine.spec.id,
        facts=engine.facts.during(operation.call),
        cache_generation=engine.cache_generation + 1,
    )
    draft.note(
        changed, "ReadyForWeights", f"waiting for the transfer of {operation.weights.version}"
    )


def advance(draft: Draft, engine: EngineState) -> None:
    """See whether the engine shows the version, or whether it has taken too long."""
    operation = engine.op
    assert operation is not None and operation.weights is not None
    version = operation.weights.version
    if engine.version == version and operation.version_before != version:
        committed(draft, engine)
    elif draft.now >= operation.call_until:
        timeout = draft.pool_of(engine).trainer_timeout
        abandon(draft, engine, f"the transfer of {version} was not committed within {timeout:g} s")


def committed(draft: Draft, engine: EngineState) -> None:
    """The transfer is done."""
    drain_again(draft, engine, transferred=True, tries=0, next_try=draft.now)


def published(draft: Draft, pool: str, version: str) -> tuple[str, ...]:
    """The trainer says that all engines of a pool that wait for a version have it; returns them."""
    names = []
    for name, engine in list(draft.engines.items()):
        if engine.pool == pool and waits_for(engine, version):
            committed(draft, engine)
            names.append(name)
    return tuple(names)


def waits_for(engine: EngineState, version: str) -> bool:
    """Whether an engine waits for the transfer of a version."""
    operation = engine.op
    return (
        operation is not None
        and operation.phase is Phase.AWAITING
        and operation.weights is not None
        and operation.weights.version == version
    )
