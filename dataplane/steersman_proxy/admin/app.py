"""The aiohttp application of the metrics port.

It takes no keys: bind it where only the cluster's own can reach it. It changes nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from steersman.errors import Draining, MethodNotAllowed, NoTable, RequestError, UnknownRoute
from steersman.policy import parse_policy
from steersman_proxy.admin.status import StatusPage
from steersman_proxy.metrics import ProxyMetrics, TableStatus
from steersman_proxy.own.pools import one_pool, view_of
from steersman_proxy.routing.explain import Explanation, explain
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.request import RouteRequest


def admin_app(
    fleet: Fleet,
    *,
    metrics: ProxyMetrics,
    status: StatusPage,
    draining: Callable[[], bool],
    table: Callable[[], TableStatus] | None = None,
) -> web.Application:
    """The pages ``/livez``, ``/readyz``, ``/metrics``, ``/status`` and ``/explain``.

    ``draining`` tells whether a shutdown has begun, ``table`` how the reading of the table fares.
    """

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if draining():
            raise Draining("the proxy is shutting down")
        if fleet.view is None:
            raise NoTable("this proxy has no fleet table yet")
        return web.Response(text="ok\n")

    async def scrape(request: web.Request) -> web.Response:
        text, content_type = metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def show_status(_: web.Request) -> web.Response:
        current = None if table is None else table()
        return _json(status.content(draining=draining(), table=current))

    async def show_explanation(request: web.Request) -> web.Response:
        return _json(explanation(fleet, dict(request.query)))

    app = web.Application(middlewares=[_errors])
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/status", show_status)
    app.router.add_get("/explain", show_explanation)
    return app


def explanation(fleet: Fleet, query: dict[str, str]) -> Explanation:
    """What a request with these members would meet.

    ``model`` or ``pool``, and ``policy`` (a version policy), ``key`` (a routing key) and
    ``target``; an empty one counts as not given.

    :raises RequestError: if there is no such pool or model, or the policy is not in the grammar.
    """
    pool = one_pool(view_of(fleet), pool=query.get("pool"), model=query.get("model"))
    policy = query.get("policy")
    return explain(
        fleet,
        RouteRequest(
            pool=pool.name,
            policy=parse_policy(policy) if policy else None,
            affinity=query.get("key") or None,
            target=query.get("target") or None,
        ),
    )


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Any]
) -> web.StreamResponse:
    """Every error is JSON of the same shape as on the data port."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted(error.allowed_methods))
        return _error(MethodNotAllowed(f"{request.path} takes {allow}"), headers={"Allow": allow})
    except web.HTTPNotFound:
        return _error(UnknownRoute(f"{request.path[:200]!r} is not a page of the metrics port"))
    except RequestError as error:
        return _error(error)
    return response


def _json(content: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _error(error: RequestError, *, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=error.status,
        body=error.body(),
        content_type="application/json",
        headers={"x-smg-error-code": error.code} | (headers or {}),
    )
