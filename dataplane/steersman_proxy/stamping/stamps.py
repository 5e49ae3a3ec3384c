"""The headers that name the engine and the weights, and what one answer needs of them.

``x-smg-routed-worker-id`` is the engine's URL, ``x-smg-weight-version`` the version that made the
answer, ``x-smg-mixed-version: true`` says that more than one did. The names are SMG's, so that its
clients work unchanged. An engine's own headers of these names are taken out: who served is not for
the engine to say.
"""

from functools import lru_cache

from steersman.versions import Order, VersionOrder
from steersman_proxy.exchange.messages import HeadEdit, Header
from steersman_proxy.stamping.reports import Report, read_report
from steersman_proxy.stamping.sse import EventReader

WORKER = b"x-smg-routed-worker-id"
VERSION = b"x-smg-weight-version"
MIXED = b"x-smg-mixed-version"

_ALL = frozenset((WORKER, VERSION, MIXED))
_WORKER_ONLY = frozenset((WORKER,))


def worker_only(url: str) -> HeadEdit:
    """The one stamp of a plain relay (RL off)."""
    return HeadEdit(remove=_WORKER_ONLY, add=((WORKER, url.encode()),))


# Of the engines of a fleet, each with a few versions in its time.
@lru_cache(maxsize=8192)
def stamps_of(url: str, version: str | None) -> tuple[Header, ...]:
    """The headers of an answer that one version made, or of whose version nothing is known."""
    worker = (WORKER, url.encode())
    return (worker,) if version is None else (worker, (VERSION, version.encode()))


@lru_cache(maxsize=8192)
def _unmixed(url: str, version: str | None) -> HeadEdit:
    return HeadEdit(_ALL, stamps_of(url, version))


class Stamper:
    """The stamps of one answer from one engine."""

    __slots__ = (
        "_at_dispatch",
        "_first_seen",
        "_known",
        "_order",
        "_reader",
        "_url",
        "mixed",
        "version",
    )

    def __init__(self, *, url: str, version: str | None, order: VersionOrder) -> None:
        self._url = url
        self._at_dispatch = version
        self._order = order
        self._reader: EventReader | None = None
        self._known: bytes | None = None
        self._first_seen: str | None = None
        self.version = version
        """What the answer is, or would be, stamped with."""
        self.mixed = False

    def edit(self) -> HeadEdit:
        """The change to the answer's head, with what is known by now."""
        if not self.mixed or self.version is None:
            return _unmixed(self._url, self.version)
        return HeadEdit(_ALL, (*stamps_of(self._url, self.version), (MIXED, b"true")))

    def disown(self) -> None:
        """The engine has lost its version (it said ``default``): name none rather than a wrong one."""
        self.version = None
        self.mixed = False

    def read_body(self, body: bytes, *, at_end: str | None) -> Report:
        """Take the report of a whole answer; ``at_end`` is the table's version of the engine now.

        The engine's own report wins. Where it makes none, a version that changed in the table while
        the request was in flight makes the answer mixed.
        """
        report = read_report(body)
        self.mixed = report.mixed(self._at_dispatch, order=self._order)
        if report.current is not None:
            self.version = report.current
        if not report.versions and at_end is not None and self._at_dispatch is not None:
            self.mixed = self._order.compare(at_end, self._at_dispatch) is not Order.SAME
        return report

    def read_stream(self, chunk: bytes, *, narrate: bool) -> tuple[list[bytes], list[Report]]:
        """Read along in a stream.

        Returns the bytes to pass on and the reports that told something new. With ``narrate`` each
        change is told to the client in an SSE comment after the event that showed it.
        """
        news: list[Report] = []
        if self._reader is None:
            self._reader = EventReader(lambda event: self._event(event, news, narrate=narrate))
        else:
            # The reader outlives this call, the list does not.
            self._reader.on_event = lambda event: self._event(event, news, narrate=narrate)
        return self._reader.feed(chunk), news

    def _event(self, event: bytes, news: list[Report], *, narrate: bool) -> bytes | None:
        if b'"weight_version' not in event:
            return None
        # Parsing each cumulative event costs its whole length. A key's quotes cannot appear inside
        # a JSON text unescaped, so an event with just the known member tells nothing new.
        if self._known is not None and (
            event.count(b'"weight_version') == 1 and self._known in event
        ):
            return None
        report = read_report(event)
        if not report.versions:
            return None
        if not report.spanned and len(report.versions) == 1:
            self._known = b'"weight_version":"' + report.versions[0].encode() + b'"'
        news.append(report)
        before = (self.version, self.mixed)
        self._take_event(report)
        if (self.version, self.mixed) == before or not narrate or self.version is None:
            return None
        note = b": " + VERSION + b": " + self.version.encode() + b"\n"
        if self.mixed:
            note += b": " + MIXED + b": true\n"
        return note + b"\n"

    def _take_event(self, report: Report) -> None:
        """Mixed is judged within the stream: a table that was behind at dispatch mixes nothing."""
        if self._first_seen is None:
            self._first_seen = report.versions[0]
        self.mixed = self.mixed or report.mixed(self._first_seen, order=self._order)
        if report.spanned and not self.mixed:
            last = report.versions[-1]
            self.mixed = self._order.compare(last, self._first_seen) is not Order.SAME
        self.version = report.current or self.version
