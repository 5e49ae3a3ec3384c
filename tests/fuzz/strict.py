"""Strict readers of what the proxy writes, to engines and to clients.

They share no code with the proxy and forgive nothing: whatever an engine, a client or another proxy
could read in a second way is an error here.
"""

import re
from typing import Literal, NamedTuple

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
"""RFC 9110, 7.6.1, and those that docs/headers.md lists."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[^\x00\r\n]*"
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*(" + _VALUE + rb"?)[ \t]*")
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") (/[^\x00-\x20\x7f]*) HTTP/1\.1")
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-9][0-9]{2}) (" + _VALUE + rb")")

Headers = list[tuple[bytes, bytes]]


class Unframed(Exception):
    """Bytes that can be read in more ways than one, or in none."""


def values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of the headers of that lower-case name."""
    return [value for key, value in headers if key.lower() == name]


class Received(NamedTuple):
    """A request as it reached the engine."""

    raw: bytes
    """All of it."""
    method: bytes
    target: bytes
    headers: Headers
    body: bytes


def read_request(data: bytes, *, authority: bytes) -> tuple[Received, bytes] | None:
    """The first request in ``data`` and what follows it; ``None`` while it is not whole."""
    head, lines = _head(data)
    if head is None:
        return None
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise Unframed(f"request line {lines[0][:200]!r}")
    headers = _fields(lines[1:])
    if values(headers, b"host") != [authority]:
        raise Unframed(f"Host {values(headers, b'host')}")
    for name in HOP_BY_HOP:
        if values(headers, name):
            raise Unframed(f"hop-by-hop header {name!r}")
    length = _length(headers) or 0
    end = len(head) + length
    if len(data) < end:
        return None
    return Received(data[:end], line[1], line[2], headers, data[len(head) : end]), data[end:]


Framing = Literal["none", "length", "chunked", "eof"]


class Answered(NamedTuple):
    """An answer as the client reads it."""

    status: int
    reason: bytes
    headers: Headers
    body: bytes
    framing: Framing
    whole: bool
    """Whether it came to its proper end."""
    head: bytes

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends after it."""
        tokens = [value.lower() for value in values(self.headers, b"connection")]
        return b"close" in tokens or self.framing == "eof"


def read_answers(
    data: bytes, *, methods: list[bytes], ended: str, old: list[bool] | None = None
) -> list[Answered]:
    """All answers of a connection, interim ones too; the last one may be broken.

    ``methods`` are those of the requests that they answer; those beyond are POST. ``ended`` tells
    how the connection ended: ``fin``, ``rst`` or ``open``.
    """
    answers: list[Answered] = []
    count = 0
    while data:
        head, lines = _head(data)
        if head is None:
            if ended == "open":
                raise Unframed(f"a connection that stays open ends in {data[:200]!r}")
            answers.append(Answered(0, b"", [], data, "none", False, b""))
            break
        if answers and answers[-1].closes:
            raise Unframed(f"after an answer that closes: {data[:200]!r}")
        method = methods[count] if count < len(methods) else b"POST"
        answer, data = _answer(head, lines, data[len(head) :], method=method, ended=ended)
        answers.append(answer)
        if answer.status >= 200:
            count += 1
        if not answer.whole and data:
            raise Unframed(f"after a broken answer: {data[:200]!r}")
    return answers


def _answer(
    head: bytes, lines: list[bytes], rest: bytes, *, method: bytes, ended: str
) -> tuple[Answered, bytes]:
    line = _STATUS_LINE.fullmatch(lines[0])
    if line is None:
        raise Unframed(f"status line {lines[0][:200]!r}")
    status, headers = int(line[1]), _fields(lines[1:])
    length = _length(headers)
    codings = values(headers, b"transfer-encoding")
    body, whole, framing = b"", True, "none"
    if codings and codings != [b"chunked"]:
        raise Unframed(f"Transfer-Encoding {codings}")
    if codings and length is not None:
        raise Unframed("Transfer-Encoding and Content-Length")
    if status < 200 or status == 204:
        if codings or length is not None:
            raise Unframed(f"framing with status {status}")
    elif method != b"HEAD" and status != 304:
        if codings:
            framing = "chunked"
            body, rest, whole = _chunks(rest)
        elif length is not None:
            framing = "length"
            body, rest = rest[:length], rest[length:]
            whole = len(body) == length
        else:
            framing = "eof"
            body, rest = rest, b""
            whole = ended == "fin"
    for name in HOP_BY_HOP - {b"connection", b"transfer-encoding"}:
        if values(headers, name):
            raise Unframed(f"hop-by-hop header {name!r}")
    connection = values(headers, b"connection")
    if connection not in ([], [b"close"], [b"keep-alive"]):
        raise Unframed(f"Connection {connection}")
    return Answered(status, line[2], headers, body, framing, whole, head), rest  # type: ignore[arg-type]


def _chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    """Body, what follows it, and whether the last chunk has come."""
    body = b""
    while True:
        line, found, rest = data.partition(b"\r\n")
        if not found:
            return body, b"", False
        if re.fullmatch(rb"[0-9a-fA-F]{1,8}", line) is None:
            raise Unframed(f"chunk size {line[:100]!r}")
        size = int(line, 16)
        if size == 0:
            if not rest.startswith(b"\r\n"):
                if b"\r\n".startswith(rest):
                    return body, b"", False
                raise Unframed(f"after the last chunk: {rest[:100]!r}")
            return body, rest[2:], True
        body += rest[:size]
        if len(rest) < size + 2:
            return body, b"", False
        if rest[size : size + 2] != b"\r\n":
            raise Unframed(f"after a chunk: {rest[size : size + 100]!r}")
        data = rest[size + 2 :]


def _head(data: bytes) -> tuple[bytes | None, list[bytes]]:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None, []
    return data[: end + 4], data[:end].split(b"\r\n")


def _fields(lines: list[bytes]) -> Headers:
    headers: Headers = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Unframed(f"header line {line[:200]!r}")
        headers.append((field[1], field[2]))
    return headers


def _length(headers: Headers) -> int | None:
    lengths = values(headers, b"content-length")
    if not lengths:
        return None
    if len(lengths) > 1 or re.fullmatch(rb"0*[0-9]{1,18}", lengths[0]) is None:
        raise Unframed(f"Content-Length {lengths}")
    return int(lengths[0])
