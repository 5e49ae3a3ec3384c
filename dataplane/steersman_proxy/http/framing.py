"""De-framing of one HTTP/1 answer, without I/O.

httptools (llhttp, strict) finds where things end. What it leaves to its caller is decided here:
which framing is believed at all, which answers have no body, and what counts as surplus.
"""

import re
from enum import Enum, auto

from httptools import HttpParserError, HttpResponseParser

from steersman_proxy.exchange.messages import Header
from steersman_proxy.http.headers import connection_tokens
from steersman_proxy.http.plain_head import PlainHead, plain_head

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


CHUNK = re.compile(rb"0*([1-9A-Fa-f][0-9A-Fa-f]{0,5})\r\n")
"""The beginning of a chunk with data in it: its size, without extensions."""


def whole_chunks(data: bytes) -> int:
    """The size of the data if the bytes are whole chunks with data in them, and nothing else; or 0.

    Skipping them leaves a parser that stands between two chunks where it would stand after them. A
    busy proxy finds several in one read, and must not then begin to read each.
    """
    end = size = 0
    while end < len(data):
        match = CHUNK.match(data, end)
        if match is None:
            return 0
        length = int(match[1], 16)
        end = match.end() + length + 2
        if data[end - 2 : end] != b"\r\n":
            return 0
        size += length
    return size


class InvalidAnswer(Exception):
    """What came is not an HTTP/1 answer, or one whose end two readers could see differently."""


class _Body(Enum):
    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_EOF = auto()


# Looked up once: a member of an enum costs 70 ns each time in Python 3.11.
_NONE, _LENGTH = _Body.NONE, _Body.LENGTH


