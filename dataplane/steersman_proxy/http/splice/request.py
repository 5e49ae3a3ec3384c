"""One regular request from its head to the end of its answer, by callbacks.

What to do is decided by :class:`~steersman_proxy.exchange.exchange.Exchange`, as for the aiohttp
adapter; here it is done without a task. Everything that can happen to the request enters by one of
the public methods, each of which leaves it in a state in which all others may be called.
"""

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum, auto

from steersman.errors import InvalidRequest, ProxyFault, RequestError
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import (
    Action,
    AnswerAction,
    Collect,
    Cut,
    Finish,
    Hold,
    ReadBody,
    Relay,
    Respond,
    Send,
    Serve,
    StartAnswer,
    fields_of,
)
from steersman_proxy.http.drive import Means
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.sending import Sending
from steersman_proxy.http.splice.client import Client
from steersman_proxy.http.splice.head import RegularHead
from steersman_proxy.http.splice.relay import relay_of
from steersman_proxy.http.splice.writer import AnswerWriter
from steersman_proxy.http.upstream import UpstreamRequest
from steersman_proxy.own.answer import OwnAnswer
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.hold import Ticket
from steersman_proxy.routing.request import Selected

_log = logging.getLogger("steersman.http")


class _Stage(Enum):
    BEGINNING = auto()
    UPLOAD = auto()
    WAITING = auto()
    """For one of our own routes, in the hold queue, or for an engine's answer."""
    ANSWER = auto()
    """The engine's answer is passed on, or collected."""
    LAST = auto()
    """All is written; the client has yet to take it."""
    OVER = auto()


# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_BEGINNING, _UPLOAD, _WAITING = _Stage.BEGINNING, _Stage.UPLOAD, _Stage.WAITING
_ANSWER, _LAST, _OVER = _Stage.ANSWER, _Stage.LAST, _Stage.OVER


