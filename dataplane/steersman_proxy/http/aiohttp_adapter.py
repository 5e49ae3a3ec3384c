"""The aiohttp adapter: drives one exchange for each request that aiohttp has parsed.

It owns the client's side and calls the upstream pool for the engine's. What to do is decided by
:class:`~steersman_proxy.exchange.exchange.Exchange`; here it is done.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from steersman.errors import InvalidRequest, ProxyFault, RequestError
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import (
    Action,
    Collect,
    Cut,
    Finish,
    Hold,
    ReadBody,
    Relay,
    RequestHead,
    Respond,
    Send,
    Serve,
    StartAnswer,
)
from steersman_proxy.exchange.replies import reply_with
from steersman_proxy.http.client_answer import ClientAnswer, ClientStalled
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.headers import request_headers, response_headers
from steersman_proxy.http.upstream import Answer, UpstreamPool
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.hold import HoldQueue, Ticket
from steersman_proxy.routing.request import Selected

_log = logging.getLogger("steersman.http")

MAX_LINE = 65536
"""Bytes of the request line, and of one header."""

MAX_HEADERS = 256

READ_AHEAD = 256 * 1024
"""Bytes of a body that are read before the exchange asks for them."""

LINGER = 2.0
"""Seconds for which the rest of a refused upload is read, so that the client sees the answer."""

KEEP_ALIVE = 3600.0
"""Seconds for which an idle client connection is kept; longer than any load balancer's."""

