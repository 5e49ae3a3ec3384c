"""Where a client's requests begin and end, found before any parser sees them.

A strict gate: bytes are passed on only once it is clear what they are, one request at a time. So a
request that is refused takes none of those before it along, and nothing of it reaches a parser that
might be more generous. Without I/O.
"""

import re
from enum import Enum, auto

from steersman.errors import Fault, InvalidRequest
from steersman_proxy.http import limits
from steersman_proxy.http.request_rules import (
    Head,
    check_beginning,
    check_trailer,
    has_stray,
    read_head,
    too_large,
)

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*+)?\r\n")
_CHUNK_LINE_BEGINNING = re.compile(rb"[0-9A-Fa-f]{1,15}(?:;[\t\x20-\x7e\x80-\xff]*+)?\r?")


_MEANS_NOTHING = re.compile(rb"(?<=\r\n)(?:proxy-connection|upgrade):[^\r]*\r\n", re.IGNORECASE)
"""Headers that end at the proxy without an effect, but that parsers make something of: they take
Proxy-Connection for Connection (RFC 9112, C.2.2), and wait for another protocol after Upgrade."""


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    """Within a body whose length is known."""
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    """At the line end after a chunk's bytes."""
    TRAILERS = auto()
    ENDED = auto()
    """The request is whole; what comes now belongs to later ones."""


class RequestFraming:
    """Of one connection.

    After :meth:`receive`, call :meth:`take` until it returns nothing. Once ``ended``, call
    :meth:`following` to go on with the next request. An error ends it all: there is no telling where
    the next request would begin.
    """

    __slots__ = ("_buffer", "_chunk", "_left", "_seen", "_skipped", "_state", "head")

    def __init__(self) -> None:
        self._buffer = b""
        self._state = _State.HEAD
        self._seen = 0
        """Bytes of the buffer that were looked at before: of a head, or of the trailers so far."""
        self._left = 0
        """Bytes of the body, or of the chunk, that are still to come."""
        self._chunk = 0
        """Number of the chunk, from 1."""
        self._skipped = False
        self.head: Head | None = None
        """The head of the request that was begun last."""

    @property
    def ended(self) -> bool:
        """Whether the request is whole, and taken."""
        return self._state is _State.ENDED

    @property
    def in_head(self) -> bool:
        """Whether a head has begun and is not whole."""
        return self._state is _State.HEAD and bool(self._buffer)

    @property
    def at_head(self) -> bool:
        """Whether the next bytes begin, or continue, a head."""
        return self._state is _State.HEAD

    @property
    def waiting(self) -> bytes:
        """What has come and was not taken."""
        return self._buffer

    def receive(self, data: bytes) -> None:
        """More bytes have come."""
        self._buffer = self._buffer + data if self._buffer else data

    def following(self) -> None:
        """Go on with the next request."""
        assert self._state is _State.ENDED, "the request is not whole"
        self._state = _State.HEAD
        self._seen = 0
        self._skipped = False

    def take(self) -> bytes:
        """The next bytes to pass on: a whole head, or a part of its body. Empty if there are none.

        Trailers are left out: parsers mix them up with headers. So are :data:`_MEANS_NOTHING`.

        :raises InvalidRequest: if what came is to be refused.
        """
        if not self._buffer:
            return b""
        match self._state:
            case _State.HEAD:
                return self._take_head()
            case _State.LENGTH:
                return self._take_length()
            case _State.ENDED:
                return b""
            case _:
                return self._take_chunks()

    def _take_head(self) -> bytes:
        # An empty line before a request is forgiven, once (RFC 9112, 2.2): some clients end a body
        # with one that they do not count.
        if not self._skipped:
            if self._buffer.startswith(b"\r\n"):
                self._buffer = self._buffer[2:]
                self._skipped = True
            if self._buffer in (b"", b"\r"):
                return b""
        data, seen = self._buffer, self._seen
        end = data.find(b"\r\n\r\n", max(0, seen - 3)) + 4
        if end < 4:
            check_beginning(data, seen=seen)
            self._seen = len(data)
            return b""
        if end > limits.MAX_HEAD:
            raise too_large(data)
        taken = data[:end]
        self.head = head = read_head(taken)
        self._buffer = data[end:]
        self._seen = 0
        self._left = head.length
        if head.chunked:
            self._state, self._chunk = _State.CHUNK_LINE, 1
        else:
            self._state = _State.LENGTH if head.length else _State.ENDED
        return _MEANS_NOTHING.sub(b"", taken)

    def _take_length(self) -> bytes:
        data, left = self._buffer, self._left
        if len(data) > left:
            data, self._buffer = data[:left], data[left:]
        else:
            self._buffer = b""
        self._left = left - len(data)
        if not self._left:
            self._state = _State.ENDED
        return data

    def _take_chunks(self) -> bytes:
        """As many chunks as there are, framing included, in one piece."""
        data, size, at = self._buffer, len(self._buffer), 0
        while at < size:
            if self._state is _State.CHUNK:
                step = min(self._left, size - at)
                at += step
                self._left -= step
                if not self._left:
                    self._state = _State.CHUNK_END
            elif self._state is _State.CHUNK_END:
                end = data[at : at + 2]
                if end == b"\r":
                    break
                if end != b"\r\n":
                    raise _bad(f"chunk {self._chunk} does not end where its size says")
                at += 2
                self._chunk += 1
                self._state = _State.CHUNK_LINE
            elif self._state is _State.CHUNK_LINE:
                after = self._read_chunk_line(data, at)
                if not after:
                    break
                at = after
            else:
                break
        self._buffer = data[at:]
        if self._state is not _State.TRAILERS:
            return data[:at]
        return data[:at] + self._drop_trailers()

    def _read_chunk_line(self, data: bytes, at: int) -> int:
        """Where the line that begins at ``at`` ends; 0 if it is not whole."""
        match = _CHUNK_LINE.match(data, at, at + limits.MAX_CHUNK_LINE)
        if match is None:
            line = data[at : at + limits.MAX_CHUNK_LINE]
            if len(line) == limits.MAX_CHUNK_LINE:
                raise _bad(f"the line before chunk {self._chunk} is too long")
            if _CHUNK_LINE_BEGINNING.fullmatch(line) is None:
                raise _bad(f"the line before chunk {self._chunk} does not tell a size as it should")
            return 0
        self._left = int(match[1], 16)
        self._state = _State.CHUNK if self._left else _State.TRAILERS
        return match.end()

    def _drop_trailers(self) -> bytes:
        """The empty line that ends the body, once it is here; ``_seen`` counts what was dropped."""
        data, at = self._buffer, 0
        while True:
            end = data.find(b"\r\n", at)
            size = (len(data) if end < 0 else end) - at
            if self._seen + size > limits.MAX_TRAILERS:
                raise _bad(f"its trailers are over {limits.MAX_TRAILERS} bytes")
            if end < 0:
                break
            if end == at:
                self._buffer = data[end + 2 :]
                self._state = _State.ENDED
                self._seen = 0
                return b"\r\n"
            check_trailer(data[at:end])
            self._seen += size + 2
            at = end + 2
        self._buffer = data[at:]
        if has_stray(self._buffer):
            raise _bad("a trailer does not end with CR LF, or has a control byte")
        return b""


def _bad(text: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not framed as HTTP/1.1 says: {text}", fault=Fault.BODY)
