"""``/health`` and its kin on the data port: whether a request can be served now.

No engine is asked, so that the answer comes at once however busy the fleet is. These are for
clients and load balancers; Kubernetes' probes belong on ``/livez`` and ``/readyz``, which do not
take the pod down because the engines are paused.
"""

from collections import Counter

from steersman.engine import Role
from steersman.errors import Draining, NoAvailableEngine, NoTable
from steersman.policy import AnyVersion
from steersman_proxy.own.answer import OwnAnswer, json_answer
from steersman_proxy.routing.view import RoutingView


def health(view: RoutingView | None) -> OwnAnswer:
    """200 when some pool has an engine that a request with the policy ``any`` may go to.

    :raises NoAvailableEngine: if none has; with the engines counted by reason.
    """
    if view is None:
        raise NoTable("this proxy has no fleet table yet")
    reasons: Counter[str] = Counter()
    usable = {}
    for pool in view.pools.values():
        eligible = pool.eligible(Role.PLAIN, AnyVersion())
        usable[pool.name] = len(eligible.engines)
        for reason, count in eligible.filtered.items():
            reasons[reason.value] += count
    if not any(usable.values()):
        raise NoAvailableEngine("no engine is usable", reasons=dict(reasons))
    return json_answer({"status": "ok", "usable": usable})


def readiness(view: RoutingView | None, *, draining: bool) -> OwnAnswer:
    """Like :func:`health`, and also not shutting down.

    :raises NoAvailableEngine: if not ready.
    """
    if draining:
        raise Draining("the proxy is shutting down")
    return health(view)


def liveness() -> OwnAnswer:
    """200 whatever the engines do: the process serves."""
    return json_answer({"status": "ok"})
