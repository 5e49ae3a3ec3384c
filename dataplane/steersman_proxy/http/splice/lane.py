"""The shortest way of a request: for what nearly all requests and answers of a rollout are.

A request goes this way if its head is regular and asks for nothing special, its body came with it,
one of the only pool's engines can take it at once, and a connection to that one is idle. If its
answer comes whole, in the usual form and naming the version that is known already, it is stamped and
written to the client, and the request is over: no exchange was made.

Whatever turns out differently, at any moment, makes the request a
:class:`~steersman_proxy.http.splice.request.SplicedRequest` that stands where it stands: that is the
one place where such things are decided. What comes out of the shortest way is, to the byte and to
the count, what comes out of the long one; the tests compare them.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

from steersman_proxy.exchange.admission import Admission, admit
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.exchange import Exchange, filtered_by
from steersman_proxy.exchange.judging import of_status
from steersman_proxy.exchange.messages import ExchangeRecord, Outcome
from steersman_proxy.exchange.routes import Kind
from steersman_proxy.exchange.targeting import affinity_key
from steersman_proxy.http.connection import Connection, WholeReader
from steersman_proxy.http.drive import Means
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.headers import check_headers
from steersman_proxy.http.plain_head import PlainHead, plain_head
from steersman_proxy.http.sending import Sending
from steersman_proxy.http.splice.client import Client
from steersman_proxy.http.splice.head import RegularHead
from steersman_proxy.http.splice.request import SplicedRequest
from steersman_proxy.http.upstream import UpstreamRequest
from steersman_proxy.http.write_batch import SMALL
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import RouteRequest, Selected
from steersman_proxy.stamping.reports import NOTHING, Report, read_report, report_at_end
from steersman_proxy.stamping.stamps import stamps_of

_log = logging.getLogger("steersman.http")

_DATA, _OK = Kind.DATA, Outcome.OK
_USUAL = 200

_SPECIAL = frozenset(
    {
        b"access-control-request-method",
        b"origin",
        b"x-api-key",
        b"x-smg-target-worker",
        b"x-smg-version-policy",
        b"x-steersman-explain",
        b"x-steersman-pool",
    }
)
"""Headers that ask for more than to be passed on; a routing key is heeded here too."""

_KEY = b"authorization"

_REMEMBERED = 4096
"""Kinds of heads that are remembered as admitted; then all are forgotten."""

_LONGEST = 1024
"""Bytes of request line and key of a head that is remembered."""

_SMALL = 48 * 1024
"""Bytes of a body that is sent in one write with its head."""

_UNREAD = AnswerFraming(method="POST", max_head_bytes=1)
"""Stands for the framing of an answer of which nothing has come."""


# The stamps as lines, of the engines of a fleet, each with a few versions in its time.
@lru_cache(maxsize=8192)
def _stamp_lines(url: str, version: str | None) -> bytes:
    stamps = stamps_of(url, version)
    check_headers(stamps)
    return b"\r\n".join(b"%b: %b" % stamp for stamp in stamps)


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
        return not self._lane.context.fleet.fenced_out(self.selected.engine)

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
            [],
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


class Lane:
    """Begins requests on the shortest way, and answers them."""

    def __init__(
        self,
        means: Means,
        context: Context,
        *,
        grown: Callable[["Ordinary", SplicedRequest], None],
    ) -> None:
        self.means = means
        self.context = context
        self.grown = grown
        """Told of a request that leaves the shortest way."""
        self._admitted: dict[tuple[bytes, bytes | None], Admission] = {}
        # What these ask for is done on the long way alone.
        check_headers(context.engine_keys.values())
        self._closed = not context.rl_enabled or context.cors.enabled or bool(context.rid_headers)

    def begin(
        self, client: Client, head: RegularHead, body: bytes
    ) -> "Ordinary | SplicedRequest | None":
        """Send the request to an engine; ``None`` if it has to go the long way, and nothing is done."""
        context = self.context
        if self._closed or context.draining or not body:
            return None
        raw = head.raw
        admission = self._admitted.get((head.first_line, raw.get(_KEY)))
        if admission is None:
            admission = self._admit(head)
            if admission is None:
                return None
        if (
            head.repeats
            or len(body) > _SMALL
            or len(body) > admission.body_limit
            or not _SPECIAL.isdisjoint(raw)
        ):
            return None
        affinity = affinity_key(head)
        started = context.now()
        selected = context.fleet.at_once(affinity)
        if selected is None:
            return None
        try:
            return self._send(client, head, body, admission, affinity, selected, started)
        except BaseException:
            selected.guard.release()
            raise

    def _send(
        self,
        client: Client,
        head: RegularHead,
        body: bytes,
        admission: Admission,
        affinity: str | None,
        selected: Selected,
        started: float,
    ) -> "Ordinary | SplicedRequest | None":
        context, engine = self.context, selected.engine
        base = base_url(engine.url)
        given = head.raw.get(b"x-request-id")
        minted = context.new_request_id() if given is None else None
        remove = admission.consumed if head.keep_alive else admission.consumed | {b"close"}
        key = context.engine_keys.get(engine.row.pool)
        if key is not None:
            remove |= {_KEY}
        try:
            lines = head.begun(base, remove)
        except ValueError:
            selected.guard.release()
            return None
        if minted is not None:
            lines.append(b"x-request-id: " + minted.encode())
        if key is not None:
            lines.append(b"%b: %b" % key)
        lines += (b"Content-Length: %d" % len(body), b"", body)
        sent = b"\r\n".join(lines)
        ordinary = Ordinary(
            self, client, head, body, admission, affinity, selected, started, minted, sent
        )
        client.stall = ordinary.timeouts.client_stall
        context.observer.selected(engine, filtered_by(ordinary.pool, selected))
        self.means.janitor.expect(started + ordinary.timeouts.stale)
        connection = self.means.upstream.take_idle(base.endpoint)
        if connection is None:
            return ordinary.on_new_connection()
        connection.start_at_once(ordinary, sent)
        return ordinary

    def _admit(self, head: RegularHead) -> Admission | None:
        """Judge a head as all are judged; remember it if it needs nothing special."""
        if not _SPECIAL.isdisjoint(head.raw) or head.repeats:
            return None
        admission = admit(self.context, head)
        route = admission.route
        if (
            admission.error is not None
            or admission.policy is not None
            or route.kind is not _DATA
            or not route.reports_version
        ):
            return None
        key = head.raw.get(_KEY)
        if len(head.first_line) + len(key or b"") <= _LONGEST:
            if len(self._admitted) >= _REMEMBERED:
                self._admitted.clear()
            self._admitted[head.first_line, key] = admission
        return admission

    def answer(self, ordinary: Ordinary, connection: Connection, data: bytes) -> bool:
        """Pass on an answer that came in one read; ``False`` if it is none that goes this way, and
        nothing is done.
        """
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return False
        found = plain_head(data, end)
        if found is None or not self.may_wait(found) or len(data) - end - 4 != found.length:
            return False
        body = data[end + 4 :]
        if not self._expected(ordinary, read_report(body)):
            return False
        head = self._stamped(ordinary, found)
        if not connection.keep():
            return False
        self._pass_on(ordinary, found, head, (body,))
        return True

    def may_wait(self, found: PlainHead) -> bool:
        """Whether an answer with that head is collected, and needs no more than the stamps."""
        return (
            0 < found.length <= self.context.buffered_answer_cap
            and found.keep_alive
            and found.json
            and not found.special
        )

    def answer_whole(self, ordinary: Ordinary, found: PlainHead, parts: Sequence[bytes]) -> bool:
        """Pass on a usual answer that is whole now; ``False`` if it does not go this way."""
        report = report_at_end(parts[-1]) or read_report(b"".join(parts))
        if not self._expected(ordinary, report):
            return False
        self._pass_on(ordinary, found, self._stamped(ordinary, found), parts)
        return True

    def _expected(self, ordinary: Ordinary, report: Report) -> bool:
        """Whether the answer says no news, and the client takes it now and on."""
        selected = ordinary.selected
        engine, version = selected.engine, selected.version
        if (
            engine.version != version
            or ordinary.client.writing_paused
            or ordinary.client.closing
            or self.context.ends_connections()
            or not ordinary.asked.keep_alive
        ):
            return False
        if report is NOTHING:
            return True
        if report.current != version or len(report.versions) != 1:
            return False
        if engine.trust is not engine.row.trust:
            return False
        engine.seen_version = True
        return True

    def _stamped(self, ordinary: Ordinary, found: PlainHead) -> bytes:
        """The head for the client."""
        selected = ordinary.selected
        lines = [
            found.status_line,
            *found.kept,
            _stamp_lines(selected.engine.url, selected.version),
        ]
        if ordinary.minted is not None:
            lines.append(b"x-request-id: " + ordinary.minted.encode())
        lines.append(b"Content-Length: %d\r\n\r\n" % found.length)
        return b"\r\n".join(lines)

    def _pass_on(
        self, ordinary: Ordinary, found: PlainHead, head: bytes, parts: Sequence[bytes]
    ) -> None:
        client = ordinary.client
        if len(head) + found.length <= SMALL:
            client.answer(b"".join((head, *parts)))
        else:
            client.write((head, *parts))
        if client.writing_paused:
            # It is not over before the client has taken it.
            request = ordinary.full()
            request.was_written(found.status, found.by_name, b"".join(parts))
            return
        try:
            self._close(ordinary, found.status, found.length)
        except Exception:  # noqa: BLE001 - logged whole; the client has its answer
            _log.exception("a fault of the proxy at the end of a request")
        finally:
            ordinary.selected.guard.release()
            client.finished(persistent=True)

    def _close(self, ordinary: Ordinary, status: int, size: int) -> None:
        """Count the engine free and write the record."""
        context, selected = self.context, ordinary.selected
        guard = selected.guard
        guard.judge(of_status(status))
        guard.release()
        context.health.reached(selected.engine)
        ordinary.status, ordinary.size = status, size
        now = context.now()
        if status != _USUAL:
            context.observer.finished(ordinary.record(now))
            return
        context.observer.served(
            ordinary,
            now,
            route=ordinary.admission.route.path,
            model=ordinary.pool.model,
            duration=now - ordinary.started,
        )
