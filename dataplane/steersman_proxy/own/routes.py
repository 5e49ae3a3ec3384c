"""Serves the routes of :data:`Kind.OWN`: which function answers which path."""

import contextlib
import time
from collections.abc import Callable

from steersman.errors import RequestError, UnknownRoute
from steersman_proxy.exchange.messages import RequestHead, Serve
from steersman_proxy.own import models, usable
from steersman_proxy.own.abort import abort, abort_one, read_abort
from steersman_proxy.own.answer import OwnAnswer, error_answer
from steersman_proxy.own.asking import AskFailed, EngineAsker, NotAsked
from steersman_proxy.own.fanout import Refused
from steersman_proxy.own.flush import flush
from steersman_proxy.own.info import engine_info
from steersman_proxy.own.loads import loads
from steersman_proxy.own.pools import (
    named_pool,
    one_pool,
    query_value,
    query_without,
    view_of,
)
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet


class OwnRoutes:
    """The routes that no engine is sent.

    ``draining`` tells whether a shutdown has begun. Engines are asked by ``asker``.
    """

    def __init__(self, fleet: Fleet, *, asker: EngineAsker, draining: Callable[[], bool]) -> None:
        self._fleet = fleet
        self._asker = asker
        self._draining = draining
        self._created = int(time.time())

    async def serve(self, action: Serve, head: RequestHead) -> OwnAnswer:
        """The answer to one request; errors are answers as well. Cancelling ends what it asks."""
        try:
            return await self._serve(action, head)
        except RequestError as error:
            return error_answer(error)

    async def abort_one(self, engine: Engine, rid: str) -> None:
        """Tell an engine that nobody waits for a request any more; never raises an engine's fault."""
        with contextlib.suppress(Refused, NotAsked, AskFailed):
            await abort_one(self._asker, engine, rid)

    async def _serve(self, action: Serve, head: RequestHead) -> OwnAnswer:
        path, fleet = action.route.path, self._fleet
        fleet.catch_up()
        match path:
            case "/liveness":
                return usable.liveness()
            case "/health" | "/health_generate":
                return usable.health(fleet.view)
            case "/readiness":
                return usable.readiness(fleet.view, draining=self._draining())
            case "/v1/models":
                return models.list_models(view_of(fleet), created=self._created)
            case models.PREFIX:
                view = view_of(fleet)
                return models.retrieve_model(view, path=head.path, created=self._created)
            case _:
                return await self._ask_engines(action, head)

    async def _ask_engines(self, action: Serve, head: RequestHead) -> OwnAnswer:
        path, asker, view = action.route.path, self._asker, view_of(self._fleet)
        model = query_value(head, "model")
        match path:
            case "/v1/loads" | "/get_loads":
                named = named_pool(view, pool=action.pool, model=model)
                pools = list(view.pools.values()) if named is None else [named]
                return await loads(asker, pools, head)
            case "/abort_request" | "/abort_requests":
                request = read_abort(path, action.body)
                pool = one_pool(view, pool=action.pool, model=model or request.model)
                return await abort(asker, pool, request)
            case "/flush_cache":
                pool = one_pool(view, pool=action.pool, model=model)
                return await flush(asker, pool, head)
            case "/model_info" | "/get_model_info" | "/server_info" | "/get_server_info":
                pool = one_pool(view, pool=action.pool, model=model)
                query = query_without(head, "model")
                return await engine_info(asker, pool, path=path, query=query)
            case _:
                raise UnknownRoute(f"{path!r} has no answer here")
