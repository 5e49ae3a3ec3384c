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
from steersman_proxy.exchange.exchange import filtered_by
from steersman_proxy.exchange.judging import of_status
from steersman_proxy.exchange.routes import Kind
from steersman_proxy.exchange.targeting import affinity_key
from steersman_proxy.http.connection import Connection
from steersman_proxy.http.drive import Means
from steersman_proxy.http.endpoint import BaseUrl, base_url
from steersman_proxy.http.headers import check_headers
from steersman_proxy.http.plain_head import PlainHead, plain_head
from steersman_proxy.http.splice.client import Client
from steersman_proxy.http.splice.head import RegularHead, Shape
from steersman_proxy.http.splice.ordinary import InFront, Ordinary
from steersman_proxy.http.splice.request import SplicedRequest
from steersman_proxy.http.splice.way import REQUEST_ID, Way
from steersman_proxy.http.write_batch import SMALL
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import Selected
from steersman_proxy.stamping.reports import NOTHING, Report, read_report, report_at_end
from steersman_proxy.stamping.stamps import stamps_of

_log = logging.getLogger("steersman.http")

_DATA = Kind.DATA
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


# The stamps as lines, of the engines of a fleet, each with a few versions in its time.
@lru_cache(maxsize=8192)
def _stamp_lines(url: str, version: str | None) -> bytes:
    stamps = stamps_of(url, version)
    check_headers(stamps)
    return b"".join(b"%b: %b\r\n" % stamp for stamp in stamps)


class Lane:
    """Begins requests on the shortest way, and answers them."""

    def __init__(
        self,
        means: Means,
        context: Context,
        *,
        grown: Callable[[Ordinary, SplicedRequest], None],
    ) -> None:
        self.means = means
        self.context = context
        self.grown = grown
        """Told of a request that leaves the shortest way."""
        self._ways: dict[Shape, Way | None] = {}
        """By the shapes of heads; ``None`` for one that needs something special."""
        self._admitted: dict[tuple[bytes, bytes | None], Admission] = {}
        # What these ask for is done on the long way alone.
        check_headers(context.engine_keys.values())
        self._closed = not context.rl_enabled or context.cors.enabled or bool(context.rid_headers)

    def begin(self, client: Client, head: RegularHead, body: bytes) -> InFront | None:
        """Send the request to an engine; ``None`` if it has to go the long way, and nothing is done."""
        context = self.context
        if self._closed or context.draining or not body:
            return None
        way = None if head.shape is None else self._way(head, head.shape)
        if way is not None:
            admission, affinity = way.admission, way.affinity(head)
        else:
            found = None if head.repeats else self._admission(head)
            if found is None:
                return None
            admission, affinity = found, affinity_key(head)
        if len(body) > _SMALL or len(body) > admission.body_limit:
            return None
        started = context.now()
        selected = context.fleet.at_once(affinity)
        if selected is None:
            return None
        try:
            return self._send(client, head, body, way, admission, affinity, selected, started)
        except BaseException:
            selected.guard.release()
            raise

    def _send(
        self,
        client: Client,
        head: RegularHead,
        body: bytes,
        way: Way | None,
        admission: Admission,
        affinity: str | None,
        selected: Selected,
        started: float,
    ) -> InFront | None:
        context, engine = self.context, selected.engine
        base = base_url(engine.url)
        minted: str | None = None
        if way is not None and not base.path:
            line = b""
            if not way.names_itself:
                minted = context.new_request_id()
                line = b"x-request-id: %b\r\n" % minted.encode()
            sent = way.written(head, base, line)
        else:
            if head.raw.get(REQUEST_ID) is None:
                minted = context.new_request_id()
            try:
                sent = self._written(head, base, admission, minted, engine)
            except ValueError:
                selected.guard.release()
                return None
        ordinary = Ordinary(
            self, client, head, body, admission, affinity, selected, started, minted, sent
        )
        client.stall = ordinary.timeouts.client_stall
        context.observer.selected(engine, filtered_by(ordinary.pool, selected))
        self.means.janitor.expect(started + ordinary.timeouts.stale)
        connection = self.means.upstream.take_idle(base.endpoint)
        if connection is None:
            return ordinary.on_new_connection()
        connection.start_at_once(ordinary, sent, body)
        return ordinary

    def _written(
        self,
        head: RegularHead,
        base: BaseUrl,
        admission: Admission,
        minted: str | None,
        engine: Engine,
    ) -> bytes:
        """The head for the engine, line by line.

        :raises ValueError: if it cannot be sent to this engine.
        """
        remove = admission.consumed if head.keep_alive else admission.consumed | {b"close"}
        key = self.context.engine_keys.get(engine.row.pool)
        if key is not None:
            remove |= {_KEY}
        lines = head.begun(base, remove)
        if minted is not None:
            lines.append(b"x-request-id: " + minted.encode())
        if key is not None:
            lines.append(b"%b: %b" % key)
        lines += (b"Content-Length: %d" % head.body_length, b"", b"")
        return b"\r\n".join(lines)

    def _way(self, head: RegularHead, shape: Shape) -> Way | None:
        """The way of a head of that shape, if it needs nothing special."""
        try:
            return self._ways[shape]
        except KeyError:
            way: Way | None = None
        if shape.keep_alive and not self.context.engine_keys:
            admission = self._admission(head)
            if admission is not None:
                way = Way(head, admission)
        if len(self._ways) >= _REMEMBERED:
            self._ways.clear()
        self._ways[shape] = way
        return way

    def _admission(self, head: RegularHead) -> Admission | None:
        """What is found of a head; ``None`` if it needs something special."""
        raw = head.raw
        if not _SPECIAL.isdisjoint(raw):
            return None
        return self._admitted.get((head.first_line, raw.get(_KEY))) or self._admit(head)

    def _admit(self, head: RegularHead) -> Admission | None:
        """Judge a head as all are judged; remember it if it needs nothing special."""
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
        # A large body is passed on from where it was read to.
        large = found.length > SMALL
        body = memoryview(data)[end + 4 :] if large else data[end + 4 :]
        report = report_at_end(data, end + 4) or read_report(bytes(body))
        if not self._expected(ordinary, report):
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
        pieces = found.kept()
        pieces.append(_stamp_lines(selected.engine.url, selected.version))
        if ordinary.minted is not None:
            pieces.append(b"x-request-id: %b\r\n" % ordinary.minted.encode())
        pieces.append(b"Content-Length: %d\r\n\r\n" % found.length)
        return b"".join(pieces)

    def _pass_on(
        self,
        ordinary: Ordinary,
        found: PlainHead,
        head: bytes,
        parts: Sequence[bytes | memoryview],
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
