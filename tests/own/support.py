"""The router-owned routes behind a plain server, so that real clients can call them."""

from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from steersman.clock import MonotonicClock
from steersman_proxy.exchange.messages import RequestHead, Serve
from steersman_proxy.exchange.routes import find_route
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.answer import OwnAnswer
from steersman_proxy.own.asking import EngineAsker
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.fleet import Fleet
from tests.observation.support import served


class Own:
    """Calls the routes as an adapter does."""

    def __init__(self, routes: OwnRoutes) -> None:
        self._routes = routes
        self.draining = False

    async def __call__(
        self,
        target: str,
        *,
        method: str = "GET",
        pool: str | None = None,
        body: Any = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> OwnAnswer:
        head = RequestHead(method, target, list(headers))
        route = find_route(head.path)
        assert route is not None, f"{target} is no route"
        assert method in route.methods
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        chunks = [] if body is None else [content]
        return await self._routes.serve(Serve(route, pool, chunks), head)


def json_of(answer: OwnAnswer) -> Any:
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    return msgspec.json.decode(answer.body)


def code_of(answer: OwnAnswer) -> tuple[int, str]:
    """Status and error code, which the header repeats."""
    code = json_of(answer)["error"]["code"]
    assert dict(answer.headers)[b"x-smg-error-code"].decode() == code
    return answer.status, code


@asynccontextmanager
async def own_routes(fleet: Fleet, *, keys: dict[str, str] | None = None):
    """The routes on ``fleet``; ``keys`` are the engines' by pool."""
    upstream = UpstreamPool(clock=MonotonicClock())
    asker = EngineAsker(upstream, engine_keys=keys or {}, rl_enabled=fleet.rl_enabled)
    own: Own
    routes = OwnRoutes(fleet, asker=asker, draining=lambda: own.draining)
    own = Own(routes)
    try:
        yield own
    finally:
        await upstream.close()


@asynccontextmanager
async def own_server(own: Own):
    """A server whose every path is ``own``'s; its URL."""

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        answer = await own(
            request.raw_path,
            method=request.method,
            pool=request.headers.get("x-steersman-pool"),
            body=body or None,
            headers=tuple(request.raw_headers),
        )
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        return web.Response(status=answer.status, headers=headers, body=answer.body)

    async with served(handle) as url:
        yield url