class SplicedRequest:
    """One request. Its ``exchange`` is closed when ``client.finished`` is called, or before."""

    __slots__ = (
        "_chunks",
        "_client",
        "_head",
        "_means",
        "_passes",
        "_sending",
        "_serving",
        "_stage",
        "_ticket",
        "_turn",
        "_writer",
        "exchange",
    )

    def __init__(
        self,
        means: Means,
        context: Context,
        *,
        head: RegularHead,
        client: Client,
        exchange: Exchange | None = None,
    ) -> None:
        self._means = means
        self._client = client
        self._head = head
        self.exchange = exchange or Exchange(context, head)
        self._writer = AnswerWriter(
            context, client, to_head=head.method == "HEAD", persistent=head.keep_alive
        )
        self._stage = _BEGINNING
        self._chunks: list[bytes] = []
        self._passes = False
        """Whether the answer's body is passed on unread."""
        self._sending: Sending | None = None
        self._serving: asyncio.Task[OwnAnswer] | None = None
        self._ticket: Ticket | None = None
        self._turn: asyncio.Handle | None = None
        """Of a request that was released from the hold queue: its sending, in the next turn."""

    @classmethod
    def at_sent(
        cls,
        means: Means,
        context: Context,
        *,
        head: RegularHead,
        client: Client,
        exchange: Exchange,
        sending: Sending,
    ) -> "SplicedRequest":
        """A request that was sent, as ``exchange`` knows already."""
        request = cls(means, context, head=head, client=client, exchange=exchange)
        request._stage = _WAITING
        request._sending = sending
        return request

    def full(self) -> "SplicedRequest":
        """Itself; see :meth:`~steersman_proxy.http.splice.lane.Ordinary.full`."""
        return self

    @property
    def engine(self) -> Engine | None:
        """The engine that the request is counted on now."""
        return self.exchange.engine_in_flight

    # --- what happens to it -----------------------------------------------------------------------

    def start(self, body: bytes | None) -> None:
        """Begin; the head is here, and the whole body, or ``None`` if it is still to come."""
        try:
            action = self.exchange.start()
            if isinstance(action, ReadBody):
                if body is None:
                    # A length over the limit was refused with the head.
                    self._stage = _UPLOAD
                    return
                action = self.exchange.body([body] if body else [])
            self._carry_out(action)
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    @property
    def wants_body(self) -> bool:
        """Whether parts of the body are to be given to :meth:`feed`."""
        return self._stage is _UPLOAD

    def feed(self, part: bytes, *, last: bool) -> None:
        """A part of the body has come."""
        self._chunks.append(part)
        if not last:
            return
        try:
            chunks, self._chunks = self._chunks, []
            self._carry_out(self.exchange.body(chunks))
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    def was_written(self, status: int, fields: Mapping[bytes, bytes], body: bytes) -> None:
        """The whole answer of the engine was stamped and written, and the client has yet to take it."""
        try:
            self._writer.started = True
            if isinstance(self.exchange.answer_fields(status, fields), Collect):
                self.exchange.answer_collected(body)
            self._let_go()
            self._stage = _LAST
        except Exception:  # noqa: BLE001 - logged whole
            self._give_up()

    def writable(self) -> None:
        """The client has taken enough, so that more may be written."""
        if self._stage is _LAST:
            self._end()
        elif self._stage is _ANSWER:
            self.changed()

    def client_left(self) -> None:
        """The client's connection is gone, or of no more use."""
        if self._stage is not _OVER:
            self._let_go()
            self._close(client_gone=True)

    def stalled(self, what: str) -> None:
        """The client took or sent nothing for too long."""
        _log.info("request %s: the client %s; cut", self.exchange.request_id, what)
        self._client.cut(at_once=True)
        self.client_left()

    def cut(self, reason: str) -> None:
        """The operator wants the engine free."""
        self._let_go()
        self._end_early(self.exchange.cut(reason))

    def expire(self) -> None:
        """The request is in flight since too long."""
        _log.warning("request %s: stale; cut", self.exchange.request_id)
        self._let_go()
        self._end_early(self.exchange.expire())

    # --- the request ------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        """Do what the exchange says, up to where something has to be waited for."""
        while True:
            match action:
                case Send():
                    self._send(action)
                    return
                case ReadBody():
                    raise RuntimeError("the body was read already")
                case Respond():
                    self._respond(action)
                    return
                case Serve():
                    self._stage = _WAITING
                    self._serve(action)
                    return
                case Hold():
                    self._stage = _WAITING
                    refused = self._wait(action)
                    if refused is None:
                        return
                    action = refused

    def _serve(self, action: Serve) -> None:
        task = self._means.tasks.start(self._means.own.serve(action, self._head))
        self._serving = task
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[OwnAnswer]) -> None:
        if self._serving is not task:
            return
        self._serving = None
        try:
            answer = task.result()
            self._respond(
                self.exchange.served(answer.status, answer.headers, answer.body, answer.engine)
            )
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    def _wait(self, action: Hold) -> Action | None:
        """Stand in the hold queue; an action if that is full."""
        ticket = self._means.hold.enter(
            action.request, action.wait.lane, on_release=self._released, on_fail=self._not_released
        )
        if not isinstance(ticket, Ticket):
            return self.exchange.hold_failed(ticket)
        self._ticket = ticket
        return None

    # The queue calls these two within its own turn: the exchange takes the guard at once, so that
    # it is given back even if the client leaves, but the queue is not entered again from here.

    def _released(self, selected: Selected) -> None:
        self._next_turn(self.exchange.released(selected))

    def _not_released(self, error: RequestError) -> None:
        self._next_turn(self.exchange.hold_failed(error))

    def _next_turn(self, action: Action) -> None:
        self._ticket = None
        self._turn = asyncio.get_running_loop().call_soon(self._in_turn, action)

    def _in_turn(self, action: Action) -> None:
        self._turn = None
        try:
            self._carry_out(action)
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    def _send(self, action: Send) -> None:
        self._stage = _WAITING
        self._client.stall = action.timeouts.client_stall
        self._means.janitor.expect(self.exchange.stale_at)
        base = base_url(action.engine.url)
        try:
            head = self._head.spliced(
                base=base, body_length=sum(map(len, action.body)), edit=action.edit
            )
        except ValueError as error:
            self._respond(self.exchange.refuse(InvalidRequest(str(error))))
            return
        method = self._head.method
        request = UpstreamRequest(
            base.endpoint, method, head, action.body, action.timeouts, self.exchange.may_start
        )
        self._sending = sending = Sending(self._means.upstream, request, changed=self.changed)
        sending.start()

    # --- the answer -------------------------------------------------------------------------------

    def changed(self) -> None:
        """More of the engine's answer has come, its end, or a failure."""
        try:
            if self._stage is _ANSWER:
                self._pump()
            elif self._stage is _WAITING:
                self._await_head()
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    def _await_head(self) -> None:
        sending = self._sending
        assert sending is not None, "nothing was sent"
        framing, exchange = sending.framing, self.exchange
        if framing.head_done:
            self._stage = _ANSWER
            plain = framing.plain
            fields = fields_of(framing.headers) if plain is None else plain.by_name
            step = exchange.answer_fields(framing.status, fields)
            if isinstance(step, StartAnswer):
                self._passes = exchange.passes_through
                self._step(step)
                # A stream may go on for an hour, and there may be thousands.
                sending.forget_request()
                self._head.forget_lines()
                if self._passes and self._writer.chunked and framing.plain is None:
                    sending.relay = relay_of(
                        exchange, framing=framing, writer=self._writer, client=self._client
                    )
            elif framing.complete and framing.parts:
                self._step(exchange.answer_collected(sending.take()))
                return
            self._pump()
        elif sending.failure is not None:
            failure = sending.failure
            self._let_go()
            self._carry_out(exchange.attempt_failed(failure.failure, str(failure)))

    def _pump(self) -> None:
        """Pass on what is here, as far as the client takes it."""
        sending, exchange, client = self._sending, self.exchange, self._client
        assert sending is not None, "nothing was sent"
        framing = sending.framing
        while not client.writing_paused:
            if framing.parts:
                data = sending.take()
                if self._passes and not self._writer.pending:
                    exchange.passed(len(data))
                    self._writer.pass_on(data)
                else:
                    self._step(exchange.answer_data(data))
            elif framing.complete:
                self._step(exchange.answer_end())
                return
            elif sending.failure is not None:
                failure = sending.failure
                self._fail(exchange.answer_failed(failure.failure, str(failure)))
                return
            else:
                break
        self._writer.flush()

    def _step(self, step: AnswerAction) -> None:
        writer = self._writer
        match step:
            case Relay():
                writer.write(step.body)
            case Collect():
                pass
            case StartAnswer():
                assert self._sending is not None, "nothing was sent"
                writer.begin(self._sending.framing, step)
                if step.end:
                    writer.last(step.body)
                    self._written()
                elif step.body:
                    writer.write(step.body)
            case Finish():
                writer.last(step.body)
                self._written()
            case Cut():
                self._fail(step)

    def _respond(self, action: Respond) -> None:
        """Write a whole answer of our own."""
        self._writer.respond(action)
        self._written()

    def _written(self) -> None:
        """All of the answer is written."""
        self._let_go()
        self._stage = _LAST
        if not self._client.writing_paused:
            self._end()

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._close(client_gone=False)
        self._client.finished(persistent=self._writer.persistent)

    def _fail(self, ending: Respond | Cut) -> None:
        """The engine failed within its answer."""
        self._let_go()
        if not isinstance(ending, Cut):
            self._respond(ending)
            return
        self._writer.flush()
        self._break()

    def _end_early(self, ending: Respond | Cut) -> None:
        if self._stage is _OVER:
            return
        if self._writer.started or not isinstance(ending, Respond):
            self._break()
            return
        try:
            self._respond(ending)
        except Exception:  # noqa: BLE001 - logged whole, and the client is told
            self._give_up()

    def _give_up(self) -> None:
        """After a fault of ours, being handled: say so if nothing was said yet, else break off."""
        _log.exception("request %s: a fault of the proxy", self.exchange.request_id)
        self._let_go()
        if self._stage is _OVER:
            return
        error = ProxyFault("the proxy failed at this request; its log has the cause")
        reply = self.exchange.refuse(error, close=True)
        if self._writer.started:
            self._break()
            return
        self._respond(reply)

    def _break(self) -> None:
        self._client.cut()
        self._close(client_gone=False)
        self._client.finished(persistent=False)

    def _let_go(self) -> None:
        """Wait for nothing any more; an engine that still works sees its connection close."""
        if self._serving is not None:
            task, self._serving = self._serving, None
            task.cancel()
        if self._ticket is not None:
            self._ticket.cancel()
            self._ticket = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._sending is not None:
            try:
                self._sending.close()
            except Exception:  # noqa: BLE001 - logged whole; the request is over in any case
                _log.exception(
                    "request %s: closing its engine's connection", self.exchange.request_id
                )

    def _close(self, *, client_gone: bool) -> None:
        self._stage = _OVER
        # It refers back to this, and would have to wait for the collector of garbage.
        self._sending = None
        exchange = self.exchange
        exchange.close(client_gone=client_gone)
        if exchange.abandoned is not None:
            self._means.aborts.tell(*exchange.abandoned)
