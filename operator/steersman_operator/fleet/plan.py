"""The rollout plan: how many engines may be closed at once by operations that can wait.

It binds what can be spread out (disk refits, and reverting drift). What people ask for by name, by a
pool's ``state``, an override or an external refit, is done as told, all at once.
"""

from collections.abc import Iterable, Mapping

from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState


def may_close(
    pool: PoolSpec, candidates: Iterable[str], *, engines: Mapping[str, EngineState]
) -> list[str]:
    """Those of ``candidates`` (open engines, most urgent first) that may be closed now.

    ``maxUnavailable`` counts every closed engine of the pool, whatever the cause. The last open
    engine of a role is never closed, unless the pool has no other engine of that role at all.
    """
    members = [engine for engine in engines.values() if engine.pool == pool.name]
    closed = sum(not engine.gate.open for engine in members)
    room = pool.unavailable_limit() - closed
    open_by_role: dict[str, int] = {}
    known_by_role: dict[str, int] = {}
    for engine in members:
        role = engine.spec.role.value
        known_by_role[role] = known_by_role.get(role, 0) + 1
        open_by_role[role] = open_by_role.get(role, 0) + engine.gate.open
    chosen = []
    for name in candidates:
        if room <= 0:
            break
        role = engines[name].spec.role.value
        if open_by_role[role] <= 1 < known_by_role[role]:
            continue
        open_by_role[role] -= 1
        room -= 1
        chosen.append(name)
    return chosen
