"""The life of one request: head, selection, hold, send, relay, finish.

An adapter calls one method for each thing that happened and carries out the action that comes back:

=================  ===============================================================
phase              what may be called
=================  ===============================================================
``HEAD``           :meth:`Exchange.start`
``BODY``           :meth:`Exchange.body`, :meth:`Exchange.body_too_large`
``OWN``            :meth:`Exchange.served`
``HOLD``           :meth:`Exchange.released`, :meth:`Exchange.hold_failed`
``SENT``           :meth:`Exchange.may_start`, :meth:`Exchange.answer_head`,
                   :meth:`Exchange.attempt_failed`
``ANSWER``         :meth:`Exchange.answer_data`, :meth:`Exchange.answer_end`,
                   :meth:`Exchange.answer_failed`
any                :meth:`Exchange.close`, in a ``finally``; while in flight
                   :meth:`Exchange.cut` and :meth:`Exchange.expire`
=================  ===============================================================

Selection, counting in flight and reading the table happen within one call, without anything in
between, so that an acknowledged closing of a gate is a fact.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from steersman.engine import Role
from steersman.errors import BodyTooLarge, HoldFull, RequestCut, RequestError, RequestStale
from steersman_proxy.exchange.admission import Admission, admit
from steersman_proxy.exchange.answer import Answer
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.judging import of_failure, of_status
from steersman_proxy.exchange.messages import (
    Action,
    Collect,
    Cut,
    ExchangeRecord,
    Failure,
    Finish,
    HeadEdit,
    Header,
    Hold,
    Outcome,
    ReadBody,
    Relay,
    RequestHead,
    Respond,
    Send,
    Serve,
    StartAnswer,
    fields_of,
)
from steersman_proxy.exchange.replies import JSON, failure_error, reply_with
from steersman_proxy.exchange.routes import Kind
from steersman_proxy.exchange.targeting import (
    POOL,
    TARGET,
    affinity_key,
    choose_pool,
    wants_explanation,
)
from steersman_proxy.routing.eligibility import Reason, without_one
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.explain import explain
from steersman_proxy.routing.request import RouteRequest, Selected, Wait
from steersman_proxy.routing.view import PoolView
from steersman_proxy.stamping.stamps import stamps_of

MAX_ATTEMPTS = 3
"""The first try and at most two more engines (design decision "retry")."""


class Phase(Enum):
    """Where an exchange stands."""

    HEAD = "head"
    BODY = "body"
    OWN = "own"
    HOLD = "hold"
    SENT = "sent"
    ANSWER = "answer"
    DONE = "done"


# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_BODY, _SENT, _ANSWER, _DONE = Phase.BODY, Phase.SENT, Phase.ANSWER, Phase.DONE
_OK, _CLIENT_GONE = Outcome.OK, Outcome.CLIENT_GONE
_OWN, _PLAIN = Kind.OWN, Role.PLAIN

_NOT_JUDGED = Admission()

_OURS: frozenset[bytes] = frozenset({b"x-request-id"})


class Exchange:
    """One request from its head to its last byte."""

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

    def __init__(self, context: Context, head: RequestHead) -> None:
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
        self._minted = context.new_request_id() if mints else None
        self.request_id = given or self._minted or "-"
        self.phase = Phase.HEAD

    # --- the request ------------------------------------------------------------------------------

    def start(self) -> Action:
        """Judge the head. A preflight is answered without a key: browsers send none."""
        if self._head.method == "OPTIONS":
            preflight = self._context.cors.preflight(self._head)
            if preflight is not None:
                return self._respond(preflight)
        self._admission = admission = admit(self._context, self._head)
        if admission.error is not None:
            return self._reject(admission.error, *admission.headers, close=admission.close)
        self.phase = _BODY
        return ReadBody(admission.body_limit)

    def body_too_large(self) -> Respond:
        """More than the limit has come; the rest is not read."""
        limit = self._admission.body_limit
        error = BodyTooLarge(f"the body is over the limit of {limit} bytes")
        return self._reject(error, close=True)

    def body(self, chunks: list[bytes]) -> Action:
        """The whole body has come, in parts as they came."""
        head, fleet = self._head, self._context.fleet
        if self._admission.route.kind is _OWN:
            self.phase = Phase.OWN
            return Serve(self._admission.route, head.first(POOL), chunks)
        try:
            self._pool = choose_pool(fleet.view, head, chunks)
        except RequestError as error:
            return self._reject(error)
        self._body = chunks
        self._request = RouteRequest(
            pool=self._pool.name,
            policy=self._admission.policy,
            affinity=affinity_key(head),
            target=head.first(TARGET) if TARGET in head.raw else None,
            body_bytes=len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks)),
        )
        if wants_explanation(head):
            explanation = msgspec.json.encode(explain(fleet, self._request))
            return self._respond(Respond(200, (JSON,), explanation))
        result = fleet.select(self._request)
        if isinstance(result, Selected):
            return self.released(result)
        if isinstance(result, RequestError):
            return self._unroutable(result)
        return self._go_on(self._request, result)

    def refuse(self, error: RequestError, *, close: bool = False) -> Respond:
        """The adapter cannot go on: nothing that can be understood, or sent, has come."""
        return self._reject(error, close=close)

    def served(
        self, status: int, headers: tuple[Header, ...], body: bytes, engine: Engine | None = None
    ) -> Respond:
        """A route of our own has its answer; ``engine`` is the one that it came from, if any."""
        stamps: tuple[Header, ...] = ()
        if engine is not None:
            version = engine.version if self._context.settings.rl_enabled else None
            stamps = stamps_of(engine.url, version)
        return self._respond(Respond(status, (*headers, *stamps), body))

    # --- selection --------------------------------------------------------------------------------

    def _go_on(self, request: RouteRequest, result: Selected | Wait) -> Action:
        if isinstance(result, Selected):
            return self.released(result)
        self.phase = Phase.HOLD
        self._held_since = self._context.now()
        return Hold(request, result)

    def released(self, selected: Selected) -> Send:
        """An engine was chosen and counted, at once or after waiting."""
        if self._held_since is not None:
            self._leave_hold()
        self._selected = selected
        self._selected_at = self._context.now()
        self._attempts += 1
        self.phase = _SENT
        engine, context = selected.engine, self._context
        # Selected in this very turn of the loop, so that the engine stands in the pool of the table.
        assert engine.pool is not None and self._request is not None
        self._pool = pool = engine.pool
        policy = self._request.policy
        eligible = pool.default_eligible if policy is None else None
        if eligible is None or self._request.role is not _PLAIN:
            policy = policy or pool.settings.version_policy
            eligible = pool.eligible(self._request.role, policy)
        filtered = eligible.filtered
        if filtered and selected.guard.probe:
            # It keeps all others from the engine, but it was not kept from it itself.
            filtered = without_one(filtered, Reason.BREAKER_OPEN)
        context.observer.selected(engine, filtered)
        if self._minted is not None and self._attempts > 1:
            # A fresh id for each engine: some crash on, or refuse, an id that they have seen.
            self.request_id = f"{self._minted}-{self._attempts}"
        self._answer = Answer(
            context,
            request=self._head,
            route=self._admission.route,
            selected=selected,
            order=pool.order,
            own_headers=self._own_headers(),
        )
        return Send(engine, self._request_edit(pool.name), self._body, pool.settings.timeouts)

    def hold_failed(self, error: RequestError) -> Respond:
        """The wait ended without an engine, or did not begin."""
        if isinstance(error, HoldFull):
            self._held_since = None
        self._leave_hold()
        return self._unroutable(error)

    def _leave_hold(self) -> None:
        if self._held_since is not None:
            self._held += self._context.now() - self._held_since
            self._held_since = None

    def _unroutable(self, error: RequestError) -> Respond:
        self._context.observer.unroutable(getattr(error, "reasons", {}))
        return self._reject(error)

    def _request_edit(self, pool: str) -> HeadEdit:
        remove, add, context = self._admission.consumed, self._own_headers(), self._context
        if self._minted is not None:
            remove |= _OURS
        if context.rid_headers:
            rid_header = context.rid_headers.get(pool)
            if rid_header == b"x-request-id" and self._minted is not None:
                self._rid = self.request_id
            elif rid_header and self._head.first(rid_header) is None:
                self._rid = context.new_request_id()
                add = (*add, (rid_header, self._rid.encode()))
        if context.engine_keys:
            key = context.engine_keys.get(pool)
            if key is not None:
                add = (*add, key)
                # What we set stands alone: of two headers, engines read whichever comes first.
                remove |= {b"authorization"}
        return HeadEdit(remove, add)

    def _own_headers(self) -> tuple[Header, ...]:
        return ((b"x-request-id", self.request_id.encode()),) if self._minted is not None else ()

    # --- the answer -------------------------------------------------------------------------------

    def may_start(self) -> bool:
        """Whether the engine that was chosen may still be sent to.

        A gate that has closed meanwhile changes nothing: the request is counted, and waited for.
        But of a pool that is fenced by now the operator may have counted this proxy out, requests
        and all; the process may have stood still since the choice, or connecting took that long.
        """
        assert self._selected is not None, "nobody was chosen"
        return not self._context.fleet.fenced_out(self._selected.engine)

    def attempt_failed(self, failure: Failure, detail: str = "") -> Action:
        """The engine gave no head. Another one is tried only if it surely got no request."""
        selected, request = self._selected, self._request
        assert selected is not None and request is not None, "nothing was sent"
        selected.guard.judge(of_failure(failure))
        selected.guard.release()
        if failure is Failure.WITHHELD:
            # The engine has no part in it, and may be chosen again once there is contact.
            result = self._context.fleet.select(request)
            if isinstance(result, RequestError):
                return self._unroutable(result)
            return self._go_on(request, result)
        self._context.observer.attempt_failed(selected.engine, failure)
        if failure.unreachable:
            self._context.health.connect_failed(selected.engine)
        if failure.unsent and self._attempts < MAX_ATTEMPTS and request.target is None:
            excluded = request.excluded | {selected.engine.id}
            self._request = msgspec.structs.replace(request, excluded=excluded)
            result = self._context.fleet.select(self._request)
            if not isinstance(result, RequestError):
                return self._go_on(self._request, result)
        return self._upstream_error(failure_error(failure, engine=selected.engine, detail=detail))

    def answer_head(self, status: int, headers: Sequence[Header]) -> StartAnswer | Collect:
        """The engine's head has come."""
        return self.answer_fields(status, fields_of(headers))

    def answer_fields(self, status: int, fields: Mapping[bytes, bytes]) -> StartAnswer | Collect:
        """As :meth:`answer_head`, of values by lower-case name (see :func:`fields_of`)."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        self._context.health.reached(self._selected.engine)
        self.phase = _ANSWER
        self._status = status
        return self._answer.head(fields)

    def answer_data(self, data: bytes) -> StartAnswer | Relay | Collect:
        """A part of the answer's body has come."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        if self._first_byte is None:
            self._take_first_byte()
        self._context.health.reached(self._selected.engine)
        return self._answer.data(data)

    def _take_first_byte(self) -> None:
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        self._first_byte = self._context.now() - self._started
        if self._answer.streaming:
            served = self._first_byte - self._held
            self._context.observer.first_byte(self._selected.engine, served)

    @property
    def passes_through(self) -> bool:
        """Whether the answer's body is passed on unread, so that :meth:`passed` does for its parts."""
        return self._answer is not None and self._answer.passes_through

    def passed(self, size: int) -> None:
        """A part of a body that passes through has come, of ``size`` bytes."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        if self._first_byte is None:
            self._take_first_byte()
        self._context.health.reached(self._selected.engine)
        self._answer.size += size

    def answer_collected(self, body: bytes) -> StartAnswer:
        """The whole body has come at once, of an answer that is collected."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        assert self._status is not None, "an answer has a head"
        if self._first_byte is None:
            self._take_first_byte()
        self._outcome = _OK
        self._selected.guard.judge(of_status(self._status))
        return self._answer.whole(body)

    def answer_end(self) -> StartAnswer | Finish:
        """The answer is whole."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        assert self._status is not None, "an answer has a head"
        self._outcome = _OK
        self._selected.guard.judge(of_status(self._status))
        return self._answer.end()

    def answer_failed(self, failure: Failure, detail: str = "") -> Respond | Cut:
        """The engine failed within its answer. A client that has seen nothing of it is told."""
        assert self._selected is not None and self._answer is not None, "nothing was sent"
        engine = self._selected.engine
        self._selected.guard.judge(of_failure(failure))
        self._context.observer.attempt_failed(engine, failure)
        error = failure_error(failure, engine=engine, detail=detail)
        if self._answer.collecting:
            return self._upstream_error(error)
        self._outcome = Outcome.UPSTREAM_FAILED
        self._error = error
        return Cut()

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
            self._outcome = Outcome.CLIENT_GONE
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
