"""The rollout plan: how many engines may be closed at once by operations that can wait.

It binds what can be spread out (disk refits, and reverting drift). What people ask for by name, by a
pool's ``state``, an override or an external refit, is done as told, all at once.
"""

from collections.abc import Iterable, Mapping

from steersman.engine import Control, Trust
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState


def serves(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether requests are sent to an engine, if their version policy lets them."""
    if not engine.gate.open or not engine.reachable or engine.leaving:
        return False
    if engine.trust is Trust.UNSYNCED:
        return pool.settings.admit_unsynced
    return engine.trust is not Trust.UNCERTAIN


def may_close(
    pool: PoolSpec, candidates: Iterable[str], *, engines: Mapping[str, EngineState]
) -> list[str]:
    """Those of ``candidates`` (most urgent first) that may be closed now.

    ``maxUnavailable`` counts every engine that does not serve, whatever the cause, if it is to serve:
    those that are paused or asleep by wish take no part. One that does not serve may always be closed.
    The last engine of a role that serves is never closed, unless no other one of that role is to serve.
    """
    members = [
        engine
        for engine in engines.values()
        if engine.pool == pool.name and pool.goal(engine.spec.id) is Control.ACTIVE
    ]
    serving_by_role: dict[str, int] = {}
    known_by_role: dict[str, int] = {}
    room = pool.unavailable_limit()
    for engine in members:
        role, serving = engine.spec.role.value, serves(engine, pool)
        known_by_role[role] = known_by_role.get(role, 0) + 1
        serving_by_role[role] = serving_by_role.get(role, 0) + serving
        room -= not serving
    chosen = []
    for name in candidates:
        engine = engines[name]
        role = engine.spec.role.value
        if not serves(engine, pool):
            chosen.append(name)
        elif room > 0 and (serving_by_role.get(role, 0) > 1 or known_by_role.get(role, 0) <= 1):
            serving_by_role[role] = serving_by_role.get(role, 0) - 1
            room -= 1
            chosen.append(name)
    return chosen
