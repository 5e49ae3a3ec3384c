"""Fleets from a few words, records of exchanges, and small engines at real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from steersman.clock import Clock, FakeClock
from steersman.engine import EngineRow, Gate, Runtime, Trust
from steersman.settings import PoolSettings
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy.exchange.messages import ExchangeRecord, Outcome
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet

CLOSED = Gate(open=False, count=1)


def row(name: str, **changes: Any) -> EngineRow:
    """A verified SGLang engine of the pool ``main`` at version 7."""
    facts: dict[str, Any] = {
        "id": name,
        "url": f"http://{name}.test:30000",
        "pool": "main",
        "runtime": Runtime.SGLANG,
        "version": "7",
        "trust": Trust.VERIFIED,
    }
    return EngineRow(**(facts | changes))


def pool_row(name: str = "main", *models: str, fleet_max: str | None = "7", **more: Any) -> PoolRow:
    return PoolRow(name=name, models=models or (f"{name}-model",), fleet_max=fleet_max, **more)


def table(*rows: EngineRow, seq: int = 1, pools: Sequence[PoolRow] | None = None) -> Table:
    return Table(epoch=Epoch(0, seq), pools=tuple(pools or (pool_row(),)), engines=rows)


def new_fleet(
    *,
    clock: Clock | None = None,
    rl_enabled: bool = True,
    settings: PoolSettings | None = None,
) -> Fleet:
    """A fleet without a table."""
    return Fleet(
        clock=clock or FakeClock(),
        defaults=settings or PoolSettings(),
        pool_settings={},
        rl_enabled=rl_enabled,
    )


def fleet_of(*rows: EngineRow, pools: Sequence[PoolRow] | None = None, **options: Any) -> Fleet:
    fleet = new_fleet(**options)
    fleet.apply(table(*rows, pools=pools))
    return fleet


def engine_of(fleet: Fleet, name: str) -> Engine:
    return next(engine for engine in fleet.engines() if engine.id == name)


def record(**changes: Any) -> ExchangeRecord:
    """A request to ``/generate`` that went well."""
    facts: dict[str, Any] = {
        "request_id": "r1",
        "method": "POST",
        "route": "/generate",
        "path": "/generate",
        "pool": "main",
        "model": "main-model",
        "engine_id": "e1",
        "engine_url": "http://e1.test:30000",
        "weight_version": "7",
        "status": 200,
        "outcome": Outcome.OK,
        "error": None,
        "streaming": False,
        "mixed": False,
        "duration": 0.5,
        "held": 0.0,
        "time_to_first_byte": 0.1,
        "request_bytes": 10,
        "answer_bytes": 20,
        "attempts": 1,
    }
    return ExchangeRecord(**(facts | changes))


class Seen(NamedTuple):
    """What an engine received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Reply = tuple[int, Any]
Handler = Callable[[Seen], Awaitable[Reply]]


class FakeEngine:
    """Answers by path; whatever it was not told is 404. Remembers what it got."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: dict[str, Reply | Handler] = {}
        self.seen: list[Seen] = []
        self.key: str | None = None
        """Wanted on every path."""
        self._news = asyncio.Condition()

    def targets(self) -> list[str]:
        return [f"{seen.method} {seen.target}" for seen in self.seen]

    async def got(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.seen) >= count)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.method, request.path_qs, headers, await request.read())
        self.seen.append(seen)
        async with self._news:
            self._news.notify_all()
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        reply = self.replies.get(request.path, (404, {"detail": "Not Found"}))
        status, content = await reply(seen) if callable(reply) else reply
        if isinstance(content, bytes):
            return web.Response(status=status, body=content)
        if isinstance(content, str):
            return web.Response(status=status, text=content)
        return web.json_response(content, status=status)


@asynccontextmanager
async def served(app_handler: Any) -> AsyncIterator[str]:
    """A server with one handler for everything; its base URL."""
    server = web.Server(app_handler, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def fake_engine(**replies: Any) -> AsyncIterator[FakeEngine]:
    """An engine at a socket of its own; ``replies`` by path without slash."""
    engine = FakeEngine()
    engine.replies = {f"/{path}": reply for path, reply in replies.items()}
    async with served(engine.handle) as url:
        engine.url = url
        yield engine
