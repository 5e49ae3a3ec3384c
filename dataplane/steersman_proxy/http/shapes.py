"""Heads that are alike but for a few values, read once.

A client writes the same head with each request, but for the length of the body and an id or two, and
an engine with each answer, but for the length and the date. What is left when these values are taken
out is the head's *shape*. All that a head says beside them is remembered with its shape, so that a
head of a known shape costs one split and one look-up, however many lines it has.

Only values of a form that cannot change how a head is read are taken out. A head of a new shape is
read line by line (:mod:`~steersman_proxy.http.lines`), and its shape is remembered when it comes
again: one that does not would only take the place of others.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_REMEMBERED = 1024
"""Shapes that are remembered at most; then all are forgotten."""

_SEEN = 8192
"""Shapes of which only that they came once is remembered, at most."""

_LONGEST = 4096
"""Bytes of a head whose shape is remembered."""


class Shapes(Generic[T]):
    """What is known of heads by their shapes.

    A head is given without the empty line at its end. Lines of the names in ``differing``, as spelled
    there, and of a value that ``value`` matches do not count for the shape, but for their names.
    """

    __slots__ = ("_known", "_seen", "parts")

    def __init__(self, differing: Iterable[bytes], *, value: bytes) -> None:
        names = b"|".join(sorted(map(re.escape, differing)))
        # A pattern that begins with two letters of text is searched for ten times faster.
        pattern = re.compile(rb"\r\n(%b): (%b)(?=\r\n|\Z)" % (names, value))
        self.parts: Callable[[bytes], list[bytes]] = pattern.split
        """Takes a head apart: text, name, value, text, name, value, ..., text. Each text but the first
        is empty or begins with the end of the line before."""
        self._known: dict[tuple[bytes, ...], T] = {}
        self._seen: set[int] = set()

    def get(self, parts: Sequence[bytes]) -> T | None:
        """What is known of the shape of a head in these parts."""
        return self._known.get((*parts[::3], *parts[1::3]))

    def comes_again(self, parts: Sequence[bytes]) -> bool:
        """Whether a shape that is not known came before, and so is worth to :meth:`learn`."""
        if sum(map(len, parts)) > _LONGEST:
            return False
        mark = hash((*parts[::3], *parts[1::3]))
        if mark in self._seen:
            return True
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def learn(self, parts: Sequence[bytes], known: T) -> None:
        """Remember what is known of the shape."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[(*parts[::3], *parts[1::3])] = known


class KeptLines:
    """The lines of a head that pass the proxy, ready but for the values that differ."""

    __slots__ = ("_pieces", "_tail")

    def __init__(self, parts: Sequence[bytes], passes: Iterable[bool]) -> None:
        """``passes`` tells it of each line after the first one, in the order of the head."""
        stays = iter(passes)
        self._pieces: list[tuple[bytes, int]] = []
        """What stands before a value, and which one it is."""
        text = _kept(parts[0], stays)
        for number, (name, behind) in enumerate(zip(parts[1::3], parts[3::3], strict=True)):
            if next(stays):
                self._pieces.append((text + name + b": ", number))
                text = b"\r\n"
            text += _kept(behind, stays)
        self._tail = text

    def fill(self, values: Sequence[bytes]) -> list[bytes]:
        """The lines with these values, in pieces to be joined; each line with its end."""
        pieces: list[bytes] = []
        for text, number in self._pieces:
            pieces += (text, values[number])
        pieces.append(self._tail)
        return pieces


def _kept(text: bytes, stays: Iterator[bool]) -> bytes:
    return b"".join([line + b"\r\n" for line in text.split(b"\r\n")[1:] if next(stays)])