_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class AiohttpAdapter:
    """The downstream side of a proxy. ``protocol`` makes the protocol of each connection."""

    def __init__(
        self, context: Context, *, upstream: UpstreamPool, hold: HoldQueue, own: OwnRoutes
    ) -> None:
        self._context = context
        self._upstream = upstream
        self._hold = hold
        self._own = own
        self._running: set[asyncio.Task[Any]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Event | None = None
        self._server = _Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER,
            read_bufsize=READ_AHEAD,
            logger=_log,
        )

    @property
    def protocol(self) -> Callable[[], asyncio.Protocol]:
        """For ``loop.create_server``."""
        return self._server

    async def drained(self, *, timeout: float) -> int:
        """Close idle connections and wait for what runs; how many requests are left after that."""
        self._server.pre_shutdown()
        self._idle = asyncio.Event()
        if self._running:
            try:
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
            except TimeoutError:
                pass
        return len(self._running)

    async def close(self) -> None:
        """Cut everything now."""
        running = [*self._running, *self._aborts]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._server.shutdown(0.1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            client = ClientAnswer(request, closing=self._context.draining)
            head = RequestHead(request.method, _target(request), list(request.raw_headers))
            exchange = Exchange(self._context, head)
            run = _Run(self, request, client, head, exchange)
            client_gone = True
            try:
                await run.all()
                client_gone = False
            except ClientStalled:
                _log.info("request %s: the client took nothing; cut", exchange.request_id)
                client.cut(at_once=True)
            except ConnectionError:
                client.cut(at_once=True)
            except Exception:  # noqa: BLE001 - logged whole, and the client is told
                _log.exception("request %s: a fault of the proxy", exchange.request_id)
                client_gone = False
                await _give_up(client, exchange)
            finally:
                exchange.close(client_gone=client_gone)
                if exchange.abandoned is not None:
                    self._abort(*exchange.abandoned)
            return client
        finally:
            self._running.discard(task)
            if self._idle is not None and not self._running:
                self._idle.set()

    def _abort(self, engine: Engine, rid: str) -> None:
        """Tell the engine, without waiting for it; the closed connection has told it already."""
        task = asyncio.ensure_future(self._own.abort_one(engine, rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def serve(self, action: Serve, head: RequestHead, exchange: Exchange) -> Respond:
        """Answer a route of our own."""
        answer = await self._own.serve(action, head)
        return exchange.served(answer.status, answer.headers, answer.body, answer.engine)

    async def wait(self, action: Hold, exchange: Exchange) -> Action:
        """Stand in the hold queue until it is this request's turn."""
        turn: asyncio.Future[Action] = asyncio.get_running_loop().create_future()

        # Called within the queue's own turn: the exchange takes the guard at once, so that it is
        # given back even if this request is cancelled before it goes on.
        def release(selected: Selected) -> None:
            action = exchange.released(selected)
            if not turn.done():
                turn.set_result(action)

        def fail(error: RequestError) -> None:
            action = exchange.hold_failed(error)
            if not turn.done():
                turn.set_result(action)

        ticket = self._hold.enter(
            action.request, action.wait.lane, on_release=release, on_fail=fail
        )
        if not isinstance(ticket, Ticket):
            return exchange.hold_failed(ticket)
        try:
            return await turn
        finally:
            ticket.cancel()

    async def send(self, action: Send, *, head: RequestHead) -> Answer:
        """Send the request to its engine; raises as :meth:`UpstreamPool.exchange` does."""
        url = action.engine.url
        headers = request_headers(
            head.headers,
            authority=base_url(url).authority,
            method=head.method,
            body_length=sum(map(len, action.body)),
            remove=action.edit.remove,
            add=action.edit.add,
        )
        return await self._upstream.exchange(
            url,
            method=head.method,
            target=head.target,
            headers=headers,
            body=action.body,
            timeouts=action.timeouts,
        )


class _Run:
    """One request on its way through one exchange."""

    def __init__(
        self,
        adapter: AiohttpAdapter,
        request: web.BaseRequest,
        client: ClientAnswer,
        head: RequestHead,
        exchange: Exchange,
    ) -> None:
        self._adapter = adapter
        self._request = request
        self._client = client
        self._head = head
        self._exchange = exchange

    async def all(self) -> None:
        """Carry out one action after the other."""
        action: Action | None = self._exchange.start()
        while action is not None:
            match action:
                case ReadBody():
                    action = await self._read_body(action.limit)
                case Serve():
                    action = await self._adapter.serve(action, self._head, self._exchange)
                case Hold():
                    action = await self._adapter.wait(action, self._exchange)
                case Send():
                    action = await self._attempt(action)
                case Respond():
                    await _respond(self._client, action)
                    return

    async def _read_body(self, limit: int) -> Action:
        expectation = self._head.first(b"expect")
        if expectation is not None and expectation.lower() == "100-continue":
            self._client.continue_100()
        content = self._request.content
        chunks: list[bytes] = []
        size = 0
        try:
            while chunk := await content.readany():
                size += len(chunk)
                if size > limit:
                    return self._exchange.body_too_large()
                chunks.append(chunk)
        except (web.RequestPayloadError, ValueError) as error:
            return self._exchange.refuse(
                InvalidRequest(f"the body is not framed as HTTP/1.1 says: {error}"), close=True
            )
        return self._exchange.body(chunks)

    async def _attempt(self, action: Send) -> Action | None:
        self._client.stall = action.timeouts.client_stall
        try:
            answer = await self._adapter.send(action, head=self._head)
        except AttemptFailed as error:
            return self._exchange.attempt_failed(error.failure, str(error))
        except ValueError as error:
            return self._exchange.refuse(InvalidRequest(str(error)))
        try:
            return await self._relay(answer)
        finally:
            answer.abort()  # does nothing after the end

    async def _relay(self, answer: Answer) -> Respond | None:
        exchange, client = self._exchange, self._client
        step: StartAnswer | Collect | Relay | Finish = exchange.answer_head(
            answer.status, answer.headers
        )
        while True:
            match step:
                case StartAnswer():
                    head = self._start(answer, step)
                    if step.end:
                        await client.finish(step.body, head=head)
                        return None
                    await client.send(step.body, head=head)
                case Relay():
                    await client.send(step.body)
                case Finish():
                    await client.finish(step.body)
                    return None
                case Collect():
                    pass
            try:
                part = await answer.read()
            except AttemptFailed as error:
                ending = exchange.answer_failed(error.failure, str(error))
                if isinstance(ending, Cut):
                    client.cut()
                    return None
                return ending
            step = exchange.answer_end() if part is None else exchange.answer_data(part)

    def _start(self, answer: Answer, step: StartAnswer) -> bytes:
        remove, length = step.edit.remove, None
        if step.end and self._head.method != "HEAD":
            # Known now, whether or not the engine said so: some clients read only what has a length.
            remove |= {b"content-length"}
            length = sum(map(len, step.body))
        headers = response_headers(answer.headers, remove=remove, add=step.edit.add)
        return self._client.start(answer.status, answer.reason, headers, length=length)


async def _respond(client: ClientAnswer, respond: Respond) -> None:
    """Send a whole answer of our own."""
    if respond.close:
        client.close_after()
    reason = _reason(respond.status)
    head = client.start(respond.status, reason, respond.headers, length=len(respond.body))
    await client.finish([respond.body], head=head)


async def _give_up(client: ClientAnswer, exchange: Exchange) -> None:
    """After a fault of ours: say so if nothing was said yet, else break the answer."""
    if client.started:
        client.cut()
        return
    error = ProxyFault("the proxy failed at this request; its log has the cause")
    try:
        await _respond(client, exchange.refuse(error, close=True))
    except (ConnectionError, ClientStalled):
        client.cut(at_once=True)


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


def _target(request: web.BaseRequest) -> str:
    """Path and query as they came; a proxy's absolute form loses its scheme and authority."""
    raw = request.raw_path
    if raw.startswith("/"):
        return raw
    rest = _ABSOLUTE.sub("", raw, count=1)
    return rest if rest.startswith("/") else f"/{rest}"


class _Protocol(RequestHandler):
    """aiohttp's connection, with our own words for requests that it cannot parse."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP request; the connection ends with it."""
        text = " ".join((message or "it cannot be parsed").split())[:300]
        reply = reply_with(InvalidRequest(f"this is not an HTTP/1.1 request: {text}"), close=True)
        return _Malformed(request, reply)


class _Malformed(ClientAnswer):
    def __init__(self, request: web.BaseRequest, reply: Respond) -> None:
        super().__init__(request, closing=True)
        self._reply = reply

    async def prepare(self, request: web.BaseRequest) -> None:
        await _respond(self, self._reply)


class _Server(web.Server):
    """Makes :class:`_Protocol` connections."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **kwargs: Any
    ) -> None:
        super().__init__(handler, **kwargs)
        self._protocol_settings = kwargs
        del self._protocol_settings["handler_cancellation"]

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._protocol_settings)
