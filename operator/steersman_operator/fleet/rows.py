"""From the state to the fleet table."""

from collections.abc import Mapping

import msgspec

from steersman.engine import EngineRow, Trust
from steersman.table import Epoch, PoolRow, Table
from steersman.versions import Order, VersionOrder
from steersman_operator.fleet.spec import OnUnreachable, PoolSpec, PromoteAt
from steersman_operator.fleet.state import EngineState

UNKNOWN_MEMORY = ("unknown",)
"""Stands for released memory of which nobody knows; an engine that shows it serves nothing."""


def row_of(engine: EngineState) -> EngineRow:
    """One engine as the proxies see it."""
    released = engine.facts.released
    return EngineRow(
        id=engine.spec.id,
        url=engine.spec.url,
        pool=engine.pool,
        role=engine.spec.role,
        runtime=engine.spec.runtime,
        zone=engine.spec.zone,
        gate=engine.gate,
        # Not known counts as paused: whoever could serve once it is known may be waited for.
        paused=engine.facts.paused is not False,
        released=UNKNOWN_MEMORY if released is None else released,
        version=engine.version,
        trust=engine.trust,
        failed=not engine.reachable,
        boot_id=engine.facts.boot_id,
        cache_generation=engine.cache_generation,
    )


def pool_row(pool: PoolSpec, *, fleet_max: str | None) -> PoolRow:
    """The columns of a pool."""
    return PoolRow(
        name=pool.name,
        models=pool.models,
        default=pool.default,
        fleet_max=fleet_max,
        ordinals=pool.ordinals,
        # The core counts a fenced proxy out, so the proxies must be told to fence themselves.
        settings=msgspec.structs.replace(
            pool.settings, fence=pool.on_unreachable is OnUnreachable.FENCE
        ),
    )


def fleet_max(pool: PoolSpec, engines: list[EngineState], *, promoted: str | None) -> str | None:
    """The newest version of a pool that counts.

    A version counts from the moment that its engine opens with it, and for as long as that engine is
    registered and neither failed nor uncertain, also while it is paused or closed. ``promoted`` is
    the max in force; with ``AllOpen`` a newer one replaces it only once every engine has it. Where
    none is known to be in force, it cannot have been newer than the oldest. With weights that are asked
    for only those can become the max.
    """
    order = VersionOrder(pool.ordinals)
    target = None if pool.weights is None else pool.weights.version
    sound = [
        engine for engine in engines if engine.reachable and engine.trust is not Trust.UNCERTAIN
    ]
    counted = [engine.counted_version for engine in sound if engine.counted_version is not None]
    newest = order.newest(counted)
    if target is not None:
        # An older one is a wish too (undo); and what nobody has asked for must not move the others.
        newest = target if target in counted else promoted if promoted in counted else newest
    if pool.promote_at is PromoteAt.FIRST_OPEN or newest is None:
        return newest
    if all(engine.counted_version == newest for engine in sound):
        return newest
    return promoted if promoted in counted else _oldest(order, counted)


def _oldest(order: VersionOrder, versions: list[str]) -> str | None:
    """The version that all others are newer than; leaves out those that never are the newest."""
    left = set(versions)
    oldest = None
    while left:
        oldest = order.newest(left)
        assert oldest is not None, "there are versions"
        left = {one for one in left if order.compare(one, oldest) is Order.OLDER}
    return oldest


def table_of(
    engines: Mapping[str, EngineState],
    pools: dict[str, PoolSpec],
    *,
    epoch: Epoch,
    promoted: dict[str, str],
) -> Table:
    """The whole table."""
    return Table(
        epoch=epoch,
        pools=tuple(pool_row(pool, fleet_max=promoted.get(name)) for name, pool in pools.items()),
        engines=tuple(row_of(engine) for engine in engines.values()),
    )
