"""``/status``: the table in force and what this process knows of each engine, as JSON."""

from collections.abc import Callable
from typing import Any

from steersman import __version__
from steersman.clock import Clock
from steersman.engine import Role
from steersman_proxy.control.status import ControlStatus
from steersman_proxy.health.tracker import HealthTracker
from steersman_proxy.load.breaker import Breaker
from steersman_proxy.metrics import TableStatus
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.explain import explain_engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import RouteRequest
from steersman_proxy.routing.view import PoolView


class StatusPage:
    """Makes the page. It holds no keys, and shows none."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        hold: HoldQueue,
        health: HealthTracker,
        clock: Clock,
        control: Callable[[], ControlStatus] | None = None,
    ) -> None:
        self._fleet = fleet
        self._hold = hold
        self._health = health
        self._clock = clock
        self._control = control
        self._started = clock.now()

    def content(self, *, draining: bool, table: TableStatus | None) -> dict[str, Any]:
        """The page as it is now; durations in seconds, sizes in bytes."""
        self._fleet.catch_up()
        view = self._fleet.view
        return {
            "build": {"version": __version__},
            "uptime": round(self._clock.now() - self._started, 3),
            "draining": draining,
            "rl_enabled": self._fleet.rl_enabled,
            "table": self._table(table),
            "control": None if self._control is None else control_content(self._control()),
            "pools": [] if view is None else [self._pool(pool) for pool in view.pools.values()],
        }

    def _table(self, status: TableStatus | None) -> dict[str, Any]:
        view = self._fleet.view
        found: dict[str, Any] = {"epoch": None if view is None else str(view.epoch)}
        if status is not None:
            found["digest"] = status.digest
            found["source"] = status.source
            found["age"] = None if status.age is None else round(status.age, 3)
            found["failures"] = status.failures
            found["last_error"] = "\n".join(status.problems) or None
        return found

    def _pool(self, pool: PoolView) -> dict[str, Any]:
        settings = pool.settings
        return {
            "name": pool.name,
            "models": pool.row.models,
            "default": pool.row.default,
            "fleet_max": pool.fleet_max,
            "policy": settings.policy,
            "version_policy": str(settings.version_policy),
            "max_in_flight_per_engine": settings.max_in_flight_per_engine,
            "admit_unsynced": settings.admit_unsynced,
            "eligible": len(pool.eligible(Role.PLAIN, settings.version_policy).engines),
            "hold": {
                "depth": self._hold.depth(pool.name),
                "bytes": self._hold.bytes(pool.name),
                "timeout": settings.hold.timeout,
                "max_requests": settings.hold.max_requests,
                "max_bytes": settings.hold.max_bytes,
            },
            "engines": [self._engine(engine, pool) for engine in pool.engines],
        }

    def _engine(self, engine: Engine, pool: PoolView) -> dict[str, Any]:
        row = engine.row
        # What a request without a version policy of its own meets; the words of `explain`.
        request = RouteRequest(pool=pool.name, role=row.role)
        judged = explain_engine(pool, engine, request=request)
        return {
            "id": engine.id,
            "url": engine.url,
            "role": row.role,
            "runtime": row.runtime,
            "gate": {"open": row.gate.open, "count": row.gate.count},
            "control": row.control,
            "version": engine.version,
            "table_version": row.version,
            "trust": engine.trust,
            "cache_generation": row.cache_generation,
            "healthy": engine.healthy,
            "conditions": [condition.value for condition in self._health.conditions(engine)],
            "breaker": breaker_content(engine.breaker),
            "in_flight": engine.load.requests,
            "total": engine.load.total,
            "eligible": judged.eligible,
            "reason": judged.reason,
            "message": judged.sentence,
        }


def breaker_content(breaker: Breaker) -> dict[str, Any] | None:
    """The breaker of an engine; ``probe_in`` in seconds; ``None`` if it is off."""
    if not breaker.settings.enabled:
        return None
    return {
        "state": breaker.state,
        "failures": breaker.failures,
        "probing": breaker.probing,
        "probe_in": None if breaker.due is None else round(breaker.wait, 3),
    }


def control_content(status: ControlStatus) -> dict[str, Any]:
    """How the operator is followed; durations in seconds."""
    return {
        "fresh": status.fresh,
        "epoch": None if status.epoch is None else str(status.epoch),
        "term": status.term,
        "leader": status.leader,
        "leader_epoch": None if status.leader_epoch is None else str(status.leader_epoch),
        "api_url": status.api_url,
        "silent": None if status.silent is None else round(status.silent, 3),
        "reconnects": status.reconnects,
        "applied": status.applied,
        "nacks": status.nacks,
        "last_problem": status.last_problem or None,
        "operators": [
            {"address": link.address, "state": link.state, "detail": link.detail or None}
            for link in status.links
        ],
    }
