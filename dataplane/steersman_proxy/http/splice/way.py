"""How requests go whose heads are of one shape: judged once, and written from what was kept of it."""

from steersman_proxy.exchange.admission import Admission
from steersman_proxy.exchange.targeting import ROUTING_KEYS
from steersman_proxy.http.endpoint import BaseUrl
from steersman_proxy.http.shapes import KeptLines
from steersman_proxy.http.splice.head import RegularHead

REQUEST_ID = b"x-request-id"


class Way:
    """The way of all heads of a shape to engines that need no key of their own."""

    __slots__ = ("_affinity", "_affinity_at", "_first", "_lines", "admission", "names_itself")

    def __init__(self, head: RegularHead, admission: Admission) -> None:
        """``head`` is one of the shape, and ``admission`` what was found of it."""
        shape = head.shape
        assert shape is not None
        self.admission = admission
        self.names_itself = REQUEST_ID in head.raw
        """Whether the client gave the request an id."""
        self._first = head.first_line + b"\r\n"
        self._lines = KeptLines(shape.parts, head.passing(admission.consumed))
        self._affinity_at = -1
        self._affinity: str | None = None
        for name in ROUTING_KEYS:
            if name in shape.names:
                self._affinity_at = shape.names.index(name)
                break
            if head.first(name):
                self._affinity = head.first(name)
                break

    def affinity(self, head: RegularHead) -> str | None:
        """The routing key of a request, if it carries one."""
        at = self._affinity_at
        return self._affinity if at < 0 else head.values[at].decode()

    def written(self, head: RegularHead, base: BaseUrl, minted: bytes) -> bytes:
        """The head for an engine whose URL has no path; ``minted`` is the line of the id that the proxy
        gave the request, with its end, or empty.

        The same bytes as :meth:`RegularHead.begun` makes of the lines.
        """
        return b"".join(
            (
                self._first,
                base.host_line,
                b"\r\n",
                *self._lines.fill(head.values),
                minted,
                b"Content-Length: %d\r\n\r\n" % head.body_length,
            )
        )
