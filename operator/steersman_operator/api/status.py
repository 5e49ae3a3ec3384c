"""The state of the fleet as JSON: what ``steersman get`` and ``describe`` show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from steersman.engine import Control, Runtime
from steersman_operator.api.conditions import conditions_of
from steersman_operator.api.standing import Standing, display_name, standing, synced
from steersman_operator.fleet.barrier import in_flight
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, ProxyState, State, Timing


class ProxyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One proxy process by the platform's account."""

    pid: int | None = None
    metrics_url: str | None = None


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A RolloutEngine as it is written, where, and what is wrong there."""

    spec: Mapping[str, Any] = {}
    """The spec in force, in the form in which it can be written; empty if it is not known."""
    file: str = ""
    line: int = 0
    created: float | None = None
    """Seconds since 1970."""
    errors: Sequence[str] = ()
    """Why its file cannot be used as it is now."""
    conflicts: Sequence[str] = ()
    """Sentences about what another resource claims as well."""
    lost: Sequence[str] = ()
    """Those about what the other one has, and this one does not get."""


class VersionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One WeightVersion as it is written."""

    name: str
    model: str
    version: str
    ordinal: int | None = None
    source: str = ""
    """Where the weights come from, such as ``Disk /models/7`` or ``External``."""
    digest: str | None = None
    spec: Mapping[str, Any] = {}
    """All of it, in the form in which it can be written."""
    file: str = ""
    line: int = 0
    created: float | None = None


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the core does not know, and people ask for."""

    pid: int = 0
    uptime: float = 0.0
    """Seconds since the operator started."""
    endpoint: str = ""
    """Where clients reach the proxies."""
    metrics_url: str | None = None
    """Where the operator shows its own metrics."""
    proxies: Mapping[str, ProxyFacts] = {}
    """By uid."""
    pools: Mapping[str, PoolFacts] = {}
    """By name."""
    errors: Sequence[str] = ()
    """Why manifests cannot be used as they are now."""
    warnings: Sequence[str] = ()
    """What else is wrong with them, such as two that claim one engine."""
    weight_versions: Sequence[VersionFacts] = ()


NOTHING_KNOWN = PoolFacts()
NO_PROCESS = ProxyFacts()

_RUNTIMES = frozenset({Runtime.SGLANG.value, Runtime.VLLM.value})


def status_of(state: State, *, timing: Timing, now: float, facts: FleetFacts) -> dict[str, Any]:
    """Everything, ready to be written as JSON. ``now`` is on the clock of the events."""
    members: dict[str, list[EngineState]] = {name: [] for name in state.pools}
    for engine in state.engines.values():
        members[engine.pool].append(engine)
    return {
        "operator": {
            "pid": facts.pid,
            "term": state.term,
            "leading": state.leading,
            "published": state.published,
            "epoch": str(state.epoch),
            "uptime": round(facts.uptime, 1),
            "metrics_url": facts.metrics_url,
        },
        "endpoint": facts.endpoint,
        "proxies": [
            _proxy(proxy, facts.proxies.get(uid, NO_PROCESS), now=now)
            for uid, proxy in sorted(state.proxies.items())
        ],
        "errors": list(facts.errors),
        "warnings": list(facts.warnings),
        "pools": [
            _pool(
                state,
                pool,
                [
                    standing(engine, pool, state=state, timing=timing, now=now)
                    for engine in members[pool.name]
                ],
                facts.pools.get(pool.name, NOTHING_KNOWN),
            )
            for pool in state.pools.values()
        ],
        "weight_versions": [msgspec.to_builtins(version) for version in facts.weight_versions],
    }


def _proxy(proxy: ProxyState, facts: ProxyFacts, *, now: float) -> dict[str, Any]:
    return {
        "uid": proxy.ref.uid,
        "boot": proxy.ref.boot,
        "connected": proxy.connected,
        "listed": proxy.listed,
        "acked": None if proxy.acked is None else str(proxy.acked),
        "heard_age": None if proxy.heard is None else round(max(0.0, now - proxy.heard), 1),
        "pid": facts.pid,
        "metrics_url": facts.metrics_url,
    }


def _pool(
    state: State, pool: PoolSpec, engines: list[Standing], facts: PoolFacts
) -> dict[str, Any]:
    fleet_max = state.promoted.get(pool.name)
    controls = Counter(one.control for one in engines)
    opened = sum(one.takes_requests for one in engines)
    return {
        "name": pool.name,
        "models": list(pool.models),
        "default": pool.default,
        "state": _word(pool.state),
        "generation": pool.generation,
        "runtime": _runtime_of_all(engines),
        "drift": pool.drift.value,
        "on_unreachable_proxy": pool.on_unreachable.value,
        "overrides": _overrides(pool, engines),
        "spec": dict(facts.spec),
        "file": facts.file,
        "line": facts.line,
        "created": facts.created,
        "manifest_errors": list(facts.errors),
        "fleet_max": fleet_max,
        "target": None if pool.weights is None else msgspec.to_builtins(pool.weights),
        "weights": _progress(pool, engines),
        "rollout_paused": pool.rollout_paused,
        "conditions": [
            msgspec.structs.asdict(condition)
            for condition in conditions_of(
                engines,
                pool=pool,
                published=state.leading and state.published,
                fleet_max=fleet_max,
                conflicts=facts.conflicts,
                lost=facts.lost,
                errors=facts.errors,
            )
        ],
        "counts": {
            "total": len(engines),
            "ready": sum(one.in_place for one in engines),
            "open": opened,
            "closed": len(engines) - opened,
            "paused": controls[Control.PAUSED],
            "asleep": controls[Control.ASLEEP],
        },
        "engines": [_engine(state, pool, one) for one in engines],
    }


def _progress(pool: PoolSpec, engines: Sequence[Standing]) -> dict[str, int]:
    """How many engines have the weights that are asked for, of how many."""
    staying = [] if pool.weights is None else [one for one in engines if not one.engine.leaving]
    return {
        "synced": sum(synced(one.engine, pool) for one in staying),
        "total": len(staying),
    }


def _word(control: Control) -> str:
    """A state as it is written in manifests."""
    return control.value.capitalize()


def _runtime(engine: EngineState) -> str:
    """What it runs: what was found out, else what is declared."""
    # Boots are named after the runtime that tells them; the core does not know more.
    named, dash, _ = (engine.facts.boot_id or "").partition("-")
    return named if dash and named in _RUNTIMES else engine.spec.runtime.value


def _runtime_of_all(engines: Sequence[Standing]) -> str:
    """What the engines run, if it is the same everywhere."""
    found = {_runtime(one.engine) for one in engines}
    return found.pop() if len(found) == 1 else Runtime.UNKNOWN.value


def _overrides(pool: PoolSpec, engines: list[Standing]) -> list[dict[str, str]]:
    if not pool.overrides:
        return []
    names = {one.engine.spec.id: one.name for one in engines}
    return [
        {"engine": names.get(engine, engine), "state": _word(control)}
        for engine, control in pool.overrides.items()
    ]


def _engine(state: State, pool: PoolSpec, one: Standing) -> dict[str, Any]:
    engine = one.engine
    spec, operation, control = engine.spec, engine.op, one.control
    counts: list[int | None] = []
    if operation is not None and engine.closed_at is not None:
        # Reported only while an operation waits for it.
        counts = [in_flight(proxy, spec.id, engine.closed_at) for proxy in state.proxies.values()]
    known = [count for count in counts if count is not None]
    return {
        "id": spec.id,
        "name": display_name(engine),
        "url": spec.url,
        "runtime": _runtime(engine),
        "role": spec.role.value,
        "control": "unknown" if control is None else control.value,
        "desired": one.goal.value,
        "gate": "open" if one.open else "closed",
        "takes_requests": one.takes_requests,
        "version": engine.version,
        "trust": engine.trust.value,
        "synced": synced(engine, pool),
        "phase": one.phase,
        "problem": one.trouble or one.waiting,
        "waiting": one.waiting,
        "withheld": one.withheld,
        "becoming": None if operation is None else operation.goal.value,
        "in_flight": sum(known) if known else None,
        "reachable": engine.reachable,
        "boot_id": engine.facts.boot_id,
        "external": engine.external,
        "leaving": engine.leaving,
    }
