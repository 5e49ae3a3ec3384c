"""How an exchange ends, early or in time; and what is known of it then.

The other half of :class:`~steersman_proxy.exchange.exchange.Exchange`, which it is the base of.
"""

import msgspec

from steersman.errors import RequestCut, RequestError, RequestStale
from steersman_proxy.exchange.admission import Admission
from steersman_proxy.exchange.answer import Answer
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.messages import (
    Cut,
    ExchangeRecord,
    Header,
    Outcome,
    RequestHead,
    Respond,
)
from steersman_proxy.exchange.phase import Phase
from steersman_proxy.exchange.replies import reply_with
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import RouteRequest, Selected
from steersman_proxy.routing.view import PoolView

# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_DONE, _HEAD = Phase.DONE, Phase.HEAD
_CLIENT_GONE = Outcome.CLIENT_GONE

_NOT_JUDGED = Admission()


class ExchangeState:
    """What an exchange consists of, and its end."""

    __slots__ = (
        "_admission",
        "_answer",
        "_attempts",
        "_body",
        "_context",
        "_error",
        "_first_byte",
        "_head",
        "_held",
        "_held_since",
        "_minted",
        "_outcome",
        "_own_answer_bytes",
        "_pool",
        "_request",
        "_rid",
        "_selected",
        "_selected_at",
        "_stale",
        "_started",
        "_status",
        "phase",
        "request_id",
    )

    def __init__(self, context: Context, head: RequestHead, *, minted: str | None = None) -> None:
        self._context = context
        self._head = head
        self._admission = _NOT_JUDGED
        self._pool: PoolView | None = None
        self._body: list[bytes] = []
        self._request: RouteRequest | None = None
        self._selected: Selected | None = None
        self._answer: Answer | None = None
        self._attempts = 0
        self._started = context.now()
        self._held_since: float | None = None
        self._held = 0.0
        self._selected_at = 0.0
        self._stale = False
        self._first_byte: float | None = None
        self._status: int | None = None
        self._error: RequestError | None = None
        self._outcome = _CLIENT_GONE
        self._own_answer_bytes = 0
        self._rid: str | None = None
        given = head.first(b"x-request-id") if b"x-request-id" in head.raw else None
        mints = not given and context.rl_enabled
        self._minted = (minted or context.new_request_id()) if mints else None
        self.request_id = given or self._minted or "-"
        self.phase = _HEAD

    def refuse(self, error: RequestError, *, close: bool = False) -> Respond:
        """The adapter cannot go on: nothing that can be understood, or sent, has come."""
        return self._reject(error, close=close)

    def _own_headers(self) -> tuple[Header, ...]:
        return ((b"x-request-id", self.request_id.encode()),) if self._minted is not None else ()

    def _leave_hold(self) -> None:
        if self._held_since is not None:
            self._held += self._context.now() - self._held_since
            self._held_since = None

    # --- the end ----------------------------------------------------------------------------------

    @property
    def engine_in_flight(self) -> Engine | None:
        """The engine that the request is counted on now."""
        selected = self._selected
        return None if selected is None or selected.guard.released else selected.engine

    def cut(self, reason: str) -> Respond | Cut:
        """The operator wants the engine free. A client that has seen nothing of an answer is told."""
        assert self._selected is not None, "nothing was sent"
        engine = self._selected.engine
        error = RequestCut(f"engine {engine.id} was taken from the request: {reason}")
        return self._end_early(error, Outcome.REJECTED)

    @property
    def stale_at(self) -> float | None:
        """When the request will have been in flight for too long; ``None`` while it is not."""
        selected = self._selected
        if selected is None or selected.guard.released or self._pool is None:
            return None
        return self._selected_at + self._pool.settings.timeouts.stale

    def expire(self) -> Respond | Cut:
        """The request is in flight since too long. A client that has seen nothing of it is told.

        That says nothing of the engine: what it did not do in time, another timeout would have ended.
        """
        assert self._selected is not None, "nothing was sent"
        self._stale = True
        seconds = self._context.now() - self._selected_at
        error = RequestStale(
            f"engine {self._selected.engine.id} had the request for {seconds:.0f} s, longer than "
            "timeouts.stale"
        )
        return self._end_early(error, Outcome.UPSTREAM_FAILED)

    def _end_early(self, error: RequestError, outcome: Outcome) -> Respond | Cut:
        """Take the request from its engine, whose connection is closed by now."""
        assert self._selected is not None, "nothing was sent"
        self._selected.guard.release()
        if self.phase is Phase.ANSWER and self._answer is not None and not self._answer.collecting:
            self._outcome = outcome
            self._error = error
            return Cut()
        if outcome is Outcome.UPSTREAM_FAILED:
            return self._upstream_error(error)
        return self._reject(error)

    @property
    def abandoned(self) -> tuple[Engine, str] | None:
        """The engine, and the id that we gave it, of a request that nobody waits for any more.

        ``None`` unless an id of our own travelled in a header: engines match ids by prefix, so a
        client's id might end somebody else's request.
        """
        if not self._rid or self._selected is None:
            return None
        nobody_waits = self._stale or self._outcome is _CLIENT_GONE
        return (self._selected.engine, self._rid) if nobody_waits else None

    def _upstream_error(self, error: RequestError) -> Respond:
        assert self._selected is not None
        worker = (b"x-smg-routed-worker-id", self._selected.engine.url.encode())
        respond = self._reject(error, worker)
        self._outcome = Outcome.UPSTREAM_FAILED
        return respond

    def _reject(self, error: RequestError, *headers: Header, close: bool = False) -> Respond:
        self._outcome = Outcome.REJECTED
        self._error = error
        return self._respond(reply_with(error, *headers, close=close))

    def _respond(self, respond: Respond) -> Respond:
        """Complete an answer of our own with what every answer carries."""
        if self._error is None:
            self._outcome = Outcome.OK
        self._status = respond.status
        self._own_answer_bytes = len(respond.body)
        cors = () if respond.status == 204 else self._context.cors.headers(self._head)
        headers = (*respond.headers, *self._own_headers(), *cors)
        return msgspec.structs.replace(respond, headers=headers)

    def close(self, *, client_gone: bool = False) -> None:
        """The exchange is over: count the engine free and write the record. Idempotent."""
        if self.phase is _DONE:
            return
        self.phase = _DONE
        if self._selected is not None:
            self._selected.guard.release()
        if self._held_since is not None:
            self._leave_hold()
        self._body = []
        if client_gone:
            self._outcome = _CLIENT_GONE
            if self._answer is not None and self._answer.collecting:
                self._status = None  # Of this answer the client has seen nothing.
        self._context.observer.finished(self._record())

    def _record(self) -> ExchangeRecord:
        engine = self._selected.engine if self._selected is not None else None
        pool, answer, request = self._pool, self._answer, self._request
        return ExchangeRecord(
            request_id=self.request_id,
            method=self._head.method,
            route=self._admission.route.path,
            path=self._head.path,
            pool=pool.name if pool is not None else None,
            model=pool.model if pool is not None else None,
            engine_id=engine.id if engine is not None else None,
            engine_url=engine.url if engine is not None else None,
            weight_version=answer.version if answer is not None else None,
            status=self._status,
            outcome=self._outcome,
            error=self._error,
            streaming=answer.streaming if answer is not None else False,
            mixed=answer.mixed if answer is not None else False,
            duration=self._context.now() - self._started,
            held=self._held,
            time_to_first_byte=self._first_byte,
            request_bytes=request.body_bytes if request is not None else 0,
            answer_bytes=(answer.size if answer is not None else 0) or self._own_answer_bytes,
            attempts=self._attempts,
        )
