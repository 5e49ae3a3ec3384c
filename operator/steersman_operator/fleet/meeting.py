"""An engine that this leader meets: what was written down of it by whoever had it before."""

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import CallKind, Durable, Facts
from steersman_operator.fleet.spec import EngineSpec
from steersman_operator.fleet.state import EngineState, Operation, Phase


def take_record(draft: Draft, engine: str) -> Durable | None:
    """The record that waits for an engine. Whoever takes it keeps it up to date from then on."""
    waiting = draft.state.durable
    record = next((one for one in waiting if one.engine == engine), None)
    if record is not None:
        draft.change(durable=tuple(one for one in waiting if one is not record))
    return record


def new_engine(draft: Draft, spec: EngineSpec, *, pool: str, record: Durable | None) -> EngineState:
    """An engine of which only ``record`` is known; its gate is closed until it was looked at."""
    engine = EngineState(spec=spec, pool=pool, look_at=draft.now)
    if record is None:
        return msgspec.structs.replace(engine, facts=Facts(boot_id=spec.boot_id))
    engine = msgspec.structs.replace(
        engine,
        durable=record,
        facts=record.facts,
        counted_version=record.counted_version,
        loaded=record.loaded,
        adopts=False,
        cache_generation=record.cache_generation,
    )
    if record.call is None:
        return msgspec.structs.replace(engine, settled=record.goal or engine.settled)
    if record.call is CallKind.TRANSFER:
        # Nobody of ours was calling; whether the trainer still writes is not known.
        facts = record.facts.during(record.call)
        return msgspec.structs.replace(engine, facts=facts, settled=Control.PAUSED)
    # An intent: the call may have been made, may be running yet, or never was. Nothing is called
    # again before the engine was seen, and not before the call could have ended.
    assert record.goal is not None, "an intent has a goal"
    operation = Operation(
        goal=record.goal,
        phase=Phase.VERIFYING,
        started=draft.now,
        drain_until=draft.now + draft.state.pools[pool].drain_timeout,
        disturbed=True,
        call=record.call,
        unknown=True,
        ended_at=draft.now,
        call_until=draft.now + record.deadline,
        weights=record.weights,
        transferred=record.call is CallKind.LABEL,
        version_before=record.version_before,
        tags=record.tags,
    )
    return msgspec.structs.replace(engine, facts=record.facts.during(record.call), op=operation)
