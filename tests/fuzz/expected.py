"""What must come of an example: what the engine receives and what the client reads.

Written from RFC 9112, docs/headers.md and docs/routes.md, without the proxy's code. Beyond what the
model can tell (see :class:`Tail`) it is silent.
"""

import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.answering import Reply, State, read_reply, reported
from tests.fuzz.example import KEY, Example
from tests.fuzz.memory import URL
from tests.fuzz.reading import Fate, Request, read, tokens_of
from tests.fuzz.strict import HOP_BY_HOP, Headers, values

STAMPS = frozenset({b"x-smg-routed-worker-id", b"x-smg-weight-version", b"x-smg-mixed-version"})
BODY_LIMIT = 200_000
"""``max_body_bytes`` of the proxy under test."""


class Tail(Enum):
    """What follows the last step."""

    OPEN = "open"
    """Nothing; the connection could go on."""
    CLOSED = "closed"
    """Nothing, whatever the client sends; the connection ends."""
    REFUSED = "refused"
    """An error of the proxy's, and the end of the connection; nothing for an engine."""
    UNFINISHED = "unfinished"
    """Nothing for an engine; for the client nothing, or an error and the end."""
    STALLED = "stalled"
    """The proxy waits for the engine; what the client has read is a beginning of an answer."""
    ODD = "odd"
    """Anything that is proper HTTP on both sides."""


class Sent(NamedTuple):
    """A request as the engine must get it."""

    method: bytes
    target: bytes
    headers: Headers
    """End-to-end ones in their order; framing, Host and what the proxy adds are apart."""
    added: dict[bytes, bytes]
    body: bytes


class Want(NamedTuple):
    """An answer as the client must read it."""

    status: int
    reason: bytes | None = None
    headers: Headers | None = None
    """The engine's end-to-end ones in their order; ``None`` for an answer of the proxy's own."""
    added: dict[bytes, bytes] = {}  # noqa: RUF012 (never changed)
    absent: frozenset[bytes] = frozenset()
    body: bytes | None = None
    """``None``: any."""
    code: str | None = None
    """Of an error of the proxy's."""
    broken: bool = False
    """The answer must not come to a proper end; its body is a beginning of ``body``."""
    closes: bool | None = None
    framing: str | None = None


class Step(NamedTuple):
    """One request and what the client may read for it: one of the wants."""

    method: bytes
    wants: tuple[Want, ...]
    interim: int = 0
    """At most so many 100 (Continue) come before it."""


class Prediction(NamedTuple):
    requests: tuple[Sent, ...]
    steps: tuple[Step, ...]
    tail: Tail
    why: str = ""
    timed: bool = False
    """Whether it depends on what comes in one read: how much of a body is here when its head is
    judged, or whether an empty line belongs to the answer before it."""


class Route(NamedTuple):
    methods: tuple[str, ...]
    key: str
    stamp: str
    own: bool


@cache
def routes() -> dict[str, Route]:
    """The tables of docs/routes.md."""
    page = Path(__file__).parents[2] / "docs" / "routes.md"
    found: dict[str, Route] = {}
    own = False
    for line in page.read_text().splitlines():
        own = own or line == "## Answered by the proxy"
        row = re.fullmatch(r"\| `(/\S+)` \| ([A-Z, ]+) \| (\w+) \| ([\w, -]+) \|", line)
        if row is not None:
            found[row[1]] = Route(tuple(row[2].split(", ")), row[3], row[4], own)
    assert len(found) > 20
    return found


def route_of(path: bytes) -> Route | None:
    text = path.decode("latin-1")
    found = routes().get(text)
    if found is None and text.startswith("/v1/models/") and len(text) > len("/v1/models/"):
        return routes()["/v1/models/{id}"]
    return found


def predict(example: Example) -> Prediction:
    """Play the example through."""
    return _Play(example).run()


