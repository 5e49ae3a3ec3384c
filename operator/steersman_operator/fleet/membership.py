"""Which engines are managed: the rows that come and go with the spec, and the brake on going."""

from collections.abc import Mapping

import msgspec

from steersman.engine import Control, Gate
from steersman_operator.fleet.commands import Forget, Note
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.meeting import new_engine, take_record
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.fleet.state import EngineState

BRAKE_SHARE = 0.5
BRAKE_ROWS = 2
REMEMBERED = 64
"""Records of engines that are not in the spec. As many as a RolloutEngine's status has room for."""


def spec_changed(draft: Draft, pools: tuple[PoolSpec, ...], *, deliberate: bool) -> None:
    """Follow the spec. The first of two pools that claim an engine keeps it."""
    wanted: dict[str, tuple[EngineSpec, str]] = {}
    for pool in pools:
        for spec in pool.engines:
            wanted.setdefault(spec.id, (spec, pool.name))
    gone = [name for name in draft.engines if name not in wanted]
    # Before the first table of this leader nothing can be taken out of it.
    held = set() if deliberate or not draft.state.published else _held_back(draft, gone)
    before = draft.state.pools
    new_pools = {pool.name: pool for pool in pools}
    for name in held:
        kept = draft.engines[name].pool
        new_pools.setdefault(kept, draft.state.pools[kept])
    draft.change(pools=new_pools, spec_known=True)
    if not held:
        draft.change(brake_until=None)
    for name in gone:
        if name in held:
            draft.change_engine(name, leaving=True)
        else:
            _remove(draft, name)
    for name, (spec, pool_name) in wanted.items():
        _update(draft, name, spec, pool_name)
    _retarget(draft, before)


def _retarget(draft: Draft, before: Mapping[str, PoolSpec]) -> None:
    """Engines of pools that ask for other weights now have to be loaded, whatever they show."""
    for name, engine in list(draft.engines.items()):
        old, new = before.get(engine.pool), draft.state.pools.get(engine.pool)
        if old is None or new is None or not engine.adopts:
            continue
        if old.weights != new.weights and engine.known:
            draft.change_engine(name, adopts=False)


def release_brake(draft: Draft) -> None:
    """Let go of the rows that were held back, once their time has passed."""
    until = draft.state.brake_until
    if until is not None and draft.now >= until:
        drop_leaving(draft)


def drop_leaving(draft: Draft) -> None:
    """Let go of the rows that are held back, and of the pools that only they have kept."""
    for name, engine in list(draft.engines.items()):
        if engine.leaving:
            _remove(draft, name)
    kept = {
        name: pool
        for name, pool in draft.state.pools.items()
        if not pool.engines or any(spec.id in draft.engines for spec in pool.engines)
    }
    draft.change(brake_until=None, pools=kept)


def _held_back(draft: Draft, gone: list[str]) -> set[str]:
    """Which rows stay for now: most of a fleet going in one step is more often a fault than a wish."""
    leaving = {name for name in gone if draft.engines[name].leaving}
    if len(gone) <= BRAKE_ROWS or len(gone) <= BRAKE_SHARE * len(draft.engines):
        return leaving
    if len(leaving) < len(gone):
        draft.change(brake_until=draft.now + draft.timing.brake)
        message = (
            f"{len(gone)} of {len(draft.engines)} engines would go at once; "
            f"held back for {draft.timing.brake:g} s"
        )
        draft.emit(
            Note(engine=None, pool=None, reason="RemovalHeldBack", message=message, warning=True)
        )
    return set(gone)


def _remove(draft: Draft, name: str) -> None:
    """Stop managing: the row goes, the engine is left as it is.

    What we did to it and did not undo is remembered: it may be named again, and some engines cannot
    be asked. Most will not be named again, so that only the latest are kept.
    """
    record = draft.remove_engine(name).durable
    if record is None or (record.call is None and record.facts.control is Control.ACTIVE):
        draft.emit(Forget(engine=name))
        return
    waiting = (*draft.state.durable, record)
    for old in waiting[:-REMEMBERED]:
        draft.emit(Forget(engine=old.engine))
    draft.change(durable=waiting[-REMEMBERED:])


def _update(draft: Draft, name: str, spec: EngineSpec, pool: str) -> None:
    known = draft.engines.get(name)
    if known is None:
        record = take_record(draft, name)
        draft.put_engine(new_engine(draft, spec, pool=pool, record=record))
    elif known.spec.url != spec.url:
        draft.put_engine(_moved(draft, known, spec, pool))
    elif known.spec != spec or known.pool != pool or known.leaving:
        draft.change_engine(name, spec=spec, pool=pool, leaving=False)
        if known.spec.boot_id != spec.boot_id:
            # A look under way may have seen the process before.
            draft.change_engine(name, looking=None, look_at=draft.now)


def _moved(draft: Draft, known: EngineState, spec: EngineSpec, pool: str) -> EngineState:
    """The same engine under another address: it is met anew, with what was written down of it."""
    engine = new_engine(draft, spec, pool=pool, record=known.durable)
    gate = Gate(open=False, count=known.gate.count + known.gate.open)
    return msgspec.structs.replace(
        engine, gate=gate, stored_as=known.stored_as, store_at=known.store_at
    )
