"""Whole HTTP/1.1 answers out of the bytes of one connection, however they are cut. No I/O.

Of the heads only what delimits the bodies is read (RFC 9112, 6.3). Nothing here is lenient: what two
readers could see differently is no answer.
"""

import json
import re
from typing import Any

import msgspec

BODY_LIMIT = 8 << 20
"""Bytes of the longest answer that is read; SGLang's ``/server_info`` has some 100 kB."""

HEAD_LIMIT = 64 << 10
"""Bytes of the longest head, and of the line and trailers of a chunk."""

EXCERPT = 160
"""Characters of an engine's own words that a detail repeats."""

_BEGINS = b"HTTP/1."
_NO_BODY = (204, 304)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether it is a 200."""
        return self.status == 200

    @property
    def text(self) -> str:
        """The body as text, whatever it is."""
        return self.body.decode(errors="replace")

    def value(self) -> Any:
        """The body as JSON; ``None`` also if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            pass
        try:
            # Slower, and knows NaN and Infinity, which Python's servers write.
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def fields(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one if it is none."""
        value = self.value()
        return value if isinstance(value, dict) else {}

    def words(self) -> str:
        """What the engine says in it, on one line and cut short."""
        fields = self.fields()
        said: Any = fields.get("error") or fields.get("message") or fields.get("detail")
        if isinstance(said, dict):
            said = said.get("message")
        text = said if isinstance(said, str) else self.text
        text = re.sub(r"\s+", " ", text).strip()
        return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


class Broken(Exception):
    """What came is no answer. ``str()`` is a clause about it."""

    def __init__(self, detail: str, *, garbled: bool = False) -> None:
        super().__init__(detail)
        self.garbled = garbled
        """Whether whoever answers does not speak HTTP/1.1."""


class AnswerReader:
    """The answers that come on one connection, one after another."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._status = 0
        """Of the answer whose body is being read; 0 between two answers."""
        self._parts: list[bytes] = []
        self._size = 0
        self._left: int | None = 0
        """Bytes of the body, or of the chunk, that are still to come; ``None`` until the end."""
        self._chunked = False
        self._chunk_ends = False
        """Whether the line that ends a chunk is next, or that begins one."""
        self.closes = False
        """Whether the connection ends with the answer that was read last."""

    @property
    def between(self) -> bool:
        """Whether nothing of a further answer has come."""
        return not self._data and not self._status

    def feed(self, data: bytes) -> list[Reply]:
        """The answers that are complete with this.

        Raises:
            Broken: there will be none.
        """
        self._data = self._data + data if self._data else data
        self._at = 0
        replies: list[Reply] = []
        while self._at < len(self._data) and (reply := self._next()) is not None:
            replies.append(reply)
        self._data = self._data[self._at :]
        return replies

    def end(self) -> Reply | None:
        """Nothing more comes. An answer without a length is complete then.

        Raises:
            Broken: it was in the middle of one.
        """
        if self._status and self._left is None and not self._chunked:
            return self._whole()
        if self.between:
            return None
        raise Broken("it ended in the middle of an answer")

    # --- Inside ----------------------------------------------------------------------------------

    def _next(self) -> Reply | None:
        while not self._status:
            if not self._read_head():
                return None
        ended = self._read_chunks() if self._chunked else self._read_length()
        return self._whole() if ended else None

    def _whole(self) -> Reply:
        reply = Reply(status=self._status, body=b"".join(self._parts))
        self._status, self._parts, self._size = 0, [], 0
        return reply

    def _read_head(self) -> bool:
        """Whether a whole head was there; that of an interim answer is passed over."""
        data, at = self._data, self._at
        if not _BEGINS.startswith(data[at : at + len(_BEGINS)]):
            raise Broken("it does not begin like HTTP/1.1", garbled=True)
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > HEAD_LIMIT:
                raise Broken("its head does not end", garbled=True)
            return False
        line, *fields = data[at:end].split(b"\r\n")
        code = line[9:12]
        if line[5:9] not in (b"1.1 ", b"1.0 ") or not code.isdigit() or line[12:13] not in b" ":
            raise Broken("its first line is not HTTP/1.1", garbled=True)
        status = int(code)
        self._at = end + 4
        if status < 200:
            if status < 100 or status == 101:
                raise Broken(f"its status is {status}", garbled=True)
            return True
        self._status = status
        self._frame(fields, old=line[7:8] == b"0")
        return True

    def _frame(self, fields: list[bytes], *, old: bool) -> None:
        """Where the body ends, from the fields of a head."""
        length: int | None = None
        coding = b""
        closes = old
        for field in fields:
            name, colon, value = field.partition(b":")
            if not colon or not name or name[0] in b" \t" or name[-1] in b" \t":
                raise Broken("a field of its head is none", garbled=True)
            if len(name) not in (10, 14, 16, 17):
                continue
            match name.lower():
                case b"content-length":
                    value = value.strip(b" \t")
                    if not value.isdigit() or length not in (None, int(value)):
                        raise Broken("its length is not clear", garbled=True)
                    length = int(value)
                case b"transfer-encoding":
                    coding += value.strip(b" \t").lower()
                case b"content-encoding" if value.strip(b" \t").lower() != b"identity":
                    raise Broken("it is encoded, which nobody asked for")
                case b"connection":
                    tokens = [token.strip(b" \t") for token in value.lower().split(b",")]
                    closes = b"close" in tokens or (old and b"keep-alive" not in tokens)
        if coding and (coding != b"chunked" or length is not None):
            raise Broken("its length is not clear", garbled=True)
        self._chunked = coding == b"chunked" and self._status not in _NO_BODY
        self._chunk_ends = False
        if self._status in _NO_BODY or self._chunked:
            length = 0
        if (length or 0) > BODY_LIMIT:
            raise Broken("the answer is too long")
        self._left = length
        self.closes = closes or length is None

    def _take(self, limit: int | None) -> int:
        """Move what has come of the body, at most ``limit`` bytes; returns how many."""
        end = len(self._data) if limit is None else min(len(self._data), self._at + limit)
        part = self._data[self._at : end]
        self._at = end
        self._size += len(part)
        if self._size > BODY_LIMIT:
            raise Broken("the answer is too long")
        self._parts.append(part)
        return len(part)

    def _read_length(self) -> bool:
        taken = self._take(self._left)
        if self._left is None:
            return False
        self._left -= taken
        return not self._left

    def _read_chunks(self) -> bool:
        """Whether the last chunk and its trailers were there."""
        while True:
            if self._left:
                self._left -= self._take(self._left)
                if self._left:
                    return False
                self._chunk_ends = True
            line = self._line()
            if line is None:
                return False
            if self._chunk_ends:
                if line:
                    raise Broken("a chunk does not end where it should")
                self._chunk_ends = False
                continue
            if self._left is None:
                if not line:
                    return True  # after the trailers
                continue
            size = line.partition(b";")[0].strip(b" \t")
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
                raise Broken("the length of a chunk is not clear")
            # After the last chunk there are trailers, whose end is that of the answer.
            self._left = int(size, 16) or None

    def _line(self) -> bytes | None:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            if len(self._data) - self._at > HEAD_LIMIT:
                raise Broken("a line within its body does not end")
            return None
        line = self._data[self._at : end]
        self._at = end + 2
        return line
