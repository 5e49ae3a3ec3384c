"""The one form of a request's head that the splice adapter reads; and that head as an engine gets it.

A head is *regular* if every reader of HTTP/1.1 understands it in the same way: the grammar of RFC
9112 without its leniencies, and without what needs more than passing bytes on. All others are for
the aiohttp adapter to judge. Clients of the field (openai, httpx, aiohttp, requests, curl, Go, Node)
write regular heads.
"""

import re
from collections.abc import Sequence
from typing import Any

from steersman_proxy.exchange.messages import HeadEdit, Header, RequestHead
from steersman_proxy.http import limits
from steersman_proxy.http.endpoint import BaseUrl
from steersman_proxy.http.headers import METHODS_WITH_BODY, NEVER_SENT, check_headers
from steersman_proxy.http.lines import (
    DROPPED,
    EACH_ITS_OWN,
    HEADER_LINE,
    PASSES,
    SAFE_VALUE,
    Field,
    KnownLines,
)
from steersman_proxy.http.request_rules import SINGLE
from steersman_proxy.http.shapes import Shapes

_REQUEST_LINE = re.compile(
    rb"(POST|GET|PUT|HEAD|OPTIONS|DELETE|PATCH) (/[\x21\x22\x24-\x7e]*) HTTP/1\.1"
)

# Each of these asks for something that a reader of bytes does not do, or is read in two ways.
_IRREGULAR = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"http2-settings"})

# Of these only the usual values are regular; in lower case.
_VALUES = {
    b"host": re.compile(rb"[0-9a-z.\-_~]+(?::[0-9]{1,5})?|\[[0-9a-f:.]+\](?::[0-9]{1,5})?"),
    b"content-length": re.compile(rb"[0-9]{1,18}"),
    b"connection": re.compile(rb"keep-alive|close"),
}

_ALONE = SINGLE | {b"connection"}
"""Headers of which a regular head has one at most."""

_MOST_REQUEST_LINES = 4096
"""Request lines that are remembered at most; then all are forgotten."""

_LONGEST = 512
"""Bytes of a request line that is remembered."""

_request_lines: dict[bytes, tuple[str, str, str]] = {}
"""Method, target and path."""

_CLOSE = frozenset({b"close"})


class RegularHead(RequestHead):
    """A regular head, with the lines that it consists of."""

    __slots__ = (
        "_fields",
        "_lines",
        "body_length",
        "first_line",
        "keep_alive",
        "shape",
        "values",
    )

    def __init__(
        self,
        first_line: bytes,
        line: tuple[str, str, str],
        *,
        lines: Sequence[bytes],
        fields: Sequence[Field],
        raw: dict[bytes, bytes],
    ) -> None:
        self.first_line = first_line
        self.method, self.target, self.path = line
        self.raw = raw
        self.repeats = len(raw) != len(lines)
        self._pairs = None
        self._lines = lines
        self._fields = fields
        self.length = self.body_length = int(raw.get(b"content-length", b"0"))
        connection = raw.get(b"connection")
        self.keep_alive = connection is None or connection.lower() != b"close"
        """Whether the client means to use the connection again."""
        self.shape: Shape | None = None
        """What is known of all heads like this one, if anything is."""
        self.values: Sequence[bytes] = ()
        """Of the lines that differ within the shape, in their order."""

    def forget_lines(self) -> None:
        """The engine has answered, so that the head will not be sent again. Its id is kept, for what
        is told of the request afterwards.
        """
        given = self.raw.get(b"x-request-id")
        self.raw = {} if given is None else {b"x-request-id": given}
        self._pairs = []
        self._lines = self._fields = ()

    def _split(self) -> list[Header]:
        pairs = [line.partition(b": ") for line in self._lines]
        return [(name, value) for name, _, value in pairs]

    def passing(self, remove: frozenset[bytes]) -> list[bool]:
        """Of each line whether it passes the proxy, if none of the names in ``remove`` does."""
        return [bool(fate) and name not in remove for name, _, fate in self._fields]

    def begun(self, base: BaseUrl, remove: frozenset[bytes]) -> list[bytes]:
        """The first line for an engine, its Host, and the client's lines that pass.

        :raises ValueError: if ``base`` has what cannot stand in a head.
        """
        first = base.request_line(self.method, self.target) if base.path else self.first_line
        fields = zip(self._lines, self._fields, strict=True)
        if remove:
            kept = [line for line, field in fields if field[2] and field[0] not in remove]
        else:
            kept = [line for line, field in fields if field[2]]
        return [first, base.host_line, *kept]

    def spliced(self, *, base: BaseUrl, body_length: int, edit: HeadEdit) -> bytes:
        """The head for an engine: the client's lines, but for those that do not pass the proxy.

        The same bytes as :func:`~steersman_proxy.http.headers.request_headers` makes, since the
        lines are of the form that it writes.

        :raises ValueError: if ``base`` or ``edit`` has what cannot stand in a head.
        """
        remove = edit.remove if self.keep_alive else edit.remove | _CLOSE
        lines = self.begun(base, remove)
        if edit.add:
            lines += [b"%b: %b" % header for header in edit.add]
        if body_length or self.method in METHODS_WITH_BODY:
            lines.append(b"Content-Length: %d" % body_length)
        lines += (b"", b"")
        made = b"\r\n".join(lines)
        breaks = len(lines) - 1
        if made.count(b"\r") != breaks or made.count(b"\n") != breaks or b"\0" in made:
            check_headers(edit.add)
        return made


