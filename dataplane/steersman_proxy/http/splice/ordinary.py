"""A request on the shortest way; see :mod:`~steersman_proxy.http.splice.lane`."""

import logging
from typing import TYPE_CHECKING

from steersman_proxy.exchange.admission import Admission
from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import ExchangeRecord, Outcome
from steersman_proxy.http.connection import Connection, WholeReader
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.sending import Sending
from steersman_proxy.http.splice.client import Client
from steersman_proxy.http.splice.head import RegularHead
from steersman_proxy.http.splice.request import SplicedRequest
from steersman_proxy.http.upstream import UpstreamRequest
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import RouteRequest, Selected

if TYPE_CHECKING:
    from steersman_proxy.http.splice.lane import Lane

_log = logging.getLogger("steersman.http")

_OK = Outcome.OK

_UNREAD = AnswerFraming(method="POST", max_head_bytes=1)
"""Stands for the framing of an answer of which nothing has come."""


class Ordinary(Sending, WholeReader):
    """One request on the shortest way; an attempt at its engine at the same time."""

    __slots__ = (
        "admission",
        "_affinity",
        "body",
        "_full",
        "_lane",
        "_sent",
        "client",
        "asked",
        "minted",
        "parts",
        "pool",
        "selected",
        "size",
        "started",
        "status",
    )

    wants_body = False

    def __init__(
        self,
        lane: "Lane",
        client: Client,
        head: RegularHead,
        body: bytes,
        admission: Admission,
        affinity: str | None,
        selected: Selected,
        started: float,
        minted: str | None,
        sent: bytes,
    ) -> None:
        # Not those of the bases, which make what is not needed here.
        self._waiter = None
        self.drop = self.failure = self.may_start = self.resume = self.unwritten = None
        self.relay = None
        self.framing = _UNREAD
        pool = selected.engine.pool
        assert pool is not None, "selected in this turn"
        self.timeouts = pool.settings.timeouts
        self.pool = pool
        """As it was at the selection; a table may take it away."""
        self._changed = self._connecting = self._first = None
        self._reused = True
        self._lane = lane
        self.client = client
        self.asked = head
        self.body = body
        self.admission = admission
        self._affinity = affinity
        self.selected = selected
        self.started = started
        self.parts: list[bytes] = []
        """What has come of an answer's body that is waited for."""
        self.minted = minted
        """The id that the proxy gave the request, if the client did not."""
        self._sent = sent
        self._full: SplicedRequest | None = None
        self.status = self.size = 0

    # --- what the connection tells ----------------------------------------------------------------

    def take_whole(self, connection: Connection, data: bytes) -> bool:
        """Answer the client at once if that is all there is to do."""
        try:
            if self._full is None and self._lane.answer(self, connection, data):
                return True
        except Exception:  # noqa: BLE001 - logged whole; the long way answers
            _log.exception("a fault of the proxy at a usual answer")
        self.framing = self._lane.means.upstream.framing(self.asked.method)
        return False

    def wake(self) -> None:
        """More has come of an answer, or a failure. A usual answer is waited for; all else is for
        the long way.
        """
        if self._full is None:
            try:
                if self._waits_or_is_answered():
                    return
            except Exception:  # noqa: BLE001 - logged whole; the long way answers
                _log.exception("a fault of the proxy at a usual answer")
            self.full()
        super().wake()

    def _waits_or_is_answered(self) -> bool:
        found = self.framing.plain
        if self.failure is not None or found is None or not self._lane.may_wait(found):
            return False
        if self.framing.parts:
            self.parts.append(self.take())
        if not self.framing.complete:
            return True
        if not self._lane.answer_whole(self, found, self.parts):
            return False
        self.parts = []
        self.close()
        return True

    def forget_request(self) -> None:
        """The engine has answered, so that the request will not be sent again."""
        super().forget_request()
        self._sent = self.body = b""

    def may_be_sent(self) -> bool:
        # Asked again right before writing: the process may have stood still since the choice.
        return not self._lane.context.fleet.barred(self.selected.engine, None)

    def on_new_connection(self) -> SplicedRequest:
        """Send it where no connection is idle, which takes the long way."""
        request = self.full()
        self._reused = False
        self.begin_again()
        self.connect()
        return request

    @property
    def engine(self) -> Engine:
        """The engine that the request is counted on."""
        return self.selected.engine

    def record(self, now: float) -> ExchangeRecord:
        """What is known of it; ``now`` is its end on the clock."""
        head, engine, duration = self.asked, self.selected.engine, now - self.started
        return ExchangeRecord(
            request_id=self.minted or head.first(b"x-request-id") or "-",
            method=head.method,
            route=self.admission.route.path,
            path=head.path,
            pool=self.pool.name,
            model=self.pool.model,
            engine_id=engine.id,
            engine_url=engine.url,
            weight_version=self.selected.version,
            status=self.status,
            outcome=_OK,
            error=None,
            streaming=False,
            mixed=False,
            duration=duration,
            held=0.0,
            time_to_first_byte=duration,
            request_bytes=len(self.body),
            answer_bytes=self.size,
            attempts=1,
        )

    # --- what happens to the request --------------------------------------------------------------

    def full(self) -> SplicedRequest:
        """The same request on the long way."""
        if self._full is not None:
            return self._full
        lane, selected, head = self._lane, self.selected, self.asked
        exchange = Exchange.at_sent(
            lane.context,
            head,
            admission=self.admission,
            request=RouteRequest(
                pool=self.pool.name,
                affinity=self._affinity,
                body_bytes=len(self.body),
            ),
            selected=selected,
            pool=self.pool,
            body=[self.body],
            started=self.started,
            minted=self.minted,
        )
        self._full = request = SplicedRequest.at_sent(
            lane.means,
            lane.context,
            head=head,
            client=self.client,
            exchange=exchange,
            sending=self,
        )
        base = base_url(selected.engine.url)
        self._pool = lane.means.upstream
        self._request = UpstreamRequest(
            base.endpoint,
            head.method,
            self._sent,
            [self.body],
            self.timeouts,
            exchange.may_start,
        )
        if self.parts:
            self.framing.give_back(self.parts)
            self.parts = []
        self._changed = request.changed
        self.may_start = exchange.may_start
        lane.grown(self, request)
        return request


InFront = SplicedRequest | Ordinary
"""A request on either way."""
