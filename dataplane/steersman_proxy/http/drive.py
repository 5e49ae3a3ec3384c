"""Carries one exchange out: reads the client's body, waits, sends, relays, answers.

What to do is decided by :class:`~steersman_proxy.exchange.exchange.Exchange`; here it is done, one
action after the other. Whoever calls this closes the exchange, whatever happens.
"""

import asyncio

from aiohttp import web

from steersman.errors import InvalidRequest, RequestError
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
from steersman_proxy.http.aborting import Aborts
from steersman_proxy.http.client_answer import ClientAnswer
from steersman_proxy.http.client_connection import BrokenBody, ClientStalled
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.headers import reason_phrase, request_headers, response_headers
from steersman_proxy.http.janitor import Janitor
from steersman_proxy.http.tasks import TaskSet
from steersman_proxy.http.upstream import Answer, UpstreamPool
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.hold import HoldQueue, Ticket
from steersman_proxy.routing.request import Selected


class Means:
    """What every request of a process is served with. ``upload_stall`` is in seconds."""

    def __init__(
        self,
        *,
        upstream: UpstreamPool,
        hold: HoldQueue,
        own: OwnRoutes,
        janitor: Janitor,
        tasks: TaskSet,
        upload_stall: float,
    ) -> None:
        self.upstream = upstream
        self.hold = hold
        self.own = own
        self.janitor = janitor
        self.tasks = tasks
        self.aborts = Aborts(own, tasks=tasks)
        self.upload_stall = upload_stall


class Drive:
    """One request on its way through one exchange."""

    def __init__(
        self,
        means: Means,
        *,
        request: web.BaseRequest,
        client: ClientAnswer,
        head: RequestHead,
        exchange: Exchange,
    ) -> None:
        self._means = means
        self._request = request
        self._client = client
        self._head = head
        self._exchange = exchange

    async def run(self) -> None:
        """Carry out one action after the other.

        :raises ConnectionError: if the client has left.
        :raises ClientStalled: if it neither takes nor sends.
        """
        action: Action | None = self._exchange.start()
        if isinstance(action, Respond) and self._awaits_100:
            # Refused before the body: the client may send it or not, so what comes next on this
            # connection cannot be told from a new request (RFC 9110, 10.1.1).
            self._client.close_after()
        while action is not None:
            match action:
                case ReadBody():
                    action = await self._read_body(action.limit)
                case Serve():
                    action = await self._serve(action)
                case Hold():
                    action = await self._wait(action)
                case Send():
                    action = await self._attempt(action)
                case Respond():
                    await respond(self._client, action)
                    return

    @property
    def _awaits_100(self) -> bool:
        """Whether the client holds its body back until it is asked for it."""
        if self._request.version < (1, 1) or self._request.content.is_eof():
            return False
        expectation = self._head.first(b"expect")
        return expectation is not None and expectation.lower() == "100-continue"

    async def _read_body(self, limit: int) -> Action:
        if self._awaits_100:
            self._client.continue_100()
        content = self._request.content
        chunks: list[bytes] = []
        size = 0
        try:
            while not content.at_eof():
                if content.is_eof():
                    chunk = content.read_nowait()
                else:
                    async with asyncio.timeout(self._means.upload_stall):
                        chunk = await content.readany()
                size += len(chunk)
                if size > limit:
                    return self._exchange.body_too_large()
                if chunk:
                    chunks.append(chunk)
        except TimeoutError:
            raise ClientStalled(f"sent nothing for {self._means.upload_stall:g} s") from None
        except BrokenBody as error:
            return self._exchange.refuse(error.error, close=True)
        except (web.RequestPayloadError, ValueError) as error:
            return self._exchange.refuse(
                InvalidRequest(f"the body is not framed as HTTP/1.1 says: {error}"), close=True
            )
        return self._exchange.body(chunks)

    async def _serve(self, action: Serve) -> Respond:
        answer = await self._means.own.serve(action, self._head)
        return self._exchange.served(answer.status, answer.headers, answer.body, answer.engine)

    async def _wait(self, action: Hold) -> Action:
        """Stand in the hold queue until it is this request's turn."""
        turn: asyncio.Future[Action] = asyncio.get_running_loop().create_future()

        # Called within the queue's own turn: the exchange takes the guard at once, so that it is
        # given back even if this request is cancelled before it goes on.
        def release(selected: Selected) -> None:
            action = self._exchange.released(selected)
            if not turn.done():
                turn.set_result(action)

        def fail(error: RequestError) -> None:
            action = self._exchange.hold_failed(error)
            if not turn.done():
                turn.set_result(action)

        ticket = self._means.hold.enter(
            action.request, action.wait.lane, on_release=release, on_fail=fail
        )
        if not isinstance(ticket, Ticket):
            return self._exchange.hold_failed(ticket)
        try:
            return await turn
        finally:
            ticket.cancel()

    async def _attempt(self, action: Send) -> Action | None:
        self._client.stall = action.timeouts.client_stall
        self._means.janitor.expect(self._exchange.stale_at)
        try:
            answer = await self._send(action)
        except AttemptFailed as error:
            return self._exchange.attempt_failed(error.failure, str(error))
        except ValueError as error:
            return self._exchange.refuse(InvalidRequest(str(error)))
        try:
            return await self._relay(answer)
        finally:
            answer.abort()  # does nothing after the end

    async def _send(self, action: Send) -> Answer:
        url, head = action.engine.url, self._head
        headers = request_headers(
            head.headers,
            authority=base_url(url).authority,
            method=head.method,
            body_length=sum(map(len, action.body)),
            remove=action.edit.remove,
            add=action.edit.add,
        )
        return await self._means.upstream.exchange(
            url,
            method=head.method,
            target=head.target,
            headers=headers,
            body=action.body,
            timeouts=action.timeouts,
            may_start=self._exchange.may_start,
        )

    async def _relay(self, answer: Answer) -> Respond | None:
        """Pass the answer on, part by part; the engine is read only as fast as the client reads."""
        exchange, client = self._exchange, self._client
        step: StartAnswer | Collect | Relay | Finish = exchange.answer_head(
            answer.status, answer.headers
        )
        head = b""
        while True:
            match step:
                case StartAnswer():
                    head = self._start(answer, step)
                    if step.end:
                        await client.finish(step.body, head=head)
                        return None
                    # With a body that is here already the head goes into the same write.
                    if step.body or not answer.ready:
                        await client.send(step.body, head=head)
                        head = b""
                case Relay():
                    await client.send(step.body, head=head)
                    head = b""
                case Finish():
                    await client.finish(step.body, head=head)
                    return None
                case Collect():
                    pass
            try:
                part = await answer.read()
            except AttemptFailed as error:
                ending = exchange.answer_failed(error.failure, str(error))
                if not isinstance(ending, Cut):
                    return ending
                await client.send((), head=head)
                client.cut()
                return None
            step = exchange.answer_end() if part is None else exchange.answer_data(part)

    def _start(self, answer: Answer, step: StartAnswer) -> bytes:
        remove, length = step.edit.remove, None
        if step.end and self._head.method != "HEAD":
            # Known now, whether or not the engine said so: some clients read only what has a length.
            remove |= {b"content-length"}
            length = sum(map(len, step.body))
        headers = response_headers(answer.headers, remove=remove, add=step.edit.add)
        return self._client.start(answer.status, answer.reason, headers, length=length)


async def respond(client: ClientAnswer, action: Respond) -> None:
    """Send a whole answer of our own."""
    if action.close:
        client.close_after()
    head = client.start(
        action.status, reason_phrase(action.status), action.headers, length=len(action.body)
    )
    await client.finish([action.body], head=head)
