"""Which engines are managed: the rows that come and go with the spec, and the brake on going."""

from steersman_operator.fleet.commands import Forget, Note
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.leadership import new_engine
from steersman_operator.fleet.spec import EngineSpec, PoolSpec

BRAKE_SHARE = 0.5
BRAKE_ROWS = 2


def spec_changed(draft: Draft, pools: tuple[PoolSpec, ...], *, deliberate: bool) -> None:
    """Follow the spec. The first of two pools that claim an engine keeps it."""
    wanted: dict[str, tuple[EngineSpec, str]] = {}
    for pool in pools:
        for spec in pool.engines:
            wanted.setdefault(spec.id, (spec, pool.name))
    gone = [name for name in draft.engines if name not in wanted]
    braked = not deliberate and _braked(draft, gone)
    kept_pools = {engine.pool for name, engine in draft.engines.items() if name in gone}
    before = draft.state.pools
    new_pools = {pool.name: pool for pool in pools}
    if braked:
        for name in kept_pools - new_pools.keys():
            new_pools[name] = before[name]
    draft.change(pools=new_pools, spec_known=True)
    for name in gone:
        if braked:
            draft.change_engine(name, leaving=True)
        else:
            _remove(draft, name)
    for name, (spec, pool_name) in wanted.items():
        _update(draft, name, spec, pool_name)


def release_brake(draft: Draft) -> None:
    """Let go of the rows that were held back, once their time has passed."""
    until = draft.state.brake_until
    if until is None or draft.now < until:
        return
    draft.change(brake_until=None)
    for name, engine in list(draft.engines.items()):
        if engine.leaving:
            _remove(draft, name)
    used = {engine.pool for engine in draft.engines.values()}
    pools = draft.state.pools
    draft.change(pools={n: p for n, p in pools.items() if n in used or p.engines == ()})


def _braked(draft: Draft, gone: list[str]) -> bool:
    """Whether most of the fleet would go in one step, which is more often a fault than a wish."""
    leaving = [name for name in gone if not draft.engines[name].leaving]
    many = len(gone) > BRAKE_ROWS and len(gone) > BRAKE_SHARE * len(draft.engines)
    if not many:
        # Those that were held back before stay held back.
        return not leaving and bool(gone) and draft.state.brake_until is not None
    if draft.state.brake_until is None:
        draft.change(brake_until=draft.now + draft.timing.brake)
        message = (
            f"{len(gone)} of {len(draft.engines)} engines would go at once; "
            f"held back for {draft.timing.brake:g} s"
        )
        draft.emit(
            Note(engine=None, pool=None, reason="RemovalHeldBack", message=message, warning=True)
        )
    return True


def _remove(draft: Draft, name: str) -> None:
    """Stop managing: the row goes, the engine is left as it is."""
    del draft.engines[name]
    draft.emit(Forget(engine=name))


def _update(draft: Draft, name: str, spec: EngineSpec, pool: str) -> None:
    known = draft.engines.get(name)
    if known is None or known.spec.url != spec.url:
        draft.engines[name] = new_engine(draft, spec, pool=pool)
        return
    if known.spec != spec or known.pool != pool or known.leaving:
        draft.change_engine(name, spec=spec, pool=pool, leaving=False)
