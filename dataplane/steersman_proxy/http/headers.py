"""Which headers pass the proxy: end-to-end ones as they came, hop-by-hop ones never (RFC 9110, 7.6.1).

Pure functions over ``(name, value)`` pairs of bytes. What passes keeps its order, case, value and
repetitions. Nothing is invented: no ``Accept-Encoding``, ``User-Agent``, ``Date`` or ``Server``.
"""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus

from steersman_proxy.exchange.messages import Header

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Host and Content-Length are set anew. Expect was answered by us: we hold the whole body already.
_SET_BY_US = frozenset({b"host", b"content-length", b"expect"})
NEVER_SENT = HOP_BY_HOP | _SET_BY_US
"""Headers of a client that no engine gets, in lower case."""

METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAK = re.compile(rb"[\r\n\0]")


class InvalidHeader(ValueError):
    """A name or value that cannot stand in one line of a head. The text never shows the value."""


def request_headers(
    raw: Sequence[Header],
    *,
    authority: bytes,
    method: str,
    body_length: int,
    remove: frozenset[bytes] = frozenset(),
    add: Iterable[Header] = (),
) -> list[Header]:
    """The headers that an engine gets for a client's request.

    ``authority`` becomes Host; ``body_length`` is in bytes and becomes Content-Length where the
    method or the body asks for one. ``remove`` holds lower-case names; ``add`` is appended as it is.
    """
    headers = [(b"Host", authority)]
    headers += _without(raw, NEVER_SENT | remove)
    headers += add
    if body_length or method in METHODS_WITH_BODY:
        headers.append((b"Content-Length", str(body_length).encode("ascii")))
    return headers


def response_headers(
    raw: Sequence[Header],
    *,
    remove: frozenset[bytes] = frozenset(),
    add: Iterable[Header] = (),
) -> list[Header]:
    """The headers that a client gets of an engine's answer, Content-Length among them if it came.

    Whoever changes the body must put ``content-length`` into ``remove``.
    """
    return [*_without(raw, HOP_BY_HOP | remove), *add]


def check_headers(headers: Iterable[Header]) -> None:
    """Raise :class:`InvalidHeader` for a header that could end its line, or the head, early.

    The parsers at both edges refuse such bytes already; this guards what configuration, tables and
    our own code put in.
    """
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None:
            raise InvalidHeader(f"{name[:80]!a} is not the name of a header")
        if _LINE_BREAK.search(value) is not None:
            raise InvalidHeader(
                f"the value of {name.decode('ascii')} has a line break or NUL in it"
            )


def answer_head(status: int, reason: bytes, headers: Sequence[Header]) -> bytes:
    """Status line and headers for a client, with the empty line that ends them.

    Raises :class:`InvalidHeader` rather than write a head with a line more or less than told.
    """
    lines = [b"HTTP/1.1 %d %b" % (status, reason)]
    lines += [b"%b: %b" % header for header in headers]
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\r") != breaks or head.count(b"\n") != breaks or b"\0" in head:
        check_headers(headers)
        raise InvalidHeader("the reason of an answer has a line break or NUL in it")
    return head


def reason_phrase(status: int) -> bytes:
    """What stands behind the status of an answer of our own; empty for one that has no name."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


def connection_tokens(raw: Iterable[Header]) -> frozenset[bytes]:
    """What all ``Connection`` headers list together, in lower case."""
    tokens: set[bytes] = set()
    for name, value in raw:
        if len(name) == 10 and name.lower() == b"connection":
            tokens.update(token.strip().lower() for token in value.split(b","))
    tokens.discard(b"")
    return frozenset(tokens)


def _without(raw: Sequence[Header], names: frozenset[bytes]) -> list[Header]:
    listed = connection_tokens(raw)
    if listed:
        names |= listed
    return [header for header in raw if header[0].lower() not in names]
