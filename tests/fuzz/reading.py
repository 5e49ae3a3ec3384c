"""What a client's bytes mean, by RFC 9112 and by what the project says it refuses.

A model: slow, plain, and written without the proxy's code. It knows three kinds of input. What it
calls *regular* it can tell the whole fate of. What is *refused* must end in an error and the
connection, and no engine may get anything of it or of what follows. Of the rest, *odd*, it says
nothing, since one careful reader may take it and another refuse it.
"""

import re
from enum import Enum
from typing import NamedTuple

from tests.fuzz.strict import Headers, values

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x01-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(rb"[A-Za-z0-9.\-]+(:[0-9]{1,5})?|\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_BAD_HOST = re.compile(rb"^$|[\x00-\x20/?#@\x7f-\xff]")
_NEVER_TRAILERS = frozenset(b"content-length transfer-encoding host trailer".split())
_EXTENSION = re.compile(rb"(;[A-Za-z0-9\-]+(=([A-Za-z0-9\-]+|\"[A-Za-z0-9 ]*\"))?)*")

METHODS = frozenset(b"GET HEAD POST PUT DELETE PATCH OPTIONS".split())
"""All others are answered with 501."""

SINGLE = frozenset(
    b"content-type content-location content-range etag max-forwards server user-agent".split()
)
"""Headers that no request repeats; the proxy may take the repetition or refuse it."""

MAX_LINE = 16_000
MAX_FIELDS = 100
MAX_HEAD = 30_000
"""What has less than this is surely within the proxy's limits; what has more is odd."""


class Fate(Enum):
    """What becomes of the next bytes of a connection."""

    REGULAR = "regular"
    REFUSED = "refused"
    ODD = "odd"
    UNFINISHED = "unfinished"
    """More is needed. No engine may get anything of it."""


class Request(NamedTuple):
    """A request as it was read."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    version: bytes

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    def value(self, name: bytes) -> bytes | None:
        found = values(self.headers, name)
        return found[0] if found else None

    @property
    def tokens(self) -> set[bytes]:
        """What ``Connection`` lists."""
        return tokens_of(self.headers)

    @property
    def persists(self) -> bool:
        """Whether the client wants to go on with the connection (RFC 9112, 9.3)."""
        if b"close" in self.tokens:
            return False
        return self.version == b"1.1" or b"keep-alive" in self.tokens


def tokens_of(headers: Headers) -> set[bytes]:
    found = b",".join(values(headers, b"connection")).split(b",")
    return {token.strip().lower() for token in found} - {b""}


class Read(NamedTuple):
    """The next request of a connection, as far as it can be told."""

    fate: Fate
    request: Request | None = None
    """If the head is regular; its body only if the fate is."""
    rest: bytes = b""
    why: str = ""


def read(data: bytes) -> Read:
    """Read the first request of ``data``, which is not empty."""
    # One empty line before a request is skipped (RFC 9112, 2.2); more are refused.
    data = data.removeprefix(b"\r\n")
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return Read(Fate.UNFINISHED, why="no end of the head")
    fate, why, request = _head(data[:end])
    if request is None:
        return Read(fate, why=why)
    rest = data[end + 4 :]
    length = request.value(b"content-length")
    if request.value(b"transfer-encoding") is not None:
        return _chunked(request, rest)
    size = int(length or 0)
    if len(rest) < size:
        return Read(Fate.UNFINISHED, request)
    return Read(Fate.REGULAR, request._replace(body=rest[:size]), rest[size:])


def _head(head: bytes) -> tuple[Fate, str, Request | None]:
    if head.startswith((b"\r\n", b"\n")):
        return Fate.REFUSED, "begins with empty lines", None
    if len(head) > MAX_HEAD:
        return Fate.ODD, "long head", None
    if re.search(rb"(?<!\r)\n", head):
        return Fate.REFUSED, "bare LF", None
    if re.search(rb"\r(?!\n)", head):
        return Fate.REFUSED, "bare CR", None
    if b"\0" in head:
        return Fate.REFUSED, "NUL", None
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_FIELDS or max(map(len, [first, *lines])) > MAX_LINE:
        return Fate.ODD, "many or long headers", None
    headers: Headers = []
    odd = ""
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            return Fate.REFUSED, "obs-fold", None
        name, colon, value = line.partition(b":")
        if not colon or _TOKEN.fullmatch(name) is None:
            return Fate.REFUSED, "not a header", None
        if b"\t" in value and name.lower() == b"transfer-encoding":
            odd = "a tab in what frames the body, which parsers see differently"
        value = value.strip(b" \t")
        if _CONTROL.search(value):
            odd = "control character in a value"
        headers.append((name, value))
    fate, why, parts = _request_line(first)
    if parts is None:
        return fate, why, None
    method, target, version = parts
    fate, why = _framing(headers, version)
    if fate is not Fate.REGULAR:
        return fate, why, None
    odd = odd or _oddity(headers)
    if odd:
        return Fate.ODD, odd, None
    return Fate.REGULAR, "", Request(method, target, headers, b"", version)


def _request_line(line: bytes) -> tuple[Fate, str, tuple[bytes, bytes, bytes] | None]:
    parts = line.split(b" ")
    if len(parts) != 3:
        return Fate.REFUSED, "request line", None
    method, target, version = parts
    if _TOKEN.fullmatch(method) is None:
        return Fate.REFUSED, "method", None
    if method not in METHODS:
        return Fate.REFUSED, "method that is not served", None
    if re.fullmatch(rb"HTTP/1\.[01]", version) is None:
        return Fate.REFUSED, "version", None
    if re.search(rb"[\x00-\x20\x7f-\xff#]", target) or not target:
        return Fate.REFUSED, "byte that no target has", None
    absolute = re.fullmatch(rb"(?i:https?)://[A-Za-z0-9.\-]+(?::[0-9]{1,5})?([/?].*)?", target)
    if absolute is not None:
        target = absolute[1] or b"/"
    if re.fullmatch(rb"/[!$-;=?-Z_a-z~&@]*", target) is None:
        return Fate.ODD, "target that is no plain origin form", None
    return Fate.REGULAR, "", (method, target, version[5:])


def _framing(headers: Headers, version: bytes) -> tuple[Fate, str]:
    hosts = values(headers, b"host")
    if len(hosts) > 1 or (not hosts and version == b"1.1"):
        return Fate.REFUSED, "none or two Host"
    lengths = values(headers, b"content-length")
    codings = values(headers, b"transfer-encoding")
    if len(lengths) > 1:
        return Fate.REFUSED, "two Content-Length"
    if lengths and codings:
        return Fate.REFUSED, "Content-Length and Transfer-Encoding"
    if lengths and re.fullmatch(rb"[0-9]+", lengths[0]) is None:
        return Fate.REFUSED, "Content-Length that is no number"
    if lengths and len(lengths[0]) > 9:
        return Fate.ODD, "Content-Length that is huge"
    if len(codings) > 1:
        return Fate.REFUSED, "two Transfer-Encoding"
    if codings and codings[0].lower() != b"chunked":
        return Fate.REFUSED, "Transfer-Encoding other than chunked"
    if codings and version == b"1.0":
        return Fate.REFUSED, "Transfer-Encoding in HTTP/1.0"
    if hosts and _BAD_HOST.search(hosts[0]):
        return Fate.REFUSED, "Host"
    expectations = values(headers, b"expect")
    if version == b"1.1" and expectations and expectations[0].lower() != b"100-continue":
        return Fate.REFUSED, "expectation"
    return Fate.REGULAR, ""


def _oddity(headers: Headers) -> str:
    hosts = values(headers, b"host")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        return "Host"
    if len(values(headers, b"expect")) > 1:
        return "two expectations"
    if any(len(values(headers, name)) > 1 for name in SINGLE):
        return "repetition of what comes once"
    if tokens_of(headers) & {b"host", b"content-length", b"content-type"}:
        return "Connection lists what must stay"
    if {b"close", b"keep-alive"} <= tokens_of(headers):
        return "Connection says both"
    return ""


def _chunked(request: Request, data: bytes) -> Read:
    """RFC 9112, 7.1."""
    body = b""
    while True:
        line, found, rest = data.partition(b"\r\n")
        if b"\n" in line or b"\r" in line.rstrip(b"\r"):
            return Read(Fate.REFUSED, request, why="line break in a chunk size")
        if not found:
            return _partial_size(request, line)
        digits = re.match(rb"[0-9A-Fa-f]*", line)
        assert digits is not None
        extension = line[digits.end() :]
        if not digits[0] or extension[:1] not in (b"", b";", b" ", b"\t"):
            return Read(Fate.REFUSED, request, why="chunk size")
        if len(digits[0]) > 16:
            return Read(Fate.REFUSED, request, why="chunk size over 64 bits")
        if len(digits[0]) > 8:
            return Read(Fate.ODD, request, why="huge chunk size")
        if len(line) > 200 or _EXTENSION.fullmatch(extension) is None:
            return Read(Fate.ODD, request, why="chunk extension")
        size = int(digits[0], 16)
        if size == 0:
            return _trailers(request._replace(body=body), rest)
        body += rest[:size]
        if len(rest) < size + 2:
            if len(rest) > size and rest[size:] != b"\r":
                return Read(Fate.REFUSED, request, why="no line break after a chunk")
            return Read(Fate.UNFINISHED, request._replace(body=body))
        if rest[size : size + 2] != b"\r\n":
            return Read(Fate.REFUSED, request, why="no line break after a chunk")
        data = rest[size + 2 :]


def _partial_size(request: Request, line: bytes) -> Read:
    if re.fullmatch(rb"[0-9A-Fa-f]{0,8}\r?", line):
        return Read(Fate.UNFINISHED, request)
    return Read(Fate.ODD, request, why="the beginning of a chunk size")


def _trailers(request: Request, data: bytes) -> Read:
    if data.startswith(b"\r\n"):
        return Read(Fate.REGULAR, request, data[2:])
    end = data.find(b"\r\n\r\n")
    if end < 0:
        harmless = re.fullmatch(rb"\r?|([A-Za-z\-]+: ?[a-z0-9]*\r\n)*[A-Za-z\-:a-z0-9 ]*\r?", data)
        return Read(Fate.UNFINISHED if harmless else Fate.ODD, request, why="trailers")
    for line in data[:end].split(b"\r\n"):
        plain = re.fullmatch(rb"([A-Za-z\-]+): ?[a-z0-9]*", line)
        if plain is None or plain[1].lower() in _NEVER_TRAILERS:
            return Read(Fate.ODD, request, why="a trailer")
    return Read(Fate.REGULAR, request, data[end + 4 :])
