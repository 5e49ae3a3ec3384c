"""The trainer's turn: an engine that is closed, drained and paused waits for its transfer.

Whether and how the trainer writes is not seen. It says that it is done, or the engine shows the
version, which engines take on with the end of a transfer. Until then the weights are uncertain.
"""

from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.endings import abandon, change_operation, drain_again
from steersman_operator.fleet.spec import Weights
from steersman_operator.fleet.state import EngineState, Phase

UNSEEN = "\r"
"""Stands for the version of an engine that was not looked at since the turn has begun."""


def begin(draft: Draft, engine: EngineState) -> None:
    """The intent is written: the trainer may begin."""
    operation = engine.op
    assert operation is not None and operation.call is not None and operation.weights is not None
    _new_turn(
        draft,
        engine,
        phase=Phase.AWAITING,
        disturbed=True,
        unknown=False,
        weights=operation.weights,
    )
    changed = draft.change_engine(
        engine.spec.id,
        facts=engine.facts.during(operation.call),
        cache_generation=engine.cache_generation + 1,
        look_at=draft.now,
    )
    draft.note(
        changed, "ReadyForWeights", f"waiting for the transfer of {operation.weights.version}"
    )


def advance(draft: Draft, engine: EngineState) -> None:
    """See whether the engine shows the version, or whether it has taken too long."""
    operation = engine.op
    assert operation is not None and operation.weights is not None
    version = operation.weights.version
    if operation.looked_at is not None and operation.version_before == UNSEEN:
        # What it shows as the turn begins says nothing of this turn.
        change_operation(draft, engine, version_before=engine.version)
    elif engine.version == version and operation.version_before not in (version, UNSEEN):
        committed(draft, engine)
    elif draft.now >= operation.call_until:
        timeout = draft.pool_of(engine).trainer_timeout
        abandon(draft, engine, f"the transfer of {version} was not committed within {timeout:g} s")


def supersede(draft: Draft, engine: EngineState, weights: Weights) -> None:
    """The trainer is to go on with other weights; what it has written of these is overwritten."""
    _new_turn(draft, engine, weights=weights, number=draft.number())
    draft.change_engine(engine.spec.id, look_at=draft.now)
    draft.note(engine, "Superseded", f"waiting for the transfer of {weights.version} now")


def _new_turn(draft: Draft, engine: EngineState, **fields: object) -> None:
    change_operation(
        draft,
        engine,
        call_until=draft.now + draft.pool_of(engine).trainer_timeout,
        ended_at=draft.now,
        looked_at=None,
        version_before=UNSEEN,
        **fields,
    )


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