class AnswerFraming:
    """Takes the bytes of a connection and gives the head and the body of one final answer.

    Interim answers (1xx) are skipped. Body bytes collect in :attr:`parts` until they are taken;
    they are as the engine sent them, without chunk framing and still in their content encoding.
    One instance serves one answer.
    """

    __slots__ = (
        "_body",
        "_fed",
        "_headers",
        "_left",
        "_max_head_bytes",
        "_method",
        "_parser",
        "between_chunks",
        "complete",
        "content_length",
        "head_done",
        "keep_alive",
        "parts",
        "plain",
        "reason",
        "size",
        "status",
        "surplus",
    )

    def __init__(self, *, method: str, max_head_bytes: int) -> None:
        self._method = method
        self._max_head_bytes = max_head_bytes
        self._parser: HttpResponseParser | None = None
        self._fed = 0
        self._left = 0
        """Bytes of the body of a plain answer that are still to come."""
        self._body = _NONE
        self.status = 0
        self.reason = b""
        self._headers: list[Header] = []
        self.plain: PlainHead | None = None
        """The head as lines, if it has the usual form."""
        self.content_length: int | None = None
        """Bytes of the body, if the head tells. After HEAD and in a 304: of the body that is not here."""
        self.head_done = False
        """Whether the head of the final answer is known."""
        self.complete = False
        """Whether the answer came to its proper end."""
        self.between_chunks = False
        """Whether the next byte of a chunked body begins a chunk, or its end."""
        self.keep_alive = False
        """Whether the engine keeps the connection open after this answer."""
        self.surplus = False
        """Whether something came after the end; the connection is then of no further use."""
        self.parts: list[bytes] = []
        self.size = 0
        """Bytes in :attr:`parts`."""

    @property
    def begun(self) -> bool:
        """Whether any byte came, be it of an interim answer."""
        return self._fed > 0

    @property
    def headers(self) -> list[Header]:
        """The headers of the head, in order."""
        return self._headers if self.plain is None else self.plain.pairs()

    def feed(self, data: bytes) -> None:
        """Take what the connection gave. Raises :class:`InvalidAnswer`; the instance is then done."""
        if self._fed == 0:
            if self._begin_plain(data):
                return
            if data[0] not in b"H\r\n":
                # The parser would also take RTSP and ICE.
                raise InvalidAnswer("the answer does not begin with HTTP/")
            self._parser = HttpResponseParser(self)
        elif self.plain is not None:
            self._feed_plain(data)
            return
        if self._parser is None:
            self.surplus = True
            return
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._parser = None
            if self.complete:
                self.surplus = True
                return
            # An error raised in one of the callbacks below comes wrapped.
            inner = error.__context__
            if isinstance(inner, InvalidAnswer):
                raise inner from None
            raise InvalidAnswer(f"the answer is not HTTP: {error}") from None
        if self.complete:
            # The parser refers back to us; without this, every answer would wait for the collector.
            self._parser = None
        elif not self.head_done and self._fed > self._max_head_bytes:
            self._refuse_long_head()

    def _begin_plain(self, begun: bytes) -> bool:
        """Take the beginning of an answer if its head is whole and has the usual form."""
        if self._method == "HEAD":
            return False
        end = begun.find(b"\r\n\r\n")
        if not 0 <= end < self._max_head_bytes:
            return False
        head = plain_head(begun, end)
        if head is None:
            return False
        self._fed = len(begun)
        self.plain = head
        self.status = head.status
        self.reason = head.reason
        self.content_length = self._left = head.length
        self.keep_alive = head.keep_alive
        self._body = _LENGTH
        self.head_done = True
        self._feed_plain(begun[end + 4 :])
        return True

    def _feed_plain(self, data: bytes) -> None:
        left = self._left
        if len(data) > left:
            self.surplus = True
            data = data[:left]
        if data:
            self.parts.append(data)
            self.size += len(data)
            left -= len(data)
            self._left = left
        if not left:
            self.complete = True

    def eof(self) -> bool:
        """The connection ended in an orderly way. Returns whether the answer is whole by that."""
        if self._body is _Body.UNTIL_EOF and not self.complete:
            self.complete = True
        self._parser = None
        return self.complete

    def take(self) -> bytes:
        """All body bytes that have come and were not taken yet, in one piece."""
        parts = self.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.parts = []
        self.size = 0
        return data

    def give_back(self, parts: list[bytes]) -> None:
        """Have parts that were taken be the first to be taken again."""
        self.parts = [*parts, *self.parts]
        self.size += sum(map(len, parts))

    # --- Called by the parser ---

    def on_message_begin(self) -> None:
        if self.complete:
            # The answer may not have been passed on yet; it keeps the head that it came with.
            self.surplus = True
            return
        self.reason = b""
        self._headers = []

    def on_status(self, status: bytes) -> None:
        if not self.head_done:
            self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the head these are trailers, which end with the framing that carried them.
        if not self.head_done:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        version = parser.get_http_version()
        if _CONTROL.search(self.reason) is not None:
            raise InvalidAnswer("the reason in the answer's first line has a control byte")
        if version not in ("1.1", "1.0"):
            raise InvalidAnswer(f"the answer is HTTP/{version}, not HTTP/1.1")
        if sum(len(name) + len(value) + 4 for name, value in self._headers) > self._max_head_bytes:
            self._refuse_long_head()
        if status < 200:
            if status < 100 or status == 101:
                raise InvalidAnswer(f"the answer has status {status}, which was not asked for")
            return
        self.status = status
        self._frame(version)
        self.head_done = True
        if self._body is _Body.NONE:
            self.complete = True

    def on_body(self, data: bytes) -> None:
        if self.complete:
            # A body after HEAD or 204; nothing that follows can be trusted.
            self.surplus = True
        elif not self.head_done:
            raise InvalidAnswer("an interim answer has a body")
        else:
            self.parts.append(data)
            self.size += len(data)

    def on_chunk_header(self) -> None:
        self.between_chunks = False

    def on_chunk_complete(self) -> None:
        self.between_chunks = True

    def on_message_complete(self) -> None:
        self.between_chunks = False
        if self.head_done:
            self.complete = True

    # --- Decisions ---

    def _frame(self, version: str) -> None:
        """Find how the body ends. The parser has refused a length together with an encoding."""
        encodings: list[bytes] = []
        for name, value in self._headers:
            size = len(name)
            if size == 14 and name.lower() == b"content-length":
                self.content_length = int(value)
            elif size == 17 and name.lower() == b"transfer-encoding":
                # The parser takes spaces off, and nothing else: behind a tab it sees no chunks.
                encodings.append(value.strip(b" ").lower())
        if encodings not in ([], [b"chunked"]):
            # We could pass the coding on neither as it came (it is hop-by-hop) nor decoded.
            raise InvalidAnswer("the answer has a transfer encoding other than chunked")
        self._body = self._body_kind(chunked=bool(encodings))
        self.between_chunks = self._body is _Body.CHUNKED
        if self._body is _Body.NONE and self._method != "HEAD" and self.status != 304:
            self.content_length = 0
        tokens = connection_tokens(self._headers)
        if version == "1.1":
            self.keep_alive = b"close" not in tokens
        else:
            self.keep_alive = b"keep-alive" in tokens and b"close" not in tokens and not encodings
        if self._body is _Body.UNTIL_EOF or (self._body is _NONE and encodings):
            # Where there is a coding and no body, the parser waits for chunks all the same.
            self.keep_alive = False

    def _body_kind(self, *, chunked: bool) -> _Body:
        if self._method == "HEAD" or self.status in (204, 304):
            return _Body.NONE
        if chunked:
            return _Body.CHUNKED
        if self.content_length is None:
            return _Body.UNTIL_EOF
        return _Body.LENGTH if self.content_length else _Body.NONE

    def _refuse_long_head(self) -> None:
        raise InvalidAnswer(f"the head of the answer is over {self._max_head_bytes} bytes")
