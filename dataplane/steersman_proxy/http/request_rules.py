"""The one reading of a request's head, for what is accepted at all (RFC 9112, RFC 9110).

Parsers forgive: a bare LF, a second Content-Length of the same value, a space too many. What one
forgives another reads differently, and where two of them stand behind each other a request can be
hidden in another one's body ("request smuggling"). So a head that has a second reading is refused,
whatever the parser behind this would make of it. Pure functions over bytes; each refusal says which
line is wrong and what it should be.
"""

import re
from typing import NamedTuple

from steersman.errors import (
    ExpectationFailed,
    Fault,
    HeadTooLarge,
    HttpVersionNotSupported,
    InvalidRequest,
    MethodNotImplemented,
    TargetTooLong,
)
from steersman_proxy.http import limits

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
"""Methods that are judged by their route; all others are served nowhere."""

SINGLE = frozenset(
    {
        b"content-length",
        b"content-location",
        b"content-range",
        b"content-type",
        b"etag",
        b"expect",
        b"host",
        b"max-forwards",
        b"server",
        b"transfer-encoding",
        b"user-agent",
    }
)
"""Headers of which a request has one at most, because readers take the first, the last or both."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*+"

_HEAD = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e]++) HTTP/([0-9])\.([0-9])\r\n"
    rb"((?:" + _TOKEN + rb":" + _VALUE + rb"\r\n)*+)\r\n"
)
_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]++) HTTP/[0-9]\.[0-9]")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):" + _VALUE)
_NAME = re.compile(_TOKEN)

_LINE_BEGINNING = re.compile(rb"(?:" + _TOKEN + rb"(?: (?:[\x21-\x7e]++(?: [HTP/0-9.]*+)?)?)?)?\r?")
"""What a request line may look like before it is whole."""
_SOON = 64
"""Bytes within which something else than HTTP shows."""

_STRAY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
"""Bytes that stand in no line of a head: control bytes, LF without CR, CR without LF."""

_AUTHORITY = (
    rb"(?:(?:[A-Za-z0-9._~!$&'()*+,;=\-]|%[0-9A-Fa-f]{2})++|\[[0-9A-Fa-f:.]++\])(?::[0-9]{0,5})?"
)
_HOST = re.compile(_AUTHORITY)
_TARGET = re.compile(rb"/[^#]*+|[Hh][Tt][Tt][Pp][Ss]?://" + _AUTHORITY + rb"(?:[/?][^#]*+)?")
_DIGITS = re.compile(rb"[0-9]+")

_TLS_HANDSHAKE = b"\x16\x03"


class Head(NamedTuple):
    """A head that has one reading."""

    method: str
    target: bytes
    length: int
    """Bytes of the body by Content-Length; 0 without one."""
    chunked: bool


def read_head(data: bytes) -> Head:
    """Judge a whole head, with the empty line that ends it.

    :raises InvalidRequest: if it is to be refused.
    """
    match = _HEAD.fullmatch(data)
    if match is None:
        raise _explained(data)
    method, target, major, minor, block = match.groups()
    if major != b"1" or minor > b"1":
        raise _of_version(method, b"HTTP/%b.%b" % (major, minor))
    name = method.decode()
    if name not in METHODS:
        raise _of_method(name)
    if _TARGET.fullmatch(target) is None and not (target == b"*" and name == "OPTIONS"):
        raise _of_target(target)
    http11 = minor == b"1"
    fields = _fields(block)
    _check_host(fields.get(b"host"), required=http11)
    expected = fields.get(b"expect")
    if http11 and expected is not None and expected.lower() != b"100-continue":
        raise ExpectationFailed(
            f"the header Expect is {_shown(expected)}; the proxy knows 100-continue alone",
            fault=Fault.EXPECTATION,
        )
    length, chunked = _framing(fields, http11=http11)
    return Head(name, target, length, chunked)


def check_beginning(data: bytes, *, seen: int) -> None:
    """Judge a head that is not whole yet, so that what can be no head is not waited for.

    The first ``seen`` bytes were judged before.

    :raises InvalidRequest: if it can become none that is accepted.
    """
    stray = _STRAY.search(data, max(0, seen - 1))
    if stray is not None:
        raise _of_stray(data, stray)
    end = data.find(b"\r\n")
    if end < 0:
        # Only at first: looking at all of a long line with each of its bytes would take seconds.
        if seen < _SOON and _LINE_BEGINNING.fullmatch(data) is None:
            raise _of_line(data.removesuffix(b"\r"))
    elif seen <= end + 1:
        _check_line(data[:end])
    if len(data) > limits.MAX_HEAD:
        raise too_large(data)


def too_large(data: bytes) -> InvalidRequest:
    """The error of a head that is longer than a head may be."""
    most = limits.MAX_HEAD
    if b"\r\n" not in data[:most]:
        return TargetTooLong(f"the request line does not end within {most} bytes", fault=Fault.SIZE)
    return HeadTooLarge(f"the head of the request is over {most} bytes", fault=Fault.SIZE)


def has_stray(data: bytes) -> bool:
    """Whether there is a byte that stands in no line of a head, or a line end that is none."""
    return _STRAY.search(data) is not None


def check_trailer(line: bytes) -> None:
    """Judge one trailer of a chunked body.

    :raises InvalidRequest: if it is not of the form of a header.
    """
    if _FIELD.fullmatch(line) is None:
        raise InvalidRequest(
            f"the body is not framed as HTTP/1.1 says: {_shown(line)} is no trailer",
            fault=Fault.BODY,
        )


def method_and_path(data: bytes) -> tuple[str, str]:
    """What a refused head may be known by in logs; ``-`` for what cannot be read."""
    match = _LINE.match(data)
    if match is None:
        return "-", "-"
    target = match[2].decode()
    # A URL may hold a password.
    return match[1].decode(), target if target.startswith("/") else "-"


# --- headers ----------------------------------------------------------------------------------------


def _fields(block: bytes) -> dict[bytes, bytes]:
    """By their lower-case names; of names that may be repeated the last.

    :raises InvalidRequest: for too many, and for a second one of those that stand alone.
    """
    fields: dict[bytes, bytes] = {}
    lines = block.split(b"\r\n")
    if len(lines) - 1 > limits.MAX_HEADERS:
        raise HeadTooLarge(
            f"the request has {len(lines) - 1} headers; {limits.MAX_HEADERS} are the most",
            fault=Fault.SIZE,
        )
    for number, line in enumerate(lines[:-1], 2):
        name, _, value = line.partition(b":")
        lower = name.lower()
        if lower in SINGLE and lower in fields:
            raise _bad(
                f"line {number} is a second header {_shown(name)}; send one",
                _OWN_FAULT.get(lower, Fault.HEADER),
            )
        # Some readers take a tab beside a coding for a part of its name.
        fields[lower] = value.strip(b" " if lower == b"transfer-encoding" else b" \t")
    return fields


_OWN_FAULT = {
    b"content-length": Fault.LENGTH,
    b"transfer-encoding": Fault.CODING,
    b"host": Fault.HOST,
}


def _check_host(host: bytes | None, *, required: bool) -> None:
    """RFC 9112, 3.2."""
    if host is None:
        if required:
            raise _bad("it has no header Host", Fault.HOST)
    elif _HOST.fullmatch(host) is None:
        raise _bad(
            f"the header Host is {_shown(host)}; it must be a host, or host:port", Fault.HOST
        )


def _framing(fields: dict[bytes, bytes], *, http11: bool) -> tuple[int, bool]:
    """How the body is framed (RFC 9112, 6): its length, and whether it is chunked instead."""
    length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise _bad(
                "it has both Content-Length and Transfer-Encoding; send one of them", Fault.CODING
            )
        if not http11:
            raise _bad("HTTP/1.0 has no Transfer-Encoding; send Content-Length", Fault.CODING)
        if coding.lower() != b"chunked":
            raise _bad(
                f"the header Transfer-Encoding is {_shown(coding)}; the proxy knows chunked alone",
                Fault.CODING,
            )
        return 0, True
    if length is None:
        return 0, False
    if _DIGITS.fullmatch(length) is None:
        raise _bad(
            f"the header Content-Length is {_shown(length)}; it must be one decimal number",
            Fault.LENGTH,
        )
    if len(length) > limits.MAX_LENGTH_DIGITS:
        raise _bad(
            f"the header Content-Length has {len(length)} digits; "
            f"{limits.MAX_LENGTH_DIGITS} are the most",
            Fault.LENGTH,
        )
    return int(length), False


# --- what is wrong ----------------------------------------------------------------------------------


def _explained(data: bytes) -> InvalidRequest:
    """The error of a head that does not have the form of one."""
    stray = _STRAY.search(data)
    if stray is not None:
        return _of_stray(data, stray)
    lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if _LINE.fullmatch(lines[0]) is None:
        return _of_line(lines[0])
    for number, line in enumerate(lines[1:], 2):
        if _FIELD.fullmatch(line) is None:
            return _of_field(number, line)
    return _bad("it cannot be read", Fault.OTHER)


def _check_line(line: bytes) -> None:
    """Judge a whole request line before its headers are here; HTTP/0.9 has none at all."""
    if _LINE.fullmatch(line) is None:
        raise _of_line(line)


def _of_stray(data: bytes, match: re.Match[bytes]) -> InvalidRequest:
    number = data.count(b"\r\n", 0, match.start()) + 1
    fault = Fault.REQUEST_LINE if number == 1 else Fault.HEADER
    if data.startswith(_TLS_HANDSHAKE):
        return _bad("it begins as TLS does, and this port speaks plain http://", Fault.TLS)
    stray = match[0]
    if stray == b"\n":
        return _bad(f"line {number} ends with LF alone; lines end with CR LF", fault)
    if stray == b"\r":
        return _bad(f"line {number} has a CR without LF", fault)
    return _bad(f"line {number} has the control byte 0x{stray[0]:02x}", fault)


def _of_line(line: bytes) -> InvalidRequest:
    fault = Fault.REQUEST_LINE
    if not line:
        return _bad("it begins with empty lines", fault)
    method, _, rest = line.partition(b" ")
    target, gap, version = rest.rpartition(b" ")
    if _NAME.fullmatch(method) is None:
        return _bad(f"its first line begins with {_shown(method)}, which is no method", fault)
    if not gap or not target or not version:
        return _bad(
            f"its first line is {_shown(line)}; it must be a method, a target and HTTP/1.1", fault
        )
    if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", version) is None:
        return _bad(f"its first line ends with {_shown(version)} instead of HTTP/1.1", fault)
    return _of_target(target)


def _of_target(target: bytes) -> InvalidRequest:
    fault = Fault.REQUEST_LINE
    if b" " in target:
        return _bad("the first line has a space too many; one in a target is written %20", fault)
    if any(byte > 0x7E for byte in target):
        return _bad(f"the target {_shown(target)} has bytes that must be percent-encoded", fault)
    if b"#" in target:
        return _bad(f"the target {_shown(target)} has a fragment (#), which is never sent", fault)
    return _bad(
        f"the target {_shown(target)} is neither a path (/...) nor a URL (http://host/...)", fault
    )


def _of_method(name: str) -> InvalidRequest:
    hint = ""
    if name.upper() in METHODS:
        hint = f"; did you mean {name.upper()}?"
    elif name == "CONNECT":
        hint = ": it opens no tunnels; take its host out of the client's proxy settings"
    return MethodNotImplemented(
        f"the proxy serves no method {name[:40]!a}{hint}", fault=Fault.METHOD
    )


def _of_version(method: bytes, version: bytes) -> InvalidRequest:
    if method == b"PRI":
        text = "this is the preface of HTTP/2; the proxy speaks HTTP/1.1 alone"
    else:
        text = f"the request is {version.decode()}; the proxy speaks HTTP/1.1 and HTTP/1.0"
    return HttpVersionNotSupported(text, fault=Fault.VERSION)


def _of_field(number: int, line: bytes) -> InvalidRequest:
    fault = Fault.HEADER
    name, colon, _ = line.partition(b":")
    if line[:1] in (b" ", b"\t"):
        return _bad(f"line {number} begins with a space; a header stands in one line", fault)
    if not colon:
        return _bad(f"line {number} has no colon; it is no header", fault)
    if name.rstrip(b" \t") != name:
        return _bad(f"line {number} has a space before its colon ({_shown(name)})", fault)
    return _bad(f"line {number}: {_shown(name)} is no name of a header", fault)


def _bad(text: str, fault: Fault) -> InvalidRequest:
    return InvalidRequest(f"this is not an HTTP/1.1 request: {text}", fault=fault)


def _shown(text: bytes) -> str:
    """For a message: quoted, on one line, and not long."""
    shown = text if len(text) <= 60 else text[:60] + b"..."
    return repr(shown)[1:]