class _Play:
    def __init__(self, example: Example) -> None:
        self._example = example
        self._rl = example.setup != "relay"
        self._ids = 0
        self._version = "7"
        self._reused: bool | None = False
        """Whether the next request goes over a used connection; ``None`` if that cannot be told."""
        self._timed = False
        self._requests: list[Sent] = []
        self._steps: list[Step] = []

    def run(self) -> Prediction:
        data = self._example.sent
        while data:
            read_now = read(data)
            request = read_now.request
            if request is None:
                match read_now.fate:
                    case Fate.REFUSED:
                        return self._end(Tail.REFUSED, read_now.why)
                    case Fate.UNFINISHED:
                        return self._end(Tail.UNFINISHED, read_now.why)
                    case _:
                        return self._end(Tail.ODD, read_now.why)
            minted = self._mint(request)
            route = route_of(request.path)
            error = self._admit(request, route, minted)
            expects = request.value(b"expect") is not None
            if read_now.fate is not Fate.REGULAR:
                if error is not None and read_now.fate is Fate.UNFINISHED:
                    # It is answered before its body, which then is awaited or not.
                    error = error._replace(closes=None) if expects else error
                    self._steps.append(Step(request.method, (error,), int(expects)))
                    return self._end(Tail.CLOSED if error.closes else Tail.UNFINISHED)
                if error is not None or (
                    route is not None
                    and _special(request, route, rl=self._rl, version=self._version)
                ):
                    # It may be answered before the fault of its body is seen, or because of it.
                    return self._end(Tail.ODD, "an error before a faulty body", timed=True)
                tails = {Fate.REFUSED: Tail.REFUSED, Fate.UNFINISHED: Tail.UNFINISHED}
                return self._end(tails.get(read_now.fate, Tail.ODD), read_now.why or "body")
            if error is not None:
                if expects and not error.closes:
                    # It depends on whether the body is here already.
                    error = error._replace(closes=None)
                self._steps.append(Step(request.method, (error,), int(expects)))
                if error.closes:
                    return self._end(Tail.CLOSED)
                if expects:
                    return self._end(Tail.ODD, "refused before its body was asked for", timed=True)
            else:
                assert route is not None
                why = _special(request, route, rl=self._rl, version=self._version)
                if why:
                    return self._end(Tail.ODD, why)
                if route.own:
                    self._own(request, minted)
                else:
                    tail = self._engine(request, route, minted)
                    if tail is not Tail.OPEN:
                        return self._end(tail, "engine")
            if not request.persists:
                return self._end(Tail.CLOSED)
            data = read_now.rest
        return self._end(Tail.OPEN)

    def _end(self, tail: Tail, why: str = "", *, timed: bool = False) -> Prediction:
        timed = timed or self._timed
        return Prediction(tuple(self._requests), tuple(self._steps), tail, why, timed)

    def _mint(self, request: Request) -> dict[bytes, bytes]:
        """The request id that the proxy makes, if it does."""
        if not self._rl or request.value(b"x-request-id"):
            return {}
        self._ids += 1
        return {b"x-request-id": b"id-%d" % self._ids}

    # --- Errors -----------------------------------------------------------------------------------

    def _admit(
        self, request: Request, route: Route | None, minted: dict[bytes, bytes]
    ) -> Want | None:
        closes = not request.persists
        guarded = self._example.setup == "keys" and (route is None or route.key != "none")
        if guarded and not _keys(request.headers):
            added = {**minted, b"www-authenticate": b"Bearer"}
            return Want(401, added=added, code="unauthorized", closes=closes)
        if route is None:
            return Want(404, added=minted, code="unknown_url", closes=closes)
        if request.method.decode() not in route.methods:
            added = {**minted, b"allow": ", ".join(route.methods).encode()}
            return Want(405, added=added, code="method_not_allowed", closes=closes)
        too_large = Want(413, added=minted, code="body_too_large", closes=True)
        if int(request.value(b"content-length") or 0) > BODY_LIMIT:
            return too_large
        policy = request.value(b"x-smg-version-policy")
        if (
            self._rl
            and policy is not None
            and re.fullmatch(rb"[a-z0-9:\-]*", policy)
            and not (
                re.fullmatch(rb"any|latest-only|min-version:[0-9]+|max-staleness:[0-9]+", policy)
            )
        ):
            return Want(400, added=minted, code="invalid_version_policy", closes=closes)
        if len(request.body) > BODY_LIMIT:  # known once that much has come
            return too_large
        return None

    def _own(self, request: Request, minted: dict[bytes, bytes]) -> None:
        added = {**minted, b"content-type": b"application/json"}
        want = Want(200, b"OK", added=added, body=b'"ok"', closes=not request.persists)
        self._steps.append(Step(request.method, (want,), int(b"expect" in _names(request.headers))))

    # --- Engines ----------------------------------------------------------------------------------

    def _engine(self, request: Request, route: Route, minted: dict[bytes, bytes]) -> Tail:
        remove = HOP_BY_HOP | request.tokens | {b"host", b"content-length", b"expect", *minted}
        if self._example.setup == "keys":
            remove |= _keys(request.headers)
        sent = Sent(
            request.method,
            request.target,
            [header for header in request.headers if header[0].lower() not in remove],
            minted,
            request.body,
        )
        while True:
            answer = self._example.answer(len(self._requests))
            self._requests.append(sent)
            reply = read_reply(answer.data, method=request.method, end=answer.end)
            resend = self._reused
            if reply.state is not State.NOTHING or answer.end == "keep":
                resend = False
            if resend is None:
                self._timed = True
                return Tail.ODD
            self._reused = reply.state is State.WHOLE and reply.reusable and answer.end == "keep"
            if reply.rest and not reply.rest.strip(b"\r\n"):
                self._reused = None  # empty lines may be surplus, or nothing
            if not resend:
                break
        stalls = answer.end == "keep" and reply.state in (State.STOPPED, State.NOTHING)
        if stalls:
            return Tail.STALLED
        if reply.state is State.ODD or _repeats(reply.headers):
            return Tail.ODD
        wants, closed, known = self._wants(request, route, minted, reply)
        self._steps.append(Step(request.method, wants, int(b"expect" in _names(request.headers))))
        if closed:
            return Tail.CLOSED
        return Tail.OPEN if known else Tail.ODD

    def _wants(
        self, request: Request, route: Route, minted: dict[bytes, bytes], reply: Reply
    ) -> tuple[tuple[Want, ...], bool, bool]:
        """What the client may read, whether that ends the connection, and whether the model knows
        what comes after."""
        bad = Want(
            502,
            added={**minted, b"x-smg-routed-worker-id": URL.encode()},
            absent=STAMPS - {b"x-smg-routed-worker-id"},
            closes=not request.persists,
        )
        if not reply.status:
            return (bad,), False, True
        kind = (values(reply.headers, b"content-type") or [b""])[0].lower()
        coding = (values(reply.headers, b"content-encoding") or [b""])[0].lower()
        plain = coding in (b"", b"identity")
        collected = self._rl and "engine" in route.stamp and b"json" in kind and plain
        if reply.state is not State.WHOLE and collected:
            return (bad,), False, True
        streamed = self._rl and "stream" in route.stamp and plain
        streamed = streamed and kind.startswith(b"text/event-stream")
        body, at_dispatch, known = reply.body, self._version, True
        try:
            if collected:
                self._version = reported(body) or self._version
            elif streamed:
                body = self._read_events(body, tells="told" in route.stamp)
        except (ValueError, TypeError):
            known = False
        stamp = self._version if collected else at_dispatch
        want = self._want(request, minted, reply, body, stamp)
        if not known:
            want = want._replace(added=_without(want.added, STAMPS), absent=frozenset(), body=None)
        elif collected and self._version != at_dispatch:
            mixed = {**want.added, b"x-smg-mixed-version": b"true"}
            want = want._replace(added=mixed, absent=frozenset())
        if collected and want.framing != "none":
            want = want._replace(framing="length")
        if streamed and "told" in route.stamp and want.framing == "length":
            want = want._replace(framing=_unknown(request), closes=want.closes or None)
        if reply.state is State.WHOLE:
            return (want,), want.framing == "eof" or not request.persists, known
        broken = want._replace(broken=True)
        # With the fault in the same read as the head, either can be said.
        if reply.state is State.STOPPED:
            return (broken,), True, True
        return (broken, bad), False, False

    def _want(
        self,
        request: Request,
        minted: dict[bytes, bytes],
        reply: Reply,
        body: bytes,
        version: str,
    ) -> Want:
        remove = HOP_BY_HOP | tokens_of(reply.headers) | {b"x-smg-routed-worker-id"}
        added = {b"x-smg-routed-worker-id": URL.encode(), **minted}
        if self._rl:
            remove |= STAMPS
            added[b"x-smg-weight-version"] = version.encode()
        remove |= set(minted)
        headers = [
            (name, value)
            for name, value in reply.headers
            if name.lower() not in remove
            and not (self._rl and name.lower().startswith(b"access-control-"))
        ]
        framing = reply.framing
        if framing in ("chunked", "eof"):
            framing = _unknown(request)
        return Want(
            reply.status,
            reply.reason,
            headers,
            added,
            absent=frozenset({b"x-smg-mixed-version"}) if self._rl else frozenset(),
            body=body,
            closes=None if framing == "eof" else not request.persists,
            framing=framing,
        )

    def _read_events(self, body: bytes, *, tells: bool) -> bytes:
        """The stream with what the proxy tells in it; takes note of the versions."""
        if b"weight_version" not in body:
            return body
        out, data = b"", b""
        said = (self._version, False)
        first: str | None = None
        for line in body.splitlines(keepends=True):
            if line.endswith(b"\r") or (b"\r" in line and not line.endswith(b"\r\n")):
                raise ValueError("not plain")
            out += line
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line.strip(b"\r\n") and line.endswith(b"\n"):
                version = reported(data)
                data = b""
                if version is None:
                    continue
                first = first or version
                now = (version, said[1] or version != first)
                if now != said and tells:
                    out += b": x-smg-weight-version: %b\n" % version.encode()
                    out += b": x-smg-mixed-version: true\n" if now[1] else b""
                    out += b"\n"
                said = now
        self._version = said[0]
        return out


