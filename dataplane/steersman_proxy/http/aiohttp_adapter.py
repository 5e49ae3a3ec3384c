"""The aiohttp adapter: drives one exchange for each request that aiohttp has parsed.

It owns the client's side: connections, limits, draining. What becomes of one request is in
:mod:`~steersman_proxy.http.drive`.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from aiohttp import web

from steersman.errors import InvalidRequest, ProxyFault
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import Cut, RequestHead, Respond
from steersman_proxy.http import limits
from steersman_proxy.http.answer_frame import AnswerFrame
from steersman_proxy.http.client_answer import ClientAnswer
from steersman_proxy.http.client_connection import ClientConnection, ClientStalled
from steersman_proxy.http.drive import Drive, Means, respond
from steersman_proxy.http.janitor import Janitor
from steersman_proxy.http.tasks import TaskSet
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.settings import ProxySettings

_log = logging.getLogger("steersman.http")

_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class AiohttpAdapter:
    """The downstream side of a proxy. ``protocol`` makes the protocol of each connection."""

    def __init__(
        self, context: Context, *, upstream: UpstreamPool, hold: HoldQueue, own: OwnRoutes
    ) -> None:
        self._context = context
        self._tasks = TaskSet()
        self._janitor = Janitor(self.sweep, clock=context.clock)
        self._means = Means(
            upstream=upstream,
            hold=hold,
            own=own,
            janitor=self._janitor,
            tasks=self._tasks,
            upload_stall=context.settings.defaults.timeouts.client_stall,
        )
        self._running: dict[asyncio.Task[Any], Exchange | None] = {}
        """The task of each request, with its exchange once there is one."""
        self._cutting: dict[asyncio.Task[Any], Callable[[], Respond | Cut]] = {}
        """By its task, what tells the exchange of a request that it is being cut."""
        self.cuts = 0
        """Requests that were cut because the operator wanted their engine free."""
        self._idle: asyncio.Event | None = None
        self._server = _Server(
            self._handle,
            context=context,
            tail_limit=tail_limit(context.settings),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.KEEP_ALIVE,
            # The gate before the parser has these limits; so the parser meets none of its own.
            max_line_size=limits.MAX_HEAD,
            max_field_size=limits.MAX_HEAD,
            max_headers=limits.MAX_HEADERS,
            lingering_time=limits.LINGER,
            read_bufsize=limits.READ_AHEAD,
            logger=_log,
        )

    @property
    def protocol(self) -> Callable[[], asyncio.Protocol]:
        """For ``loop.create_server``."""
        return self._server

    @property
    def running(self) -> int:
        """Requests that are being read, waited for or answered."""
        return len(self._running)

    @property
    def connections(self) -> list[ClientConnection]:
        """All of clients."""
        return cast("list[ClientConnection]", self._server.connections)

    async def drained(self, *, timeout: float) -> int:
        """Close idle connections and wait for what runs; how many requests are left after that.

        A request may be on its way on a connection that looks idle. Closing it now would reset it,
        so that its client could not know whether it was sent; within a moment it is here instead,
        and is told.
        """
        moment = min(limits.MOMENT, timeout)
        await asyncio.sleep(moment)
        timeout -= moment
        for connection in self.connections:
            connection.close_if_idle()
        self._idle = asyncio.Event()
        if self._running:
            try:
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
            except TimeoutError:
                pass
        return len(self._running)

    def cut(self, engine_id: str, reason: str) -> None:
        """End every request in flight on an engine; ``reason`` is told to those who can be told.

        A client that has seen nothing of an answer gets 503, any other a broken one. Requests that
        wait are not in flight.
        """
        for task, exchange in self._running.items():
            if exchange is None or task in self._cutting:
                continue
            engine = exchange.engine_in_flight
            if engine is not None and engine.id == engine_id:
                self._cutting[task] = partial(exchange.cut, reason)
                self.cuts += 1
                task.cancel()

    def sweep(self, now: float) -> float | None:
        """End every request that is stale by ``now``; when the next one will be."""
        following: float | None = None
        for task, exchange in self._running.items():
            at = None if exchange is None else exchange.stale_at
            if exchange is None or at is None or task in self._cutting:
                continue
            if at <= now:
                _log.warning("request %s: stale; cut", exchange.request_id)
                self._cutting[task] = exchange.expire
                task.cancel()
            elif following is None or at < following:
                following = at
        return following

    async def close(self) -> None:
        """Cut everything now."""
        self._janitor.close()
        running = [*self._running]
        for task in running:
            task.cancel()
        for connection in self._server.connections:
            if connection.transport is not None:
                # Not `close`, which would wait for clients to take what they were sent.
                connection.transport.abort()
        await asyncio.gather(*running, return_exceptions=True)
        await self._tasks.close()
        await self._server.shutdown(0.1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = None
        try:
            return await self._exchange(request, task)
        finally:
            self._running.pop(task, None)
            self._cutting.pop(task, None)
            if self._idle is not None and not self._running:
                self._idle.set()

    async def _exchange(
        self, request: web.BaseRequest, task: asyncio.Task[Any]
    ) -> web.StreamResponse:
        client = ClientAnswer(request, draining=self._context.ends_connections)
        head = RequestHead(request.method, _target(request), list(request.raw_headers))
        self._running[task] = exchange = Exchange(self._context, head)
        drive = Drive(self._means, request=request, client=client, head=head, exchange=exchange)
        client_gone = True
        try:
            await drive.run()
            client_gone = False
        except ClientStalled as error:
            _log.info("request %s: the client %s; cut", exchange.request_id, error)
            client.cut(at_once=True)
        except ConnectionError:
            client.cut(at_once=True)
        except asyncio.CancelledError:
            end = self._cutting.get(task)
            # Of two cancellations the other one is the client's leaving, or the end of all.
            if end is None or task.uncancel():
                raise
            client_gone = False
            await _cut_short(client, end())
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            _log.exception("request %s: a fault of the proxy", exchange.request_id)
            client_gone = False
            await _give_up(client, exchange)
        finally:
            exchange.close(client_gone=client_gone)
            if exchange.abandoned is not None:
                self._means.aborts.tell(*exchange.abandoned)
        return client


async def _cut_short(client: ClientAnswer, reply: Respond | Cut) -> None:
    """The request was taken from its engine, whose connection is closed already."""
    if client.started or not isinstance(reply, Respond):
        client.cut()
        return
    try:
        await respond(client, reply)
    except (ConnectionError, ClientStalled):
        client.cut(at_once=True)


async def _give_up(client: ClientAnswer, exchange: Exchange) -> None:
    """After a fault of ours: say so if nothing was said yet, else break the answer."""
    error = ProxyFault("the proxy failed at this request; its log has the cause")
    reply = exchange.refuse(error, close=True)
    if client.started:
        client.cut()
        return
    try:
        await respond(client, reply)
    except (ConnectionError, ClientStalled):
        client.cut(at_once=True)


def tail_limit(settings: ProxySettings) -> float:
    """Seconds for which a client may take nothing, as the kernel counts: above every other limit."""
    stalls = [pool.timeouts.client_stall for pool in (settings.defaults, *settings.pools.values())]
    return max(limits.TAIL_LIMIT, 2 * max(stalls))


def _target(request: web.BaseRequest) -> str:
    """Path and query as they came; a proxy's absolute form loses its scheme and authority."""
    raw = request.raw_path
    if raw.startswith("/"):
        return raw
    rest = _ABSOLUTE.sub("", raw, count=1)
    return rest if rest.startswith("/") else f"/{rest}"


