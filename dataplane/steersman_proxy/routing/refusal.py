"""The words of a refusal: which reasons keep how many engines out.

Made from the same reasons as the routing view, so a 503 never contradicts ``explain``.
"""

from math import ceil

from steersman.errors import (
    ControlStale,
    HoldFull,
    HoldTimeout,
    NoAvailableEngine,
    TargetUnavailable,
)
from steersman.policy import VersionPolicy
from steersman_proxy.load.breaker import Breaker
from steersman_proxy.routing.eligibility import Reason, sentence
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import RouteRequest
from steersman_proxy.routing.view import PoolView


def policy_of(pool: PoolView, request: RouteRequest) -> VersionPolicy:
    """The version policy that holds for a request: its own, else the pool's."""
    return pool.settings.version_policy if request.policy is None else request.policy


def count_reasons(pool: PoolView, request: RouteRequest) -> dict[Reason, int]:
    """How many engines of the pool each reason keeps from this request now."""
    eligible = pool.eligible(request.role, policy_of(pool, request))
    counts = dict(eligible.filtered)
    for engine in eligible.engines:
        if engine.id in request.excluded:
            reason = Reason.EXCLUDED
        elif 0 < pool.limit <= engine.load.requests:
            reason = Reason.FULL
        else:
            continue
        counts[reason] = counts.get(reason, 0) + 1
    return {reason: counts[reason] for reason in Reason if reason in counts}


def summary(pool: PoolView, request: RouteRequest) -> str:
    """The reasons in one line: ``2 paused, 1 stale (policy latest-only, fleet max 9)``."""
    counts = count_reasons(pool, request)
    if not counts:
        return "it has none" if not pool.engines else f"it has none for {request.role.value}"
    text = ", ".join(
        f"{count} {reason.value.replace('_', ' ')}" for reason, count in counts.items()
    )
    if not pool.rl_enabled:
        return text
    newest = f"fleet max {pool.fleet_max}" if pool.fleet_max else "no version yet"
    return f"{text} (policy {policy_of(pool, request)}, {newest})"


def nobody(pool: PoolView, request: RouteRequest) -> NoAvailableEngine:
    """No engine may take the request, and waiting would not help."""
    error = NoAvailableEngine(
        f"no engine of pool {pool.name} may take this request: {summary(pool, request)}",
        reasons=_plain(count_reasons(pool, request)),
    )
    tripped = pool.eligible(request.role, policy_of(pool, request)).first_tripped
    if tripped is not None:
        error.retry_after = _until_probe(tripped)
    return error


def _until_probe(breaker: Breaker) -> float:
    """Whole seconds, rounded up: who comes back then must not find the breaker still open."""
    return float(max(1, ceil(breaker.wait)))


def target_out(
    pool: PoolView, request: RouteRequest, *, engine: Engine | None, reason: Reason | None
) -> TargetUnavailable:
    """The engine that the request insists on is unknown (``None``) or out for ``reason``."""
    if engine is None or reason is None:
        return TargetUnavailable(
            f"the target {(request.target or '')[:160]!a} is no engine of pool {pool.name}"
        )
    why = sentence(
        reason,
        engine,
        fleet_max=pool.fleet_max,
        policy=policy_of(pool, request),
        role=request.role,
        in_flight=engine.load.requests,
    )
    error = TargetUnavailable(
        f"the target {engine.id} ({engine.url}) may not take this request: {reason.value}: {why}",
        reasons={reason.value: 1},
    )
    if reason is Reason.BREAKER_OPEN:
        error.retry_after = _until_probe(engine.breaker)
    return error


def out_of_contact(pool: PoolView, request: RouteRequest) -> ControlStale:
    """The request needs the operator to be in contact, and it is not."""
    if pool.settings.fence:
        why = f"pool {pool.name} starts nothing without it"
    else:
        why = f"the policy {policy_of(pool, request)} cannot be proven for pool {pool.name}"
    return ControlStale(f"the operator is out of contact: {why}")


def waited_too_long(pool: PoolView, request: RouteRequest, *, waited: float) -> HoldTimeout:
    """The time of ``hold.timeout`` is over."""
    counts = count_reasons(pool, request)
    why = summary(pool, request) if counts else "engines were opening, but not fast enough"
    return HoldTimeout(
        f"waited {waited:.3g} s for an engine of pool {pool.name}: {why}", reasons=_plain(counts)
    )


def too_many_wait(pool: PoolView, request: RouteRequest, *, waiting: int, held: int) -> HoldFull:
    """One more waiting request would exceed ``hold.max_requests`` or ``hold.max_bytes``."""
    limits = pool.settings.hold
    return HoldFull(
        f"{waiting} requests with {held} bytes wait for pool {pool.name} already, and this one has "
        f"{request.body_bytes} bytes; at most {limits.max_requests} requests with "
        f"{limits.max_bytes} bytes may wait: {summary(pool, request)}",
        reasons=_plain(count_reasons(pool, request)),
    )


def _plain(counts: dict[Reason, int]) -> dict[str, int]:
    return {reason.value: count for reason, count in counts.items()}
