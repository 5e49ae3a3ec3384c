"""A file in memory: plain data, and where each piece of it was written."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from steersman.errors import DocumentError

KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead from the top of a document to one value."""


class HiddenKey(str):
    """A key that is found in a file but never shown, as it may be a misplaced secret."""

    __slots__ = ()


class WrittenInt(int):
    """A whole number that remembers its text, as ``042`` and ``0x10`` are more than their value."""

    text: str

    def __new__(cls, value: int, text: str) -> "WrittenInt":
        self = super().__new__(cls, value)
        self.text = text
        return self


class WrittenFloat(float):
    """A number with fraction or exponent that remembers its text, such as ``1.10``."""

    text: str

    def __new__(cls, text: str) -> "WrittenFloat":
        # YAML writes .inf and .nan with a dot, which Python does not take.
        bare = text.replace(".", "") if text.lower().endswith(("inf", "nan")) else text
        self = super().__new__(cls, bare)
        self.text = text
        return self


class Flaw(NamedTuple):
    """Something wrong at a line (from 1) of a file; ``line`` 0 means the file as a whole."""

    line: int
    message: str


class Problem(NamedTuple):
    """A sentence about the key ``path``, found at the line of ``at`` (by default the same key)."""

    path: KeyPath
    message: str
    at: KeyPath | None = None

    @property
    def line_of(self) -> KeyPath:
        """The key whose line is named."""
        return self.path if self.at is None else self.at


class Malformed(Exception):
    """A text is not in its format. Inside ``documents`` only; leaves as a DocumentError."""

    def __init__(self, *flaws: Flaw) -> None:
        self.flaws = flaws
        super().__init__(*flaws)


class Place:
    """Where one value was written; the tree of places has the shape of the data.

    ``line`` and ``column`` count from 1 and are those of the key, or of the item of a list.
    ``text`` is the source of a value whose text could be lost in reading, such as a number.
    """

    __slots__ = ("children", "column", "line", "text")

    def __init__(
        self,
        line: int,
        column: int,
        *,
        children: "dict[str, Place] | list[Place] | None" = None,
        text: str | None = None,
    ) -> None:
        self.line = line
        self.column = column
        self.children = children
        self.text = text

    def child(self, key: str | int) -> "Place | None":
        """The place of a member or item; ``None`` if there is none."""
        if isinstance(self.children, dict) and isinstance(key, str):
            return self.children.get(key)
        if isinstance(self.children, list) and isinstance(key, int):
            return self.children[key] if 0 <= key < len(self.children) else None
        return None


class Document:
    """The content of a file, with values laid over it by command-line flags."""

    def __init__(self, path: str, *, data: dict[str, Any], root: Place | None) -> None:
        self.path = path
        self.data = data
        self._root = root
        self._flags: dict[KeyPath, str] = {}

    @classmethod
    def empty(cls) -> "Document":
        """A document without a file, for a program that runs on defaults and flags."""
        return cls("defaults", data={}, root=None)

    def override(self, path: Sequence[str], value: object, *, flag: str) -> None:
        """Put ``value`` at ``path``, whatever is there; problems with it name ``flag``."""
        # Sections are copied, as an alias may have put the same one in several places.
        self.data = target = dict(self.data)
        for key in path[:-1]:
            member = target.get(key)
            # The file may have nothing here, or something that is refused anyway.
            member = dict(member) if isinstance(member, dict) else {}
            target[key] = member
            target = member
        target[path[-1]] = value
        self._flags[tuple(path)] = flag

    def source(self, path: KeyPath) -> str:
        """``FILE:LINE`` of a key, of the nearest one around it, or the flag that set it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._flags:
                return self._flags[path[:length]]
        place = self.place(path)
        return f"{self.path}:{place.line}" if place else self.path

    def place(self, path: KeyPath) -> Place | None:
        """The place of a key, or of the nearest one around it that was written."""
        place = self._root
        for key in path:
            inner = place.child(key) if place else None
            if inner is None:
                break
            place = inner
        return place

    def problem(self, path: KeyPath, message: str, *, at: KeyPath | None = None) -> str:
        """A sentence that says where, which key, and what is wrong.

        ``at`` is the key whose line is named, where that is not ``path`` itself.
        """
        source, name = self.source(path if at is None else at), dotted(path)
        return f"{source}: {name}: {message}" if name else f"{source}: {message}"

    def is_written(self, path: KeyPath) -> bool:
        """Whether the file or a flag has this very key (not an item of a list)."""
        value: Any = self.data
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return False
            value = value[key]
        return True

    def error(self, problems: Iterable[Problem]) -> DocumentError:
        """All problems as one error, in the order of the file."""
        ordered = sorted(problems, key=lambda problem: self._line(problem.line_of))
        lines = [
            self.problem(problem.path, problem.message, at=problem.line_of) for problem in ordered
        ]
        return DocumentError(self.path, list(dict.fromkeys(lines)))

    def _line(self, path: KeyPath) -> int:
        place = self.place(path)
        return place.line if place else 0


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``pools[0].engines[2].url``."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif not isinstance(key, HiddenKey):
            text += f".{key}" if text else key
    return text
