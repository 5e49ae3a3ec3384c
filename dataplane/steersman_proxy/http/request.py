"""A request as bytes on the wire: its head, and its body in pieces that are never copied whole."""

import re
from collections.abc import Iterator, Sequence

from steersman_proxy.exchange.messages import Header
from steersman_proxy.http.headers import check_headers

PIECE = 256 * 1024
"""At most so many bytes are handed to the socket at a time."""

_SMALL = 64 * 1024
"""Parts below this are joined, since a write costs more than the copy; parts above are sliced."""

_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"/[^\x00-\x20\x7f]*")

Piece = bytes | memoryview


def request_head(*, method: str, target: str, headers: Sequence[Header]) -> bytes:
    """Request line and headers, with the empty line that ends them.

    Raises ``ValueError`` rather than write a head that a receiver could read differently.
    ``headers`` go out as they are; they come from
    :func:`~steersman_proxy.http.headers.request_headers`, which sets Host and the framing.
    """
    # A target may hold bytes above ASCII, which arrive as surrogates and leave as they came.
    encoded = target.encode("utf-8", "surrogateescape")
    if _METHOD.fullmatch(method) is None or method == "CONNECT":
        raise ValueError(f"{method[:80]!a} is not a method that can be sent to an engine")
    if _TARGET.fullmatch(encoded) is None:
        raise ValueError(f"{target[:80]!a} is not a path with a query")
    check_headers(headers)
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), encoded)]
    lines += [b"%b: %b" % header for header in headers]
    lines += (b"", b"")
    return b"\r\n".join(lines)


def pieces(head: bytes, body: Sequence[bytes]) -> Iterator[Piece]:
    """What is to be written one after the other; each piece has at most :data:`PIECE` bytes."""
    if len(body) == 1 and len(body[0]) < _SMALL:
        return iter((head + body[0],))
    return _pieces(head, body)


def _pieces(head: bytes, body: Sequence[bytes]) -> Iterator[Piece]:
    small = [head]
    size = len(head)
    for part in body:
        if len(part) < _SMALL and size + len(part) <= PIECE:
            small.append(part)
            size += len(part)
            continue
        if size:
            yield _joined(small)
            small, size = [], 0
        if len(part) < _SMALL:
            small, size = [part], len(part)
            continue
        view = memoryview(part)
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]
    if size:
        yield _joined(small)


def _joined(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)
