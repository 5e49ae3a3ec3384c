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
from steersman_proxy.stamping.stream_versions import StreamVersions

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


_NO_MEMBER = (b"", b"")


def _members(version: str) -> tuple[bytes, bytes]:
    """The member that names a version, in the two ways in which JSON is mostly written."""
    name, value = b'"weight_version":', b'"' + version.encode() + b'"'
    return name + value, name + b" " + value


class Stamper:
    """The stamps of one answer from one engine."""

    __slots__ = (
        "_at_dispatch",
        "_events",
        "_known",
        "_order",
        "_reader",
        "_url",
        "judged",
        "mixed",
        "version",
    )

    def __init__(self, *, url: str, version: str | None, order: VersionOrder) -> None:
        self._url = url
        self._at_dispatch = version
        self._order = order
        self._reader: EventReader | None = None
        self._events: StreamVersions | None = None
        self._known = _NO_MEMBER
        self.version = version
        """What the answer is, or would be, stamped with."""
        self.mixed = False
        self.judged = False
        """Whether the answer has said something of its weights, or has ended."""

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

        The engine's own report wins.
        """
        report = read_report(body)
        if report.versions:
            self.mixed = report.mixed(self._at_dispatch, order=self._order)
            self.judged = True
        if report.current is not None:
            self.version = report.current
        self.end(at_end)
        return report

    def end(self, at_end: str | None) -> None:
        """The answer is whole; ``at_end`` is the table's version of the engine now.

        If it has said nothing of its weights, a version that changed in the table while the request
        was in flight makes it mixed.
        """
        if not self.judged:
            self.judged = True
            self.mixed = self.changed_to(at_end)

    def changed_to(self, at_end: str | None) -> bool:
        """Whether ``at_end`` is another version than the table's at dispatch."""
        if at_end is None or self._at_dispatch is None:
            return False
        return self._order.compare(at_end, self._at_dispatch) is not Order.SAME

    def read_stream(self, chunk: bytes, *, narrate: bool) -> tuple[list[bytes], list[Report]]:
        """Read along in a stream.

        Returns the bytes to pass on and the reports that told something new of what the engine has now.
        With ``narrate`` each change is told to the client in an SSE comment after the event that
        showed it.
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
        known, spaced = self._known
        if known and event.count(b'"weight_version') == 1 and (known in event or spaced in event):
            return None
        report = read_report(event)
        if not report.versions:
            return None
        one = not report.spanned and len(report.versions) == 1
        # After spans, a label that was known before tells of another item of the batch.
        self._known = _members(report.versions[0]) if one else _NO_MEMBER
        self.judged = True
        events = self._events
        if events is None:
            events = self._events = StreamVersions(self._order)
        before = (self.version, self.mixed)
        if events.take(report):
            news.append(report)
        self.version = report.current or self.version
        self.mixed = events.mixed
        if (self.version, self.mixed) == before or not narrate or self.version is None:
            return None
        note = b": " + VERSION + b": " + self.version.encode() + b"\n"
        if self.mixed or before[1]:
            note += b": " + MIXED + (b": true\n" if self.mixed else b": false\n")
        return note + b"\n"
