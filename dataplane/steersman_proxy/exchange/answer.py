"""The engine's answer on its way to the client: held back or passed on, read along, stamped."""

from collections.abc import Mapping

from steersman.versions import VersionOrder
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.cors import PREFIX as CORS
from steersman_proxy.exchange.messages import (
    Collect,
    Finish,
    HeadEdit,
    Header,
    Relay,
    RequestHead,
    StartAnswer,
)
from steersman_proxy.exchange.routes import Route
from steersman_proxy.routing.request import Selected
from steersman_proxy.stamping.reports import Report
from steersman_proxy.stamping.stamps import Stamper, worker_only

_COLLECT, _FINISH = Collect(), Finish()
_NOBODY: frozenset[bytes] = frozenset()
_LENGTH = frozenset({b"content-length"})


class Answer:
    """One answer of one engine.

    A JSON answer that may report its version is *collected* up to a cap, so that the engine's own
    report gets into the head; all others are passed on as they come.
    """

    __slots__ = (
        "_begun",
        "_context",
        "_held",
        "_not_theirs",
        "_own_headers",
        "_read_stream",
        "_request",
        "_rl",
        "_route",
        "_selected",
        "_stamper",
        "_table_said",
        "size",
        "streaming",
    )

    def __init__(
        self,
        context: Context,
        *,
        request: RequestHead,
        route: Route,
        selected: Selected,
        order: VersionOrder,
        own_headers: tuple[Header, ...],
    ) -> None:
        self._context = context
        self._request = request
        self._route = route
        self._selected = selected
        self._own_headers = own_headers
        self._not_theirs = _NOBODY
        """Cross-origin headers of the engine: the proxy owns those rules."""
        self._begun = False
        """Whether it is passed on as it comes."""
        self._held: list[bytes] | None = None
        self._read_stream = False
        self._rl = context.rl_enabled
        self._stamper = Stamper(
            url=selected.engine.url, version=selected.version if self._rl else None, order=order
        )
        self._table_said = selected.version
        """The version of the table that this answer's reports correct; see :meth:`_observe`."""
        self.streaming = False
        self.size = 0

    @property
    def version(self) -> str | None:
        """What the answer is stamped with, corrected by what was seen later."""
        return self._stamper.version

    @property
    def mixed(self) -> bool:
        """Whether more than one version made the answer, as far as is known.

        Of an answer that is passed on and names none (streams of OpenAI's routes, very large ones)
        only the table tells whether the engine was given other weights under it.
        """
        stamper = self._stamper
        if self._begun and not stamper.judged:
            return stamper.changed_to(self._selected.engine.version)
        return stamper.mixed

    @property
    def collecting(self) -> bool:
        """Whether nothing has been passed on yet."""
        return self._held is not None

    def head(self, fields: Mapping[bytes, bytes]) -> StartAnswer | Collect:
        """The engine's head has come: its values by lower-case name."""
        kind = fields.get(b"content-type", b"").lower()
        raw_length = fields.get(b"content-length", b"")
        length = int(raw_length) if raw_length.isdigit() else None
        # Encoded bytes are passed on as they are and not read.
        encoded = b"content-encoding" in fields and (
            fields[b"content-encoding"].strip().lower() not in (b"", b"identity")
        )
        foreign = [name for name in fields if name.startswith(CORS)]
        if foreign:
            self._not_theirs = frozenset(foreign)
        self.streaming = kind.lstrip().startswith(b"text/event-stream")
        self._read_stream = (
            self._rl and self.streaming and not encoded and self._route.reports_in_stream
        )
        if (
            self._rl
            and self._route.reports_version
            and b"json" in kind
            and not encoded
            and (length is None or length <= self._context.buffered_answer_cap)
        ):
            self._held = []
            return _COLLECT
        self._begun = True
        return StartAnswer(self._edit())

    def data(self, data: bytes) -> StartAnswer | Relay | Collect:
        """A part of the body has come."""
        self.size += len(data)
        if self._held is not None:
            self._held.append(data)
            if self.size <= self._context.buffered_answer_cap:
                return _COLLECT
            held, self._held = self._held, None
            self._begun = True
            return StartAnswer(self._edit(), held)
        if self._read_stream:
            parts, news = self._stamper.read_stream(data, narrate=self._route.narrates)
            for report in news:
                self._observe(report)
            return Relay(parts)
        return Relay([data])

    @property
    def passes_through(self) -> bool:
        """Whether the body is passed on unread."""
        return self._held is None and not self._read_stream

    def whole(self, body: bytes) -> StartAnswer:
        """The whole body has come at once, of an answer that is collected."""
        self.size = len(body)
        self._held = None
        self._observe(self._stamper.read_body(body, at_end=self._selected.engine.version))
        return StartAnswer(self._edit(), [body], end=True)

    def end(self) -> StartAnswer | Finish:
        """The body is whole."""
        if self._held is None:
            self._stamper.end(self._selected.engine.version)
            return _FINISH
        held, self._held = self._held, None
        body = held[0] if len(held) == 1 else b"".join(held)
        self._observe(self._stamper.read_body(body, at_end=self._selected.engine.version))
        return StartAnswer(self._edit(), held, end=True)

    def _edit(self) -> HeadEdit:
        edit = self._stamper.edit() if self._rl else worker_only(self._selected.engine.url)
        add, remove = edit.add, edit.remove
        if self._own_headers:
            add = (*add, *self._own_headers)
            remove |= {name for name, _ in self._own_headers}
        if self._read_stream and self._route.narrates:
            # A comment may be put in, so that the engine's length would be too short.
            remove |= _LENGTH
        cors = self._context.cors
        if cors.enabled:
            add = (*add, *cors.headers(self._request))
        if self._not_theirs and (self._rl or cors.enabled):
            remove |= self._not_theirs
        return HeadEdit(remove, add)

    def _observe(self, report: Report) -> None:
        """Let the engine's own report correct the table, unless the table has moved on meanwhile.

        What this answer said before is no moving on: a long stream may see several refits.
        """
        engine = self._selected.engine
        if not self._rl or not report.versions:
            return
        if report.unversioned and engine.seen_version:
            # It named a version before, so it has started anew and its weights have no name. (An
            # engine that never names one is only known by the table, which then counts.)
            self._stamper.disown()
        if engine.version == self._table_said:
            self._context.fleet.observe(engine, report.current, seen_default=report.unversioned)
            self._table_said = engine.version
        elif engine.version == report.current:
            # Another answer, or the table's writer, said the same before.
            self._table_said = engine.version
