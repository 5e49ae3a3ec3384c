"""How an answer to a client begins, is framed, and ends: as bytes, without I/O.

Both adapters write answers by it. An answer that is passed on must not change, so nothing is added
to a head but what framing and the connection's life ask for.
"""

from collections.abc import Sequence

from steersman_proxy.exchange.messages import Header
from steersman_proxy.http.headers import answer_head, check_headers
from steersman_proxy.http.plain_head import PlainHead

_WITHOUT_BODY = frozenset({204, 304})

LAST_CHUNK = b"0\r\n\r\n"


class AnswerFrame:
    """The framing of one answer; ``persistent`` says whether its connection is used again."""

    __slots__ = ("chunked", "_has_body", "_http11", "_left", "_to_head", "persistent", "unframed")

    def __init__(self, *, http11: bool, to_head: bool, persistent: bool) -> None:
        self._http11 = http11
        self._to_head = to_head
        self._has_body = not to_head
        self.chunked = False
        """Whether the body is framed in chunks."""
        self._left: int | None = None
        """Bytes of the body that are still to come, if the head tells."""
        self.persistent = persistent
        self.unframed = False
        """Whether the end of the connection is the end of the body."""

    def start(
        self, status: int, reason: bytes, headers: Sequence[Header], *, length: int | None = None
    ) -> bytes:
        """The head's bytes; forgets a head that was made before and not sent.

        ``length`` is that of the body in bytes if it is known and not among ``headers`` yet.

        :raises InvalidHeader: for what cannot stand in a head.
        """
        self._has_body = not self._to_head
        self.chunked = self.unframed = False
        self._left = None
        framing: list[Header] = []
        if status in _WITHOUT_BODY or status < 200:
            self._has_body = False
            if status != 304:
                headers = [header for header in headers if header[0].lower() != b"content-length"]
        elif length is not None:
            framing.append((b"Content-Length", b"%d" % length))
            self._left = length
        elif self._has_body:
            self._left = _declared(headers)
            if self._left is None:
                framing += self._unknown_length()
        if not self.persistent:
            framing.append((b"Connection", b"close"))
        elif not self._http11:
            framing.append((b"Connection", b"keep-alive"))
        return answer_head(status, reason, (*headers, *framing))

    def start_plain(
        self,
        head: PlainHead,
        *,
        remove: frozenset[bytes],
        add: Sequence[Header],
        length: int | None,
    ) -> bytes:
        """As :meth:`start`, for an engine's head that passes as the lines that it is.

        ``length`` is that of the body in bytes if it is not the engine's. The same bytes as
        :meth:`start` makes of the headers.

        :raises InvalidHeader: if ``add`` has what cannot stand in a head.
        """
        lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason), *head.passing(remove)]
        lines += [b"%b: %b" % header for header in add]
        self.chunked = self.unframed = False
        self._has_body = True
        if length is None:
            length = head.length
        else:
            lines.append(b"Content-Length: %d" % length)
        self._left = length
        if not self.persistent:
            lines.append(b"Connection: close")
        lines += (b"", b"")
        made = b"\r\n".join(lines)
        breaks = len(lines) - 1
        if made.count(b"\r") != breaks or made.count(b"\n") != breaks or b"\0" in made:
            check_headers(add)
        return made

    def framed(self, parts: Sequence[bytes]) -> list[bytes]:
        """Parts of the body as they go onto the wire.

        :raises RuntimeError: if the body is longer than its head says; the client would take the
            rest for its next answer.
        """
        size = sum(map(len, parts)) if self._has_body else 0
        if not size:
            return []
        if self.chunked:
            return [b"%x\r\n" % size, *parts, b"\r\n"]
        if self._left is not None:
            if size > self._left:
                raise RuntimeError("the body is longer than its head says")
            self._left -= size
        return [*parts]

    def passed(self, part: bytes) -> bytes:
        """As :meth:`framed`, for one part, in one piece; ``part`` is not empty.

        :raises RuntimeError: if the body is longer than its head says.
        """
        if self.chunked:
            return b"%x\r\n%b\r\n" % (len(part), part)
        return b"".join(self.framed((part,)))

    def last(self, parts: Sequence[bytes]) -> list[bytes]:
        """The last parts of the body, and its end.

        :raises RuntimeError: if the body is shorter or longer than its head says.
        """
        framed = self.framed(parts)
        if self._has_body and self._left:
            raise RuntimeError("the body is shorter than its head says")
        if self.chunked:
            framed.append(LAST_CHUNK)
        return framed

    def _unknown_length(self) -> list[Header]:
        if self._http11:
            self.chunked = True
            return [(b"Transfer-Encoding", b"chunked")]
        self.unframed = True
        self.persistent = False
        return []


def _declared(headers: Sequence[Header]) -> int | None:
    for name, value in headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return int(value)
    return None
