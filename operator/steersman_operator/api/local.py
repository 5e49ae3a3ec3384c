"""The operator's local API on a unix socket: what the commands of one machine talk to.

Whoever may open the socket may do everything; its directory belongs to the user who runs the fleet.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from steersman.errors import RequestError, UnknownRoute

WATCH_GAP = 0.1
"""Seconds between two lines of a watch; changes in between are told together."""


class Edit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A wish: a state for a pool, or for one engine of it."""

    kind: str
    name: str
    state: str
    engine: str | None = None


class FleetApi(Protocol):
    """What the API needs of the operator."""

    def status(self) -> dict[str, Any]:
        """The state of the fleet."""
        ...

    async def edit(self, edit: Edit) -> int:
        """Carry a wish into the manifest; returns the generation that holds it.

        :raises RequestError: if there is no such resource, or its file cannot be edited.
        """
        ...

    async def explain(self, query: dict[str, str]) -> tuple[int, bytes]:
        """A proxy's explanation: status and JSON.

        :raises RequestError: if no proxy can be asked.
        """
        ...

    async def changed(self) -> None:
        """Wait for the next change of the fleet."""
        ...


class LocalApi:
    """The server."""

    def __init__(self, fleet: FleetApi, *, path: Path) -> None:
        self._fleet = fleet
        self._path = path
        app = web.Application(middlewares=[_errors])
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/watch", self._watch)
        app.router.add_post("/v1/edit", self._edit)
        app.router.add_get("/v1/explain", self._explain)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> None:
        """Listen.

        :raises OSError: if the socket cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop."""
        await self._runner.cleanup()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    async def _status(self, _: web.Request) -> web.Response:
        return _json(self._fleet.status())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        async for status in self._statuses():
            await answer.write(msgspec.json.encode(status) + b"\n")
        return answer

    async def _statuses(self) -> AsyncIterator[dict[str, Any]]:
        last = None
        while True:
            status = self._fleet.status()
            if status != last:
                yield status
                last = status
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._fleet.changed()
            await asyncio.sleep(WATCH_GAP)

    async def _edit(self, request: web.Request) -> web.Response:
        try:
            edit = msgspec.json.decode(await request.read(), type=Edit)
        except msgspec.DecodeError as error:
            return _failure(422, "invalid_edit", str(error))
        return _json({"generation": await self._fleet.edit(edit)})

    async def _explain(self, request: web.Request) -> web.Response:
        status, body = await self._fleet.explain(dict(request.query))
        return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return web.Response(status=error.status, body=error.body(), content_type="application/json")
    except web.HTTPNotFound:
        unknown = UnknownRoute(f"{request.path[:200]!r} is not a route of the operator")
        return web.Response(status=404, body=unknown.body(), content_type="application/json")


def _failure(status: int, code: str, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode({"error": {"code": code, "message": message}}),
        content_type="application/json",
    )


def _json(content: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
