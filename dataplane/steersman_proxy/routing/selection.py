"""The choice of one engine for one request. It looks and decides; counting is the fleet's part.

Eligibility comes before everything, then a target, then a routing key, then the pool's policy.
"""

from steersman.errors import RequestError
from steersman.policy import AnyVersion
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.refusal import nobody, out_of_contact, policy_of, target_out
from steersman_proxy.routing.request import LaneKey, RouteRequest, Wait
from steersman_proxy.routing.room import Room
from steersman_proxy.routing.view import PoolView


def decide(pool: PoolView, request: RouteRequest, *, room: Room) -> Engine | Wait | RequestError:
    """Who takes the request now; else whether it is worth waiting; else why not.

    A request waits if somebody eligible is only full, or if some engine is out for nothing but an
    operation (:data:`~steersman_proxy.routing.eligibility.WAITABLE`). Nobody waits if the pool's
    hold is off. Whatever waits already goes on waiting while the operator is out of contact, if it
    needs that.
    """
    if withheld(pool, request):
        return Wait(lane_of(pool, request)) if pool.may_hold else out_of_contact(pool, request)
    if request.target is not None:
        return _decide_target(pool, request, room=room)
    eligible = pool.eligible(request.role, policy_of(pool, request))
    if request.affinity is not None:
        chosen = _by_key(pool, request, request.affinity, eligible=eligible, room=room)
    elif not eligible.engines:
        chosen = None
    elif room.unlimited:
        chosen = pool.choose(eligible)
    else:
        chosen = pool.chooser.choose_admitted(eligible, room.admits)
    if chosen is not None:
        return chosen
    if pool.may_hold and _worth_waiting(pool, request, eligible=eligible):
        return Wait(lane_of(pool, request))
    return nobody(pool, request)


def decide_new(
    pool: PoolView, request: RouteRequest, *, room: Room
) -> Engine | Wait | RequestError:
    """Like :func:`decide`, for a request that just came: it does not overtake those who wait.

    Nobody overtakes in a lane. And where capacity is scarce, what was just given back belongs to
    those who wait, in whichever lane, until they have been asked. Out of contact with the operator,
    what needs contact does not begin to wait.
    """
    if withheld(pool, request):
        return out_of_contact(pool, request)
    if not pool.queue.tickets or not pool.may_hold:
        return decide(pool, request, room=room)
    lane = lane_of(pool, request)
    in_line = pool.queue.lane(lane) is not None
    if in_line and request.target is None:
        # Before looking for room: where everybody is full that means asking every engine.
        return Wait(lane)
    outcome = decide(pool, request, room=room)
    if isinstance(outcome, Engine) and (in_line or (pool.limit and pool.queue.due.room)):
        return Wait(lane)
    return outcome


def withheld(pool: PoolView, request: RouteRequest) -> bool:
    """Whether the request needs the operator to be in contact, and it is not."""
    return (
        pool.freshness.stale
        and pool.rl_enabled
        and (pool.settings.fence or not isinstance(policy_of(pool, request), AnyVersion))
    )


def lane_of(pool: PoolView, request: RouteRequest) -> LaneKey:
    """What the request would wait for.

    That is one engine if it is the request's target, or the owner of its routing key and worth
    waiting for under ``sticky_pause``. A target that left has a lane of its own, so that nobody
    stands before its refusal.
    """
    policy = policy_of(pool, request)
    only: str | None = None
    if request.target is not None:
        engine = pool.find(request.target)
        only = request.target if engine is None else engine.id
    elif request.affinity is not None and pool.settings.sticky_pause:
        owner = pool.rendezvous(request.role).first(request.affinity)
        if owner is not None and owner.id not in request.excluded:
            eligible = pool.eligible(request.role, policy)
            if eligible.has(owner) or eligible.may_come(owner):
                only = owner.id
    return LaneKey(
        pool=pool.name,
        role=request.role,
        policy=policy,
        engine=only,
        excluded=request.excluded,
    )


def _decide_target(
    pool: PoolView, request: RouteRequest, *, room: Room
) -> Engine | Wait | RequestError:
    """The target or nobody. It is worth waiting for while it is only full."""
    assert request.target is not None
    engine = pool.find(request.target)
    if engine is None:
        return target_out(pool, request, engine=None, reason=None)
    reason = pool.reason_out(engine, role=request.role, policy=policy_of(pool, request))
    if reason is None and engine.id in request.excluded:
        reason = Reason.EXCLUDED
    if reason is None and room.full(engine):
        if pool.may_hold:
            return Wait(lane_of(pool, request))
        reason = Reason.FULL
    return engine if reason is None else target_out(pool, request, engine=engine, reason=reason)


def _by_key(
    pool: PoolView, request: RouteRequest, key: str, *, eligible: Eligible, room: Room
) -> Engine | None:
    """The owner of the routing key, else the next-ranked engine that can take the request.

    The release window does not apply to the owner: keys are spread evenly by themselves, and
    breaking a pin costs a prefill. Under ``sticky_pause`` the next-ranked ones are only for owners
    that an operation will not bring back.
    """
    ranking = pool.rendezvous(request.role).ranked(key)
    owner = next(ranking, None)
    if owner is None:
        return None
    if owner.id not in request.excluded:
        if eligible.has(owner) and not room.full(owner):
            return owner
        if (
            pool.settings.sticky_pause
            and pool.may_hold
            and (eligible.has(owner) or eligible.may_come(owner))
        ):
            return None
    for engine in ranking:
        if eligible.has(engine) and room.admits(engine):
            return engine
    return None


def _worth_waiting(pool: PoolView, request: RouteRequest, *, eligible: Eligible) -> bool:
    """Whether an answer or the end of an operation could bring an engine for the request."""
    candidates = eligible.mask | eligible.waitable_mask
    for engine_id in request.excluded:
        engine = pool.by_id.get(engine_id)
        if engine is not None:
            candidates &= ~(1 << engine.index)
    return candidates != 0
