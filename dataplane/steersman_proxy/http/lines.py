"""Lines of heads that are written again and again, taken apart once.

Clients and engines write nearly the same lines with each message. A head then costs the looking up
of its lines, and only new ones are matched.
"""

import re
from collections.abc import Callable, Sequence

DROPPED, PASSES, SPECIAL, LENGTH = range(4)
"""What becomes of a line: it ends here, passes, passes unless the proxy has its own, or is the one of
the length."""

Field = tuple[bytes, bytes, int]
"""A header's lower-case name, its value, and what becomes of it."""

HEADER_LINE = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): "
    rb"([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)"
)
"""The one form of a header's line that is read here: it is the form that this proxy writes, so that
a line may be passed on as it came. The value begins and ends with something visible."""

_REMEMBERED = 4096
"""Lines that are remembered at most; then all are forgotten."""

_LONGEST = 512
"""Bytes of a line that is remembered."""

EACH_ITS_OWN = {
    spelling: name
    for name in (
        b"traceparent",
        b"x-correlation-id",
        b"x-request-id",
        b"x-session-id",
        b"x-smg-routing-key",
    )
    for spelling in (
        name,
        name.title(),
        name.title().replace(b"-Id", b"-ID"),
        name.upper(),
    )
}
"""Headers that differ from message to message, by their usual spellings: remembering their lines
would help nobody."""

SAFE_VALUE = rb"[0-9A-Za-z\-_.:/]+"
"""The pattern of a value of :data:`_UNDOUBTED` alone."""

_UNDOUBTED = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:/"
"""A value of these alone is of the form of :data:`HEADER_LINE`."""


class KnownLines:
    """Takes lines apart by ``match``, which returns ``None`` for one that is not to be read here.

    ``fates`` says what becomes of headers that differ from message to message; ``match`` judges
    those that it does not name.
    """

    def __init__(self, match: Callable[[bytes], Field | None], *, fates: dict[bytes, int]) -> None:
        self._match = match
        self._fates = fates
        self._known: dict[bytes, Field] = {}

    def fields(self, lines: Sequence[bytes]) -> list[Field] | None:
        """The fields of the lines; ``None`` if one of them is not to be read here."""
        fields = list(map(self._known.get, lines))
        if None in fields:
            for index, field in enumerate(fields):
                if field is None:
                    learned = self._learn(lines[index])
                    if learned is None:
                        return None
                    fields[index] = learned
        return fields  # type: ignore[return-value] # none is None by now

    def _learn(self, line: bytes) -> Field | None:
        spelling, _, value = line.partition(b": ")
        name = EACH_ITS_OWN.get(spelling)
        if name is not None:
            fate = self._fates.get(name)
            if fate is not None and value and not value.translate(None, _UNDOUBTED):
                return name, value, fate
            return self._match(line)
        field = self._match(line)
        if field is not None and len(line) <= _LONGEST:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[line] = field
        return field
