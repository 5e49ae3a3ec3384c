"""The metrics port: what a scraper and the probes of a platform ask.

It takes no keys and changes nothing: bind it where only your own can reach it.
"""

import errno
import logging
import os
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from steersman.errors import MethodNotAllowed, RequestError, UnknownRoute
from steersman_operator.api.metrics import FleetMetrics

_log = logging.getLogger("steersman.metrics")

CLOSE = 0.5
"""Seconds that answers have to end when the port is closed."""


class MetricsPages:
    """Serves ``/metrics``, ``/livez`` and ``/readyz`` on ``host`` and ``port`` (0: any free one)."""

    def __init__(
        self, metrics: FleetMetrics, *, host: str, port: int, ready: Callable[[], bool]
    ) -> None:
        self.url = ""
        """Where it listens; known once started."""
        self._metrics = metrics
        self._host = host
        self._port = port
        self._ready = ready
        app = web.Application(middlewares=[_errors])
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE)

    async def start(self) -> None:
        """Listen.

        :raises OSError: if the address cannot be had; names it.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            place = _authority(self._host, self._port)
            raise OSError(error.errno, f"cannot serve metrics on {place}: {_why(error)}") from None
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{_authority(host, port)}"

    async def close(self) -> None:
        """Stop. What is being answered has half a second to end."""
        await self._runner.cleanup()

    async def _scrape(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return _failure(
            503,
            "not_ready",
            "the operator has not published a table yet; `steersman describe` says what it waits for",
        )


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error is JSON of the same shape as elsewhere."""
    path = request.path[:200]
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _refusal(UnknownRoute(f"{path!r} is not a page of the operator's metrics port"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = _refusal(MethodNotAllowed(f"{path} takes {allowed}, not {error.method}"))
        answer.headers["Allow"] = allowed
        return answer
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:  # noqa: BLE001
        # A fault of a page must not look like one of the operator.
        _log.exception("%s %s failed", request.method, path)
        return _failure(500, "internal_error", "a fault of the operator; its log has more")


def _refusal(error: RequestError) -> web.Response:
    return web.Response(status=error.status, body=error.body(), content_type="application/json")


def _failure(status: int, code: str, message: str) -> web.Response:
    content = {"error": {"type": "server_error", "code": code, "message": message, "param": None}}
    return web.Response(
        status=status, body=msgspec.json.encode(content), content_type="application/json"
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; choose another port"
    if error.errno is None or error.errno < 0:
        return error.strerror or str(error)  # the name of a host
    return os.strerror(error.errno)  # without what asyncio puts around it
