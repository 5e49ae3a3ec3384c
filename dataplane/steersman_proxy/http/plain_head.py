"""The head of an engine's answer in its usual form: whole, in one read, with Content-Length.

What has this form has one reading. All else is for the parser.
"""

import re
from collections.abc import Sequence

from steersman_proxy.http.headers import HOP_BY_HOP
from steersman_proxy.http.lines import (
    DROPPED,
    HEADER_LINE,
    LENGTH,
    PASSES,
    SPECIAL,
    Field,
    KnownLines,
)

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
        "keep_alive",
        "length",
        "reason",
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

    @property
    def special(self) -> bool:
        """Whether there is a header that the proxy sets itself, or that says how to read the body."""
        return SPECIAL in [field[2] for field in self._fields]

    @property
    def json(self) -> bool:
        """Whether the body is a JSON document."""
        return self.by_name.get(b"content-type") in _JSON

    @property
    def kept(self) -> list[bytes]:
        """The lines that pass the proxy, without the one of the length."""
        return [
            line
            for line, field in zip(self._lines, self._fields, strict=True)
            if field[2] == PASSES
        ]

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


def plain_head(data: bytes, end: int) -> PlainHead | None:
    """The head in ``data[:end]``, without the two line ends behind it; ``None`` if unusual.

    The answer must not be one to HEAD.
    """
    first, _, rest = data[:end].partition(b"\r\n")
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
