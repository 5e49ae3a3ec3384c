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

import msgspec

from steersman.engine import Role
from steersman.errors import BodyTooLarge, HoldFull, RequestError
from steersman.policy import VersionPolicy
from steersman_proxy.exchange.admission import Admission, admit
from steersman_proxy.exchange.answer import Answer
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.ending import ExchangeState
from steersman_proxy.exchange.judging import of_failure, of_status
from steersman_proxy.exchange.messages import (
    Action,
    Collect,
    Cut,
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
from steersman_proxy.exchange.phase import Phase
from steersman_proxy.exchange.replies import JSON, failure_error
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


# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_BODY, _SENT, _ANSWER = Phase.BODY, Phase.SENT, Phase.ANSWER
_OK = Outcome.OK
_OWN, _PLAIN = Kind.OWN, Role.PLAIN

_OURS: frozenset[bytes] = frozenset({b"x-request-id"})


class Exchange(ExchangeState):
    """One request from its head to its last byte."""

    __slots__ = ()

    @classmethod
    def at_sent(
        cls,
        context: Context,
        head: RequestHead,
        *,
        admission: Admission,
        request: RouteRequest,
        selected: Selected,
        pool: PoolView,
        body: list[bytes],
        started: float,
        minted: str | None,
    ) -> "Exchange":
        """An exchange that stands where the shortest way has led it: judged, selected and sent.

        ``pool`` is that of the selection; a table may have come since that has neither it nor the
        engine. ``minted`` is the id that it was given if it has none of its own; ``started`` is on
        the clock. What :meth:`start` and :meth:`body` would have told the observer was told.
        """
        exchange = cls(context, head, minted=minted)
        exchange._admission = admission
        exchange._request = request
        exchange._body = body
        exchange._started = exchange._selected_at = started
        exchange._take(selected, pool)
        return exchange

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
        self._selected_at = self._context.now()
        # Selected in this very turn of the loop, so that the engine stands in the pool of the table.
        pool = selected.engine.pool
        assert pool is not None and self._request is not None
        self._take(selected, pool)
        request = self._request
        filtered = filtered_by(pool, selected, policy=request.policy, role=request.role)
        self._context.observer.selected(selected.engine, filtered)
        edit = self._request_edit(pool.name)
        return Send(selected.engine, edit, self._body, pool.settings.timeouts)

    def _take(self, selected: Selected, pool: PoolView) -> None:
        self._selected = selected
        self._attempts += 1
        self.phase = _SENT
        self._pool = pool
        if self._minted is not None and self._attempts > 1:
            # A fresh id for each engine: some crash on, or refuse, an id that they have seen.
            self.request_id = f"{self._minted}-{self._attempts}"
        self._answer = Answer(
            self._context,
            request=self._head,
            route=self._admission.route,
            selected=selected,
            order=pool.order,
            own_headers=self._own_headers(),
        )

    def hold_failed(self, error: RequestError) -> Respond:
        """The wait ended without an engine, or did not begin."""
        if isinstance(error, HoldFull):
            self._held_since = None
        self._leave_hold()
        return self._unroutable(error)

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

    # --- the answer -------------------------------------------------------------------------------

    def may_start(self) -> bool:
        """Whether the engine that was chosen may still be sent to.

        A gate that has closed meanwhile changes nothing: the request is counted, and waited for.
        But of a pool that is fenced by now the operator may have counted this proxy out, requests
        and all; and an engine's weights may have become uncertain under a request that is in flight.
        The process may have stood still since the choice, or connecting took that long, or a
        connection was closed and the request is to be sent again.
        """
        assert self._selected is not None, "nobody was chosen"
        return not self._context.fleet.barred(self._selected.engine, self._admission.policy)

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
        self._body = []
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

    @property
    def answer(self) -> Answer:
        """The engine's answer, once its head is here."""
        assert self._answer is not None, "nothing was answered"
        return self._answer

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


def filtered_by(
    pool: PoolView, selected: Selected, *, policy: VersionPolicy | None = None, role: Role = _PLAIN
) -> Mapping[Reason, int]:
    """How many engines were out when one was selected, by reason."""
    eligible = pool.default_eligible if policy is None and role is _PLAIN else None
    if eligible is None:
        eligible = pool.eligible(role, policy or pool.settings.version_policy)
    if eligible.filtered and selected.guard.probe:
        # It keeps all others from the engine, but it was not kept from it itself.
        return without_one(eligible.filtered, Reason.BREAKER_OPEN)
    return eligible.filtered
