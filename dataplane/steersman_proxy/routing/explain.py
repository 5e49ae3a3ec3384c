"""Why this engine: every engine of a pool with the reason it is in or out, and the policy's numbers.

Served for ``x-steersman-explain`` and printed by ``steersman explain``. Nothing is counted and no
turn is used up by asking.
"""

import msgspec

from steersman.engine import Control, Role, Trust
from steersman.errors import ModelNotFound, NoTable
from steersman_proxy.routing.eligibility import Reason, sentence
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.policies.load_only import LoadOnly
from steersman_proxy.routing.policies.round_robin import RoundRobin
from steersman_proxy.routing.refusal import policy_of, summary
from steersman_proxy.routing.request import RouteRequest
from steersman_proxy.routing.room import Room
from steersman_proxy.routing.selection import decide_new
from steersman_proxy.routing.view import PoolView


class ExplainedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, seen by one kind of request."""

    id: str
    url: str
    role: Role
    version: str | None
    control: Control
    gate: str
    """``open`` or ``closed``."""
    trust: Trust
    in_flight: int
    """Requests of this proxy."""
    eligible: bool
    reason: Reason | None
    """What keeps it out; of an eligible engine ``full`` or ``excluded``, if it is."""
    sentence: str
    rank: int | None = None
    """Place among the known engines for the request's routing key, 1 is its owner; ``None`` without
    a key."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to one request now."""

    pool: str
    epoch: str
    routing_policy: str
    policy: str
    """The version policy."""
    fleet_max: str | None
    outcome: str
    """``select``, ``hold`` or ``refuse``."""
    chosen: str | None
    """The id of the engine that would serve; ``None`` if chance decides among several, or if none
    does."""
    summary: str
    """One sentence; the same words as the 503 would have."""
    waiting: int
    """Requests that wait for the pool already."""
    engines: tuple[ExplainedEngine, ...]


def explain(fleet: Fleet, request: RouteRequest) -> Explanation:
    """What :meth:`Fleet.select` would do with ``request``, and why.

    :raises NoTable: if there is none yet.
    :raises ModelNotFound: if the table does not have the pool.
    """
    fleet.catch_up()
    view = fleet.view
    if view is None:
        raise NoTable("the proxy has no fleet table yet")
    pool = view.pools.get(request.pool)
    if pool is None:
        raise ModelNotFound(f"there is no pool {request.pool[:160]!a}")
    policy = policy_of(pool, request)
    eligible = pool.eligible(request.role, policy)
    outcome, chosen, text = _outcome(pool, request, eligible=eligible)
    ranks: dict[Engine, int] = {}
    if request.affinity is not None:
        ranking = pool.rendezvous(request.role).ranked(request.affinity)
        ranks = {engine: rank for rank, engine in enumerate(ranking, 1)}
    return Explanation(
        pool=pool.name,
        epoch=str(view.epoch),
        routing_policy=pool.settings.policy.value,
        policy=str(policy),
        fleet_max=pool.fleet_max,
        outcome=outcome,
        chosen=chosen,
        summary=text,
        waiting=len(pool.queue.tickets),
        engines=tuple(
            explain_engine(pool, engine, request=request, rank=ranks.get(engine))
            for engine in pool.engines
        ),
    )


def explain_engine(
    pool: PoolView, engine: Engine, *, request: RouteRequest, rank: int | None = None
) -> ExplainedEngine:
    """One engine of ``pool`` in the eyes of ``request``."""
    policy = policy_of(pool, request)
    reason = pool.reason_out(engine, role=request.role, policy=policy)
    in_flight = engine.load.requests
    is_eligible = reason is None
    if reason is None and engine.id in request.excluded:
        reason = Reason.EXCLUDED
    elif reason is None and 0 < pool.limit <= in_flight:
        reason = Reason.FULL
    return ExplainedEngine(
        id=engine.id,
        url=engine.url,
        role=engine.row.role,
        version=engine.version,
        control=engine.row.control,
        gate="open" if engine.row.gate.open else "closed",
        trust=engine.trust,
        in_flight=in_flight,
        eligible=is_eligible,
        reason=reason,
        sentence=sentence(
            reason,
            engine,
            fleet_max=pool.fleet_max,
            policy=policy,
            role=request.role,
            in_flight=in_flight,
        ),
        rank=rank,
    )


def _outcome(
    pool: PoolView, request: RouteRequest, *, eligible: Eligible
) -> tuple[str, str | None, str]:
    """Outcome, chosen engine, one sentence."""
    cursor = eligible.cursor
    decision = decide_new(pool, request, room=Room(limit=pool.limit, excluded=request.excluded))
    # Asking takes nobody's turn. (Random draws are nobody's.)
    eligible.cursor = cursor
    if isinstance(decision, Engine):
        by_chance = not (
            request.affinity is not None
            or request.target is not None
            or len(eligible.engines) == 1
            or isinstance(pool.chooser, RoundRobin | LoadOnly)
        )
        if by_chance:
            return "select", None, f"one of {len(eligible.engines)} eligible engines, by chance"
        return "select", decision.id, f"{decision.id} would serve"
    if isinstance(decision, Exception):
        return "refuse", None, str(decision)
    return "hold", None, f"would wait for an engine of pool {pool.name}: {summary(pool, request)}"
