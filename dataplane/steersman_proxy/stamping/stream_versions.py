"""What the events of a stream say of the weights that make it.

Before its end SGLang names, with each event, the version that the engine has at that moment; whether
a token of this answer was made by it remains to be seen. At the end it gives spans, which say exactly
that, and whose last version may be an older one than was named before. vLLM gives spans alone.

A stream may carry several sequences (the items of a batch, or ``n`` choices), each with an end.
"""

from steersman.versions import Order, VersionOrder
from steersman_proxy.stamping.reports import Report


class StreamVersions:
    """Takes the reports of one stream as they come."""

    __slots__ = ("_first", "_last", "_made_by", "_named", "_order", "_suspected", "_torn")

    def __init__(self, order: VersionOrder) -> None:
        self._order = order
        self._first: str | None = None
        """The first that was named; the table at dispatch may have been behind, which mixes nothing."""
        self._last: str | None = None
        self._named: set[str] = set()
        self._made_by: str | None = None
        """Of the spans so far, the version of the first."""
        self._torn = False
        """Whether spans show more than one version."""
        self._suspected = False
        """Whether another version was named since there were spans, or since the beginning."""

    @property
    def mixed(self) -> bool:
        """Whether more than one version made the answer, as far as is known: exact once all of its
        sequences have ended with spans.
        """
        return self._torn or self._suspected

    def take(self, report: Report) -> bool:
        """Take one event's report, which names some version; whether that is what the engine has now.

        The last span is of the last token. If the engine has named another version since, it says
        nothing of now.
        """
        if self._first is None:
            self._first = report.versions[0]
        if report.spanned:
            self._suspected = False
            if self._made_by is None:
                self._made_by = report.versions[0]
            self._torn = self._torn or not all(map(self._is_made_by, report.versions))
        elif report.mixed(self._first, order=self._order):
            self._suspected = True
        past = report.spanned and report.last != self._last and report.last in self._named
        self._named.update(report.versions)
        if not past:
            self._last = report.last
        return not past

    def _is_made_by(self, version: str) -> bool:
        assert self._made_by is not None
        return self._order.compare(version, self._made_by) is Order.SAME
