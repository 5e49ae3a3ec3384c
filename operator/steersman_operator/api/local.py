"""The operator's local API on a unix socket: what the commands of one machine talk to.

Whoever may open the socket may do everything; its directory belongs to the user who runs the fleet.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from steersman.errors import BodyTooLarge, MethodNotAllowed, RequestError, UnknownRoute
from steersman_operator.api.watching import Lines
from steersman_operator.api.wishes import (
    Edit,
    EditDone,
    FleetApi,
    Publish,
    Refit,
    RefitDone,
    Rollout,
)

_log = logging.getLogger("steersman.api")

T = TypeVar("T")

MAX_BODY = 64 * 1024
"""Bytes of what is asked for."""

BODY_TIMEOUT = 10.0
"""Seconds that a body may take."""

CLOSE_GRACE = 0.5
"""Seconds that answers under way get when the operator ends."""

BACKLOG = 1024
"""Connections that may wait to be accepted."""


class LocalApi:
    """The server."""

    def __init__(self, fleet: FleetApi, *, path: Path) -> None:
        self._fleet = fleet
        self._path = path
        self._lines = Lines(fleet.status, fleet.changed)
        self._work: set[asyncio.Task[Any]] = set()
        app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/watch", self._watch, allow_head=False)
        app.router.add_post("/v1/edit", self._edit)
        app.router.add_post("/v1/refit", self._refit)
        app.router.add_post("/v1/rollout", self._rollout)
        app.router.add_post("/v1/publish", self._publish)
        app.router.add_post("/v1/read", self._read)
        # A watcher that leaves is found out at once, not at the next line.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=CLOSE_GRACE, handler_cancellation=True
        )

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return self._lines.watchers

    async def start(self) -> None:
        """Listen.

        :raises OSError: if the socket cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        await self._runner.setup()
        site = web.UnixSite(self._runner, str(self._path), backlog=BACKLOG)
        await site.start()
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop. An edit that has begun is carried out."""
        await self._lines.close()
        await self._runner.cleanup()
        if self._work:
            await asyncio.wait(self._work)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    async def _status(self, _: web.Request) -> web.Response:
        return _json(self._fleet.status())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        # Closed here and not by the garbage collector, so that who has left is not counted.
        async with contextlib.aclosing(self._lines.follow()) as lines:
            async for line in lines:
                await answer.write(line)
        return answer

    async def _edit(self, request: web.Request) -> web.Response:
        edit = await _body(request, Edit, "an edit")
        return _json(_told(await self._carried_out(self._fleet.edit(edit))))

    async def _refit(self, request: web.Request) -> web.Response:
        refit = await _body(request, Refit, "a refit")
        return _refitted(await self._carried_out(self._fleet.refit(refit)))

    async def _rollout(self, request: web.Request) -> web.Response:
        rollout = await _body(request, Rollout, "a verb of a rollout")
        return _refitted(await self._carried_out(self._fleet.rollout(rollout)))

    async def _publish(self, request: web.Request) -> web.Response:
        publish = await _body(request, Publish, "a version to publish")
        await self._carried_out(self._fleet.publish(publish.name, publish.version))
        return _json({})

    async def _read(self, _: web.Request) -> web.Response:
        await self._carried_out(self._fleet.read())
        return _json({})

    async def _carried_out(self, asked: Coroutine[Any, Any, T]) -> T:
        """Whoever asked may leave; a file is not left half edited, or half taken in, for that."""
        work = asyncio.ensure_future(asked)
        self._work.add(work)
        work.add_done_callback(self._ended)
        return await asyncio.shield(work)

    def _ended(self, work: asyncio.Task[Any]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # whoever had asked may not be there to take it


class _Refused(Exception):
    """An answer that is not one of the errors that people are told of in ``docs/errors.md``."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = _failure(status, code, message)


async def _body(request: web.Request, kind: type[T], what: str) -> T:
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            body = await request.read()
    except TimeoutError:
        message = f"the body took more than {BODY_TIMEOUT:g} s"
        raise _Refused(408, "body_timeout", message) from None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Refused(422, "invalid_edit", f"the body is not {what}: {error}") from None


def _told(done: EditDone) -> dict[str, Any]:
    return {"generation": done.generation, "changed": done.changed, "message": done.message}


def _refitted(done: RefitDone) -> web.Response:
    target = None if done.target is None else msgspec.to_builtins(done.target)
    return _json(_told(done) | {"target": target})


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    path = request.path[:200]
    try:
        return await handler(request)
    except RequestError as error:
        return _answer(error)
    except _Refused as refused:
        return refused.answer
    except web.HTTPNotFound:
        return _answer(UnknownRoute(f"{path!r} is not a route of the operator"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = _answer(MethodNotAllowed(f"{path} takes {allowed}, not {error.method}"))
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPRequestEntityTooLarge:
        return _answer(BodyTooLarge(f"a body has at most {MAX_BODY} bytes"))
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:  # noqa: BLE001
        # Of a fault here the commands must hear, and the operator must go on.
        _log.exception("%s %s failed", request.method, path)
        return _failure(500, "internal_error", "a fault of the operator; its log has more")


def _answer(error: RequestError) -> web.Response:
    return web.Response(status=error.status, body=error.body(), content_type="application/json")


def _failure(status: int, code: str, message: str) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    content = {"error": {"type": kind, "code": code, "message": message, "param": None}}
    return web.Response(
        status=status, body=msgspec.json.encode(content), content_type="application/json"
    )


def _json(content: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
