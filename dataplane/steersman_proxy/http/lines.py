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


class KnownLines:
    """Takes lines apart by ``match``, which returns ``None`` for one that is not to be read here."""

    def __init__(self, match: Callable[[bytes], Field | None]) -> None:
        self._match = match
        self._known: dict[bytes, Field] = {}

    def fields(self, lines: Sequence[bytes]) -> list[Field] | None:
        """The fields of the lines; ``None`` if one of them is not to be read here."""
        known = self._known
        try:
            return [known[line] for line in lines]
        except KeyError:
            return self._learn(lines)

    def _learn(self, lines: Sequence[bytes]) -> list[Field] | None:
        known = self._known
        fields = []
        for line in lines:
            field = known.get(line) or self._match(line)
            if field is None:
                return None
            if len(line) <= _LONGEST:
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[line] = field
            fields.append(field)
        return fields