class _Connection(ClientConnection):
    """With our own words for requests that are refused before there is an exchange for them."""

    __slots__ = ("context",)

    context: Context
    """Set by whoever makes the connection."""

    def answer_refused(self, error: InvalidRequest, request: web.BaseRequest) -> web.StreamResponse:
        to_head = self.refused[0] == "HEAD"
        return _Refusal(request, self._exchange(), error, to_head=to_head)

    def left_refused(self, error: InvalidRequest) -> None:
        exchange = self._exchange()
        exchange.refuse(error)
        exchange.close(client_gone=True)

    def _exchange(self) -> Exchange:
        method, target = self.refused
        return Exchange(self.context, RequestHead(method, target, []))


class _Refusal(ClientAnswer):
    """The answer to a request that was not let in. It is counted and logged as every other one."""

    def __init__(
        self, request: web.BaseRequest, exchange: Exchange, error: InvalidRequest, *, to_head: bool
    ) -> None:
        super().__init__(request)
        # aiohttp made a request up.
        self._frame = AnswerFrame(http11=False, to_head=to_head, persistent=False)
        self._exchange = exchange
        self._error = error

    async def prepare(self, request: web.BaseRequest) -> None:
        reply = self._exchange.refuse(self._error, close=True)
        client_gone = True
        try:
            await respond(self, reply)
            client_gone = False
        except ClientStalled:
            self.cut(at_once=True)
        finally:
            self._exchange.close(client_gone=client_gone)


class _Server(web.Server):
    """Makes our connections, and cancels a request whose client has left."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        context: Context,
        tail_limit: float,
        **settings: Any,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._context = context
        self._tail_limit = tail_limit
        self._settings = settings

    def __call__(self) -> ClientConnection:
        connection = _Connection(self, loop=self._loop, **self._settings)
        connection.context = self._context
        connection.tail_limit = self._tail_limit
        return connection