def _unknown(request: Request) -> str:
    """How a body of unknown length is framed for this client."""
    return "chunked" if request.version == b"1.1" else "eof"


def _names(headers: Headers) -> set[bytes]:
    return {name.lower() for name, _ in headers}


def _without(added: dict[bytes, bytes], names: frozenset[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in added.items() if name not in names}


def _repeats(headers: Headers) -> bool:
    """Whether what decides on an answer's treatment is there twice."""
    return any(
        len(values(headers, name)) > 1
        for name in (b"content-type", b"content-encoding", b"content-length")
    )


def _keys(headers: Headers) -> frozenset[bytes]:
    """The headers that carry the proxy's key."""
    found = set()
    for name, value in headers:
        lower = name.lower()
        if lower == b"authorization":
            scheme, _, rest = value.partition(b" ")
            value = rest.strip() if scheme.lower() == b"bearer" else value
        elif lower != b"x-api-key":
            continue
        if value == KEY.encode():
            found.add(lower)
    return frozenset(found)


def _special(request: Request, route: Route, *, rl: bool, version: str) -> str:
    """Why the model does not know what becomes of a proper request."""
    names = _names(request.headers)
    if names & {b"x-steersman-pool", b"x-steersman-explain", b"x-smg-target-worker"}:
        return "it names its pool or engine"
    if route.key == "admin" or (route.own and len(request.body) > 1000):
        return "an admin route, or a body for a route of our own"
    policy = request.value(b"x-smg-version-policy")
    if not rl:
        return ""
    if policy is not None and policy not in (b"any", b"latest-only", b"min-version:7"):
        return "version policy"
    if policy is not None and policy != b"any" and version != "7":
        return "version policy, and the version has changed"
    return ""
