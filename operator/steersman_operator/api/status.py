"""The state of the fleet as JSON: what ``steersman get`` and ``describe`` show."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from steersman.engine import Control
from steersman_operator.api.conditions import conditions_of, phase_of, settled
from steersman_operator.fleet.barrier import barrier
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, Phase, State, Timing


def status_of(
    state: State, *, timing: Timing, pids: Mapping[str, int | None], now: float
) -> dict[str, Any]:
    """Everything; ``pids`` are those of the proxies by uid, where they are known."""
    return {
        "epoch": str(state.epoch),
        "term": state.term,
        "leading": state.leading,
        "published": state.published,
        "proxies": [
            {
                "uid": uid,
                "boot": proxy.ref.boot,
                "connected": proxy.connected,
                "listed": proxy.listed,
                "acked": None if proxy.acked is None else str(proxy.acked),
                "heard_age": None if proxy.heard is None else round(now - proxy.heard, 3),
                "pid": pids.get(uid),
            }
            for uid, proxy in sorted(state.proxies.items())
        ],
        "pools": [_pool(state, pool, timing=timing, now=now) for pool in state.pools.values()],
    }


def _pool(state: State, pool: PoolSpec, *, timing: Timing, now: float) -> dict[str, Any]:
    engines = [engine for engine in state.engines.values() if engine.pool == pool.name]
    fleet_max = state.promoted.get(pool.name)
    counts = Counter(engine.facts.control for engine in engines)
    return {
        "name": pool.name,
        "models": list(pool.models),
        "state": pool.state.value.capitalize(),
        "generation": pool.generation,
        "fleet_max": fleet_max,
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
            }
            for condition in conditions_of(pool, engines, fleet_max=fleet_max)
        ],
        "counts": {
            "total": len(engines),
            "ready": sum(settled(engine, pool) and engine.reachable for engine in engines),
            "open": sum(engine.gate.open for engine in engines),
            "closed": sum(not engine.gate.open for engine in engines),
            "paused": counts[Control.PAUSED],
            "asleep": counts[Control.ASLEEP],
        },
        "engines": [_engine(state, engine, pool, timing=timing, now=now) for engine in engines],
    }


def _engine(
    state: State, engine: EngineState, pool: PoolSpec, *, timing: Timing, now: float
) -> dict[str, Any]:
    control = engine.facts.control
    operation = engine.op
    message = engine.problem
    if operation is not None and operation.phase is Phase.DRAINING and not message:
        stands = barrier(
            engine,
            proxies=state.proxies,
            on_unreachable=pool.on_unreachable,
            now=now,
            since=state.elected_at,
            timing=timing,
        )
        message = stands.sentence(now=now, proxies=state.proxies)
    reports = [proxy.in_flight.get(engine.spec.id) for proxy in state.proxies.values()]
    watched = engine.spec.id in state.watched
    return {
        "id": engine.spec.id,
        "name": engine.spec.id.rpartition("/")[2],
        "url": engine.spec.url,
        "runtime": engine.spec.runtime.value,
        "role": engine.spec.role.value,
        "control": "unknown" if control is None else control.value,
        "desired": pool.goal(engine.spec.id).value,
        "gate": "open" if engine.gate.open else "closed",
        "version": engine.version,
        "trust": engine.trust.value,
        "phase": phase_of(engine, pool),
        "problem": message,
        # Reported only while an operation waits for it.
        "in_flight": sum(report[0] for report in reports if report) if watched else None,
        "reachable": engine.reachable,
        "boot_id": engine.facts.boot_id,
        "external": engine.external,
    }
