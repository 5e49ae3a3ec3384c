"""What passes between an exchange and the adapter that drives it.

The exchange returns *actions*; the adapter carries one out and reports what came of it. Heads are
edited rather than rebuilt: an action names what to take out and what to put in, so that an adapter
may splice bytes.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec

from steersman.errors import RequestError
from steersman.settings import Timeouts
from steersman_proxy.exchange.routes import Route
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.request import RouteRequest, Wait

Header = tuple[bytes, bytes]


def fields_of(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """The headers of an answer by lower-case name; values of one name are joined (RFC 9110, 5.3)."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        name = name.lower()
        known = fields.get(name)
        fields[name] = value if known is None else known + b", " + value
    return fields


class RequestHead:
    """The head of a client's request as it was received; not changed afterwards."""

    __slots__ = ("_pairs", "length", "method", "path", "raw", "repeats", "target")

    def __init__(self, method: str, target: str, headers: list[Header]) -> None:
        self.method = method
        self.target = target
        """Path and query, not decoded."""
        self.path = target.partition("?")[0]
        """The target without its query, not decoded."""
        self._pairs: list[Header] | None = headers
        # A request is asked for ten headers and has as many: sorted once they cost a tenth. From
        # the end, so that of two the first is kept.
        self.raw = {name.lower(): value for name, value in reversed(headers)}
        """The value of the first header of each lower-case name, as it came."""
        self.length: int | None = None
        """Bytes of the body, if they are known already; the headers tell otherwise."""
        self.repeats = len(self.raw) != len(headers)
        """Whether a header stands there more than once."""

    @property
    def headers(self) -> list[Header]:
        """All headers in order, names as they came."""
        pairs = self._pairs
        if pairs is None:
            pairs = self._pairs = self._split()
        return pairs

    def _split(self) -> list[Header]:
        raise NotImplementedError("a head without its headers must know how to make them")

    def first(self, name: bytes) -> str | None:
        """The value of the first header of that lower-case name, trimmed."""
        value = self.raw.get(name)
        return None if value is None else value.decode("latin-1").strip()


class Failure(Enum):
    """How an attempt at an engine ended badly."""

    CONNECT_REFUSED = "connect_refused"
    """No connection came about; the request was not sent."""
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection came about in time; the request was not sent."""
    EXHAUSTED = "exhausted"
    """This process has no file or port left for a connection; the request was not sent."""
    WITHHELD = "withheld"
    """Before its first byte was written the request might not be started any more; it was not sent."""
    CLOSED_BEFORE_ANSWER = "closed_before_answer"
    """The engine took the request and closed without a byte of answer."""
    INCOMPLETE = "incomplete"
    """The engine closed in the middle of its answer."""
    PROTOCOL = "protocol"
    """What the engine sent is not HTTP."""
    HEAD_TIMEOUT = "head_timeout"
    """The head of the answer did not come in time."""
    IDLE_TIMEOUT = "idle_timeout"
    """The body of the answer stopped coming."""

    @property
    def unsent(self) -> bool:
        """Whether the engine surely did not get the request, so that another one may."""
        return self in _UNSENT

    @property
    def unreachable(self) -> bool:
        """Whether it tells that the engine cannot be reached, rather than something of ourselves."""
        return self in (Failure.CONNECT_REFUSED, Failure.CONNECT_TIMEOUT)


_UNSENT = frozenset(
    {
        Failure.CONNECT_REFUSED,
        Failure.CONNECT_TIMEOUT,
        Failure.EXHAUSTED,
        Failure.WITHHELD,
    }
)


class HeadEdit(msgspec.Struct, frozen=True):
    """A change to a head: take out ``remove`` (lower-case names), then append ``add``."""

    remove: frozenset[bytes] = frozenset()
    add: tuple[Header, ...] = ()


class ReadBody(msgspec.Struct, frozen=True):
    """Read the whole body, at most ``limit`` bytes, then call ``body()``."""

    limit: int


class Serve(msgspec.Struct, frozen=True):
    """Answer a route of our own (after its body was read), then call ``served()``."""

    route: Route
    pool: str | None
    body: list[bytes]


class Hold(msgspec.Struct, frozen=True):
    """Wait in the hold queue, then call ``released()`` or ``hold_failed()``."""

    request: RouteRequest
    wait: Wait


class Send(msgspec.Struct, frozen=True):
    """Send the client's request to ``engine``, then call ``answer_head()`` or ``attempt_failed()``.

    The adapter takes out the hop-by-hop headers and sets Host and the framing itself. At each write,
    in the same turn of the loop, it asks the exchange's ``may_start()``; if not, nothing more is
    written and the attempt has failed as ``WITHHELD``.
    """

    engine: Engine
    edit: HeadEdit
    body: list[bytes]
    timeouts: Timeouts


class Respond(msgspec.Struct, frozen=True):
    """Send a whole answer of our own and finish. ``close`` ends the connection after it."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    close: bool = False


class StartAnswer(msgspec.Struct, frozen=True):
    """Send the engine's head, edited, then ``body`` (what was held back so far), then go on."""

    edit: HeadEdit
    body: list[bytes] = []
    end: bool = False
    """Whether ``body`` is all of it, so that its length is known and the answer ends here."""


class Collect(msgspec.Struct, frozen=True):
    """Send nothing yet; feed the body to ``answer_data()``."""


class Relay(msgspec.Struct, frozen=True):
    """Pass these bytes of the body on."""

    body: list[bytes]


class Finish(msgspec.Struct, frozen=True):
    """Pass these bytes on, if any, and end the answer properly."""

    body: list[bytes] = []


class Cut(msgspec.Struct, frozen=True):
    """Close the client's connection so that its HTTP layer sees a broken answer."""


Action = ReadBody | Serve | Hold | Send | Respond
AnswerAction = StartAnswer | Collect | Relay | Finish | Cut


class Outcome(Enum):
    """How an exchange ended; a bounded label of metrics and logs."""

    OK = "ok"
    """An engine's answer, or one of our own routes', was passed on whole."""
    REJECTED = "rejected"
    """We answered with an error of ours."""
    UPSTREAM_FAILED = "upstream_failed"
    """An engine failed; the client got a 502 or 504, or a broken answer."""
    CLIENT_GONE = "client_gone"
    """The client left before the end."""


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a finished exchange; metrics and the access log are made from it."""

    request_id: str
    method: str
    route: str
    """The route's template, never the client's text."""
    path: str
    pool: str | None
    model: str | None
    """The listed model of the pool; ``None`` if no pool was found."""
    engine_id: str | None
    engine_url: str | None
    weight_version: str | None
    """What the answer was stamped with."""
    status: int | None
    """What the client got; ``None`` if it left before the head."""
    outcome: Outcome
    error: RequestError | None
    streaming: bool
    mixed: bool
    duration: float
    held: float
    time_to_first_byte: float | None
    """From the head of the request to the first byte of the answer's body; seconds."""
    request_bytes: int
    answer_bytes: int
    attempts: int
