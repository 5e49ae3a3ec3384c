"""One answer on its way to the client: its head, its framing, and what of it is not written yet."""

from collections.abc import Sequence

from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.messages import Respond, StartAnswer
from steersman_proxy.http.answer_frame import AnswerFrame
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.headers import reason_phrase, response_headers
from steersman_proxy.http.splice.client import Client

_LENGTH = frozenset({b"content-length"})


class AnswerWriter:
    """Writes one answer, an engine's or one of our own, to a client that speaks HTTP/1.1."""

    __slots__ = ("_client", "_context", "_frame", "_to_head", "pending", "started")

    def __init__(
        self, context: Context, client: Client, *, to_head: bool, persistent: bool
    ) -> None:
        self._context = context
        self._client = client
        self._to_head = to_head
        self._frame = AnswerFrame(http11=True, to_head=to_head, persistent=persistent)
        self.pending = b""
        """The head, if it is made but not written: it goes with the first of the body."""
        self.started = False
        """Whether anything was written."""

    @property
    def persistent(self) -> bool:
        """Whether the connection may be used again after the answer."""
        return self._frame.persistent

    @property
    def chunked(self) -> bool:
        """Whether the body is framed in chunks."""
        return self._frame.chunked

    def begin(self, framing: AnswerFraming, step: StartAnswer) -> None:
        """Make the head of an engine's answer; nothing is written yet.

        :raises InvalidHeader: for what cannot stand in a head.
        """
        edit = step.edit
        remove, length = edit.remove, None
        if step.end and not self._to_head:
            # Known now, whether or not the engine said so: some clients read only what has a length.
            remove |= _LENGTH
            length = sum(map(len, step.body))
        self._heed_draining()
        frame, plain = self._frame, framing.plain
        if plain is not None and (length is not None or b"content-length" not in remove):
            self.pending = frame.start_plain(plain, remove=remove, add=edit.add, length=length)
        else:
            headers = response_headers(framing.headers, remove=remove, add=edit.add)
            self.pending = frame.start(framing.status, framing.reason, headers, length=length)

    def respond(self, action: Respond) -> None:
        """Write a whole answer of our own."""
        if action.close:
            self._frame.persistent = False
        self._heed_draining()
        self.pending = self._frame.start(
            action.status, reason_phrase(action.status), action.headers, length=len(action.body)
        )
        self.last([action.body])

    def write(self, parts: Sequence[bytes]) -> None:
        """Write parts of the body, after the head."""
        self._write(self._frame.framed(parts))

    def pass_on(self, part: bytes) -> None:
        """Write a part of the body, once the head is written."""
        self._client.put(self._frame.passed(part))

    def last(self, parts: Sequence[bytes]) -> None:
        """Write the last parts of the body, and its end."""
        self._write(self._frame.last(parts))

    def flush(self) -> None:
        """Write the head, if it waits for a body that does not come yet."""
        if self.pending:
            self._write(())

    def _heed_draining(self) -> None:
        if self._context.ends_connections():
            self._frame.persistent = False

    def _write(self, framed: Sequence[bytes]) -> None:
        self.started = True
        if self.pending:
            head, self.pending = self.pending, b""
            self._client.write((head, *framed))
        elif framed:
            self._client.write(framed)