class Shape:
    """What all regular heads say that are alike but for some values; one of those is the length."""

    __slots__ = ("keep_alive", "length_at", "method", "names", "parts")

    def __init__(self, head: RegularHead, parts: Sequence[bytes]) -> None:
        self.parts = tuple(parts)
        """Of the head that it was learnt from; see :class:`~steersman_proxy.http.shapes.Shapes`."""
        self.names = [name.lower() for name in parts[1::3]]
        """Of the lines that differ, in lower case and in their order."""
        self.length_at = self.names.index(b"content-length")
        """Which of them is the length of the body."""
        self.method, self.keep_alive = head.method, head.keep_alive


class ShapedHead(RegularHead):
    """A head of a known shape. What the shape does not tell is read when it is asked for."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes, shape: Shape, values: Sequence[bytes], length: int) -> None:
        self._text = text
        self.shape = shape
        self.values = values
        self.length = self.body_length = length
        self.method, self.keep_alive = shape.method, shape.keep_alive

    def __getattr__(self, name: str) -> Any:
        # Of a slot that was not filled yet; all of them are after that.
        head = _read(self._text)
        assert head is not None, "heads of one shape are all regular, or none is"
        for slot in _READ:
            setattr(self, slot, getattr(head, slot))
        return object.__getattribute__(self, name)

    def forget_lines(self) -> None:
        if self._text:
            _ = self.raw
            self._text = b""
        super().forget_lines()


_READ = {*RequestHead.__slots__, *RegularHead.__slots__} - {"shape", "values"}


def regular_head(data: bytes, end: int) -> RegularHead | None:
    """The head in ``data[:end]``, without the two line ends behind it; ``None`` if irregular."""
    text = data[:end]
    parts = _shapes.parts(text)
    shape = _shapes.get(parts)
    if shape is not None:
        values = parts[2::3]
        length = values[shape.length_at]
        if length.isdigit() and len(length) <= 18:
            return ShapedHead(text, shape, values, int(length))
    head = _read(text)
    if shape is not None or head is None or head.repeats or not _shapes.comes_again(parts):
        return head
    if b"content-length" in [name.lower() for name in parts[1::3]]:
        _shapes.learn(parts, Shape(head, parts))
    return head


def _read(text: bytes) -> RegularHead | None:
    """The head, line by line."""
    first, _, rest = text.partition(b"\r\n")
    line = _request_lines.get(first) or _learn_request_line(first)
    if line is None:
        return None
    lines = rest.split(b"\r\n")
    fields = _known.fields(lines)
    if fields is None:
        return None
    raw = {name: value for name, value, _ in fields}
    if len(raw) != len(fields):
        names = [name for name, _, _ in fields]
        if any(name in _ALONE and names.count(name) > 1 for name in raw):
            return None
        raw = {name: value for name, value, _ in reversed(fields)}
    if b"host" not in raw or len(fields) > limits.MAX_HEADERS:
        return None
    return RegularHead(first, line, lines=lines, fields=fields, raw=raw)


def _match(line: bytes) -> Field | None:
    match = HEADER_LINE.fullmatch(line)
    if match is None:
        return None
    name, value = match[1].lower(), match[2]
    values = _VALUES.get(name)
    if name in _IRREGULAR or (values is not None and values.fullmatch(value.lower()) is None):
        return None
    return name, value, DROPPED if name in NEVER_SENT else PASSES


_known = KnownLines(
    _match,
    fates={
        b"traceparent": PASSES,
        b"x-correlation-id": PASSES,
        b"x-request-id": PASSES,
        b"x-session-id": PASSES,
        b"x-smg-routing-key": PASSES,
    },
)


def _learn_request_line(line: bytes) -> tuple[str, str, str] | None:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return None
    target = match[2].decode()
    parts = (match[1].decode(), target, target.partition("?")[0])
    if len(line) <= _LONGEST:
        if len(_request_lines) >= _MOST_REQUEST_LINES:
            _request_lines.clear()
        _request_lines[line] = parts
    return parts


_shapes = Shapes[Shape]((*EACH_ITS_OWN, b"Content-Length", b"content-length"), value=SAFE_VALUE)


def may_become_regular(data: bytes) -> bool:
    """Whether the beginning of a head, not whole yet, may still turn out to be regular.

    Without this, one that ends its lines by LF alone would be waited for until its time is up.
    """
    if data.count(b"\n") != data.count(b"\r\n"):
        return False
    line, newline, _ = data.partition(b"\r\n")
    if newline:
        return _REQUEST_LINE.fullmatch(line) is not None
    return _BEGINNING.fullmatch(line.removesuffix(b"\r")) is not None


_BEGINNING = re.compile(
    rb"[A-Z]{0,7}|[A-Z]{3,7} (?:/[\x21\x22\x24-\x7e]*(?: (?:H|HT|HTT|HTTP|HTTP/|HTTP/1|HTTP/1\.|"
    rb"HTTP/1\.1)?)?)?"
)
"""What the first line of a regular head may look like while it is not whole."""
