"""From a request to its handler: journal, faults, keys, routes, and what a crash of a handler is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call, Route, Routes
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.faults import Fault, Faults, When
from steersman_sim.engine.journal import Entry, Journal
from steersman_sim.engine.listener import reset
from steersman_sim.engine.replies import Refusal, answer_of, json_reply, not_found

log = logging.getLogger(__name__)

SIDE_CHANNEL = "/_sim/"
"""Paths that belong to the simulation and to no engine."""


class Dispatcher:
    """Serves the requests of one boot."""

    def __init__(
        self,
        core: EngineCore,
        *,
        routes: Routes,
        journal: Journal,
        faults: Faults,
        side_channel: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    ) -> None:
        self._core = core
        self._routes = routes
        self._journal = journal
        self._faults = faults
        self._side_channel = side_channel

    async def dispatch(self, request: web.BaseRequest, connection: int) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        if path.startswith(SIDE_CHANNEL):
            return await self._side_channel(request)
        entry = self._journal.open(
            boot=self._core.boot,
            connection=connection,
            method=request.method,
            path=path,
            query=request.query_string,
            raw_headers=request.raw_headers,
        )
        try:
            if "Expect" in request.headers and request.transport is not None:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await request.read()
            self._journal.keep_body(entry, body)
            self._core.watch.notify()
            response = await self._answer(request, entry, body)
        except (asyncio.CancelledError, ConnectionError):
            entry.cut = entry.cut or self._core.ending
            entry.disconnected = not entry.cut
            raise
        else:
            entry.status = response.status
            return response
        finally:
            entry.close()
            self._core.watch.notify()

    async def _answer(
        self, request: web.BaseRequest, entry: Entry, body: bytes
    ) -> web.StreamResponse:
        fault = self._faults.strike(entry.path, body)

        def cut() -> None:
            entry.cut = True
            reset(request.transport)

        call = Call(request, core=self._core, entry=entry, body=body, fault=fault, reset=cut)
        if fault is not None:
            entry.fault = msgspec.json.encode(fault).decode()
            if fault.when is When.BEFORE and (replaced := await self._strike(call, fault)):
                return replaced
        response = await self._route(call)
        if fault is not None and fault.when is When.AFTER:
            return await self._strike(call, fault) or response
        return response

    async def _route(self, call: Call) -> web.StreamResponse:
        entry = call.entry
        found = self._routes.find(entry.path, entry.method)
        if found is None:
            return not_found()
        if isinstance(found, list):
            refused = json_reply({"detail": "Method Not Allowed"}, status=405)
            refused.headers["Allow"] = ", ".join(found)
            return refused
        refusal = self._core.authorize(call, found)
        if refusal is not None:
            return refusal
        if found.control:
            # The client may leave; the operation goes on.
            return await asyncio.shield(
                self._core.spawn(self._handle(call, found), name=entry.path)
            )
        return await self._handle(call, found)

    async def _handle(self, call: Call, route: Route) -> web.StreamResponse:
        try:
            return await route.handler(call)
        except Refusal as refusal:
            return refusal.reply
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return self._core.invalid(str(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # what uvicorn makes of an uncaught exception
            log.debug("handler of %s failed", call.entry.path, exc_info=error)
            return self._core.failed(error)

    async def _strike(self, call: Call, fault: Fault) -> web.Response | None:
        """Let a fault happen; ``None`` when it was a mere delay."""
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.die:
            await self._core.die(f"fault on {call.entry.path}")
        if fault.drop:
            call.reset()
        if fault.hang or fault.drop:
            await asyncio.Event().wait()
        if fault.status is None:
            return None
        return answer_of(fault.body, status=fault.status)
