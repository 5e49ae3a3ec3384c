"""Reading along in a stream of server-sent events, without holding it up.

The bytes of the stream are passed on as they came, whatever their cuts. What may be added is a
whole comment between two events.
"""

from collections.abc import Callable

DEFAULT_CAP = 4 * 1024 * 1024


class EventReader:
    """Finds the events of a stream cut at any byte.

    ``on_event`` is called with the payload of each event (its ``data`` lines, joined by newlines)
    and may return bytes, made of whole lines, to be put into the stream right after that event.

    An event of more than ``cap`` bytes is passed on but not read: memory stays bounded.
    """

    __slots__ = ("_cap", "_data", "on_event", "_partial", "_size", "_skipping")

    def __init__(
        self, on_event: Callable[[bytes], bytes | None], *, cap: int = DEFAULT_CAP
    ) -> None:
        self.on_event = on_event
        self._cap = cap
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read the next bytes; return what is to be passed on instead of them."""
        out: list[bytes] = []
        passed = 0
        begin = 0
        while (end := chunk.find(b"\n", begin)) >= 0:
            line = chunk[begin:end]
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)
                self._partial.clear()
            begin = end + 1
            note = self._line(line.removesuffix(b"\r"))
            if note:
                out.append(chunk[passed:begin])
                out.append(note)
                passed = begin
        if begin < len(chunk):
            self._keep(chunk[begin:])
        out.append(chunk[passed:] if passed else chunk)
        return out if out[-1] else out[:-1]

    def _keep(self, rest: bytes) -> None:
        """Remember the start of a line whose end has not come yet."""
        self._size += len(rest)
        if self._size > self._cap:
            # The line must still be seen as not empty, or its end would pass for the event's.
            self._skipping = True
            self._data.clear()
            self._partial = [b":"]
        else:
            self._partial.append(rest)

    def _line(self, line: bytes) -> bytes | None:
        if line:
            if line.startswith(b"data:") and not self._skipping:
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._size += len(line)
                if self._size > self._cap:
                    self._skipping = True
                    self._data.clear()
            return None
        data, skipped = self._data, self._skipping
        self._data, self._skipping, self._size = [], False, 0
        if skipped or not data:
            return None
        return self.on_event(data[0] if len(data) == 1 else b"\n".join(data))
