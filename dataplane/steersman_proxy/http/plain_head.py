"""The head of an engine's answer in its usual form: whole, in one read, with Content-Length.

What has this form has one reading. All else is for the parser.
"""

import re
from collections.abc import Sequence
from typing import Any

from steersman_proxy.http.headers import HOP_BY_HOP
from steersman_proxy.http.lines import (
    DROPPED,
    EACH_ITS_OWN,
    HEADER_LINE,
    LENGTH,
    PASSES,
    SPECIAL,
    Field,
    KnownLines,
)
from steersman_proxy.http.shapes import KeptLines, Shapes

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) ([\t\x20-\x7e\x80-\xff]*)")

# Each of these changes where the answer ends, or whom its headers are for; `Connection: close` lists
# one that is called so.
_UNUSUAL = frozenset({b"close", b"transfer-encoding", b"upgrade", b"trailer", b"proxy-connection"})

_VALUES = {
    b"content-length": re.compile(rb"[0-9]{1,18}"),
    b"connection": re.compile(rb"(?i:keep-alive|close)"),
}

_JSON = frozenset(
    {
        b"application/json",
        b"application/json; charset=utf-8",
        b"application/json;charset=utf-8",
    }
)

_CORS = b"access-control-"

# Headers that the proxy sets itself, or that say how to read the body.
_SPECIAL = frozenset(
    {
        b"content-encoding",
        b"x-request-id",
        b"x-smg-mixed-version",
        b"x-smg-routed-worker-id",
        b"x-smg-weight-version",
    }
)

_WITHOUT_BODY = frozenset({204, 304})

_MOST_STATUS_LINES = 256


class PlainHead:
    """A head as its lines."""

    __slots__ = (
        "_fields",
        "_lines",
        "by_name",
        "json",
        "keep_alive",
        "length",
        "reason",
        "special",
        "status",
        "status_line",
    )

    def __init__(
        self,
        status_line: bytes,
        status: tuple[int, bytes],
        *,
        lines: Sequence[bytes],
        fields: Sequence[Field],
        by_name: dict[bytes, bytes],
    ) -> None:
        self.status_line = status_line
        self.status, self.reason = status
        self._lines = lines
        self._fields = fields
        self.by_name = by_name
        """Values by lower-case name, joined where a name is repeated."""
        self.length = int(by_name[b"content-length"])
        """Bytes of the body."""
        connection = by_name.get(b"connection")
        self.keep_alive = connection is None or connection.lower() != b"close"
        self.special = SPECIAL in [field[2] for field in fields]
        """Whether there is a header that the proxy sets itself, or that says how to read the body."""
        self.json = by_name.get(b"content-type") in _JSON
        """Whether the body is a JSON document."""

    def kept(self) -> list[bytes]:
        """The status line and the lines that pass the proxy, without the one of the length, in pieces
        to be joined; each line with its end.
        """
        fields = zip(self._lines, self._fields, strict=True)
        kept = [line for line, field in fields if field[2] == PASSES]
        return [b"\r\n".join((self.status_line, *kept, b""))]

    @property
    def repeats(self) -> bool:
        """Whether a header stands there more than once."""
        return len(self.by_name) != len(self._fields)

    def fates(self, fate: int) -> list[bool]:
        """Of each line whether that becomes of it."""
        return [field[2] == fate for field in self._fields]

    def passing(self, remove: frozenset[bytes]) -> list[bytes]:
        """The lines that pass the proxy, without those of the lower-case names in ``remove``."""
        return [
            line
            for line, (name, _, fate) in zip(self._lines, self._fields, strict=True)
            if fate and name not in remove
        ]

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """All headers in order, names as they came."""
        parts = [line.partition(b": ") for line in self._lines]
        return [(name, value) for name, _, value in parts]


class Shape:
    """What all plain heads say that are alike but for some values; one of those is the length."""

    __slots__ = (
        "begin",
        "json",
        "keep_alive",
        "length_at",
        "lines",
        "reason",
        "special",
        "status",
    )

    def __init__(self, head: PlainHead, parts: Sequence[bytes]) -> None:
        self.status, self.reason = head.status, head.reason
        self.begin = head.status_line + b"\r\n"
        self.keep_alive = head.keep_alive
        self.json = head.json
        self.special = head.special
        self.length_at = [name.lower() for name in parts[1::3]].index(b"content-length")
        """Which of the values that differ is the length."""
        self.lines = KeptLines(parts, head.fates(PASSES))


class ShapedHead(PlainHead):
    """A head of a known shape. What the shape does not tell is read when it is asked for."""

    __slots__ = ("_shape", "_text", "_values")

    def __init__(self, text: bytes, shape: Shape, values: Sequence[bytes], length: int) -> None:
        self._text = text
        self._shape = shape
        self._values = values
        self.status, self.reason = shape.status, shape.reason
        self.length = length
        self.keep_alive = shape.keep_alive
        self.json = shape.json
        self.special = shape.special

    def kept(self) -> list[bytes]:
        return [self._shape.begin, *self._shape.lines.fill(self._values)]

    def __getattr__(self, name: str) -> Any:
        # Of a slot that was not filled yet; all of them are after that.
        head = _read(self._text)
        assert head is not None, "heads of one shape are all plain, or none is"
        for slot in PlainHead.__slots__:
            setattr(self, slot, getattr(head, slot))
        return object.__getattribute__(self, name)


def plain_head(data: bytes, end: int) -> PlainHead | None:
    """The head in ``data[:end]``, without the two line ends behind it; ``None`` if unusual.

    The answer must not be one to HEAD.
    """
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


def _read(text: bytes) -> PlainHead | None:
    """The head, line by line."""
    first, _, rest = text.partition(b"\r\n")
    status = _status_lines.get(first) or _learn_status(first)
    if status is None:
        return None
    lines = rest.split(b"\r\n")
    fields = _known.fields(lines)
    if fields is None:
        return None
    by_name = {name: value for name, value, _ in fields}
    if b"content-length" not in by_name:
        return None
    if len(by_name) != len(fields):
        by_name = {}
        for name, value, _ in fields:
            if name in by_name:
                if name in _VALUES:
                    return None
                value = by_name[name] + b", " + value
            by_name[name] = value
    return PlainHead(first, status, lines=lines, fields=fields, by_name=by_name)


def _match(line: bytes) -> Field | None:
    match = HEADER_LINE.fullmatch(line)
    if match is None:
        return None
    name, value = match[1].lower(), match[2]
    values = _VALUES.get(name)
    if name in _UNUSUAL or (values is not None and values.fullmatch(value) is None):
        return None
    return name, value, _fate(name)


def _fate(name: bytes) -> int:
    if name in HOP_BY_HOP:
        return DROPPED
    if name == b"content-length":
        return LENGTH
    return SPECIAL if name in _SPECIAL or name.startswith(_CORS) else PASSES


_shapes = Shapes[Shape](
    (*EACH_ITS_OWN, b"Content-Length", b"content-length", b"Date", b"date"),
    value=rb"[0-9A-Za-z\-_.:/](?:[0-9A-Za-z\-_.:/, ]*[0-9A-Za-z\-_.:/])?",
)
_known = KnownLines(_match, fates={b"x-request-id": SPECIAL})
_status_lines: dict[bytes, tuple[int, bytes]] = {}


def _learn_status(line: bytes) -> tuple[int, bytes] | None:
    match = _STATUS_LINE.fullmatch(line)
    if match is None or int(match[1]) in _WITHOUT_BODY:
        return None
    status = int(match[1]), match[2]
    if len(_status_lines) < _MOST_STATUS_LINES:
        _status_lines[line] = status
    return status
