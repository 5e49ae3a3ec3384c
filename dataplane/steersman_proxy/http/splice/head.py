"""The one form of a request's head that the splice adapter reads; and that head as an engine gets it.

A head is *regular* if every reader of HTTP/1.1 understands it in the same way: the grammar of RFC
9112 without its leniencies, and without what needs more than passing bytes on. All others are for
aiohttp's parser to judge. Clients of the field (openai, httpx, aiohttp, requests, curl, Go, Node)
write regular heads.
"""

import re
from collections.abc import Sequence
from itertools import compress

from steersman_proxy.exchange.messages import HeadEdit, RequestHead
from steersman_proxy.http.endpoint import BaseUrl
from steersman_proxy.http.headers import METHODS_WITH_BODY, NEVER_SENT, check_headers

MAX_HEADERS = 256

_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"

# Begins and ends with something visible, so that nothing has to be trimmed.
_VALUE = rb"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?"

_REGULAR = re.compile(
    rb"(POST|GET|PUT|HEAD|OPTIONS|DELETE|PATCH) (/[\x21\x22\x24-\x7e]*) HTTP/1\.1\r\n"
    rb"((?:" + _NAME + rb": " + _VALUE + rb"\r\n)+)\r\n"
)

_HEADER = re.compile(rb"([^:]+): ([^\r]+)\r\n")
"""One header of a head that is known to be regular."""

_BEGINNING = re.compile(rb"(?:[A-Z]{0,7}|[A-Z]{3,7} (?:/[\x21\x22\x24-\x7e]*(?: [HTP/1.\r\n]*)?)?)")
"""What the first line of a regular head may look like while it is not whole."""

_HOST = re.compile(rb"[0-9A-Za-z.\-_~]+(?::[0-9]{0,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{0,5})?")

_LENGTH = re.compile(rb"[0-9]{1,18}")

# Each of these asks for something that a reader of bytes does not do, or is read in two ways.
_IRREGULAR = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"http2-settings"})

_ALONE = (b"host", b"content-length", b"connection")
"""Headers of which a regular head has one at most."""


class RegularHead:
    """A regular head: what the exchange asks for, and the lines that it consists of."""

    __slots__ = ("_lines", "_listed", "_names", "keep_alive", "length", "request")

    def __init__(
        self,
        request: RequestHead,
        *,
        lines: Sequence[bytes],
        names: Sequence[bytes],
        length: int,
        keep_alive: bool,
    ) -> None:
        self.request = request
        self._lines = lines
        self._names = names
        self.length = length
        """Bytes of the body that follows."""
        self.keep_alive = keep_alive
        """Whether the client means to use the connection again."""

    def spliced(self, *, base: BaseUrl, body_length: int, edit: HeadEdit) -> bytes:
        """The head for an engine: the client's lines, but for those that do not pass the proxy.

        The same bytes as :func:`~steersman_proxy.http.headers.request_headers` makes, since the
        lines are of the form that it writes.

        :raises InvalidHeader: if ``edit`` adds what cannot stand in a head.
        """
        request = self.request
        remove = NEVER_SENT | edit.remove
        if not self.keep_alive:
            remove |= {b"close"}
        lines = [
            b"%b %b%b HTTP/1.1\r\nHost: %b"
            % (request.method.encode(), base.path.encode(), request.target.encode(), base.authority)
        ]
        lines += compress(self._lines, [name not in remove for name in self._names])
        if edit.add:
            check_headers(edit.add)
            lines += [b"%b: %b" % header for header in edit.add]
        if body_length or request.method in METHODS_WITH_BODY:
            lines.append(b"Content-Length: %d" % body_length)
        lines += (b"", b"")
        return b"\r\n".join(lines)


def regular_head(data: bytes, end: int) -> RegularHead | None:
    """The head in ``data[:end]``, whose last four bytes are an empty line's; ``None`` if irregular."""
    match = _REGULAR.fullmatch(data, 0, end)
    if match is None:
        return None
    method, target, block = match.groups()
    headers = _HEADER.findall(block)
    names = [name.lower() for name, _ in headers]
    request = RequestHead(method.decode(), target.decode(), headers, names)
    if len(names) > MAX_HEADERS or not _IRREGULAR.isdisjoint(names):
        return None
    first = request.raw
    if len(first) != len(names) and any(names.count(name) > 1 for name in _ALONE):
        return None
    if _HOST.fullmatch(first.get(b"host", b"")) is None:
        return None
    length = first.get(b"content-length", b"0")
    if _LENGTH.fullmatch(length) is None:
        return None
    keep_alive = True
    connection = first.get(b"connection")
    if connection is not None and connection != b"keep-alive":
        connection = connection.lower()
        if connection not in (b"keep-alive", b"close"):
            return None
        keep_alive = connection != b"close"
    return RegularHead(
        request,
        lines=block.split(b"\r\n"),
        names=names,
        length=int(length),
        keep_alive=keep_alive,
    )


def may_become_regular(data: bytes) -> bool:
    """Whether the beginning of a head, not whole yet, may still turn out to be regular.

    Without this, one that ends its lines by LF alone would be waited for until its time is up.
    """
    line, newline, _ = data.partition(b"\r\n")
    if data.count(b"\n") != data.count(b"\r\n"):
        return False
    if newline:
        return line.endswith(b" HTTP/1.1")
    return _BEGINNING.fullmatch(line.removesuffix(b"\r")) is not None
