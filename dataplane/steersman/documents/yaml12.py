"""YAML 1.2 into plain data and places.

The parser's events are composed here instead of by the library: so that ``no`` and ``on`` stay
text, a number keeps its text, a key given twice is an error with both lines, and aliases cannot
grow a small file into a huge value.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from steersman.documents.document import Flaw, Malformed, Place, WrittenFloat, WrittenInt

MAX_DEPTH = 32
"""Levels of nesting; the schemas need seven."""
MAX_VALUES = 200_000
"""Values after following aliases; 4,096 engines with every key set have about 60,000."""
MAX_DOCUMENTS = 1024
MAX_DIGITS = 400
EVENTS_A_BREATH = 32
"""About a millisecond of reading."""

_TUPLE = re.compile(r"\('([^']*)',\)")
"""How the library writes a single token."""

NULLS = frozenset(("", "~", "null", "Null", "NULL"))
"""What means nothing, if it is written without quotes."""
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_TEXT_TAGS = ("tag:yaml.org,2002:str", "!")


def read_yaml(text: str, *, breathe: Callable[[], None] | None = None) -> tuple[Any, Place]:
    """The data of the only document in ``text``; ``None`` if there is none.

    ``breathe`` is called every :data:`EVENTS_A_BREATH` events.

    :raises Malformed: with everything found up to the first error of syntax.
    """
    found = _compose(text, _Composer(), breathe=breathe)
    return found[0] if found else (None, Place(1, 1))


def read_yaml_documents(
    text: str, *, breathe: Callable[[], None] | None = None
) -> list[tuple[Any, Place]]:
    """All documents in ``text``, those without content left out.

    :raises Malformed: as :func:`read_yaml`.
    """
    found = _compose(text, _Composer(most=MAX_DOCUMENTS), breathe=breathe)
    return [(data, place) for data, place in found if data is not None]


def _compose(
    text: str, composer: "_Composer", *, breathe: Callable[[], None] | None
) -> list[tuple[Any, Place]]:
    try:
        for count, event in enumerate(events_of(text), start=1):
            composer.take(event)
            if breathe is not None and count % EVENTS_A_BREATH == 0:
                breathe()
    except MarkedYAMLError as error:
        composer.flaws.append(flaw_of(error))
    except YAMLError as error:
        composer.flaws.append(Flaw(0, f"is not valid YAML: {str(error).splitlines()[0]}"))
    if composer.flaws:
        raise Malformed(*composer.flaws)
    return composer.results


def events_of(text: str) -> Iterator[Event]:
    """The parser's events; their marks count the characters of ``text``.

    :raises YAMLError: of the library, at the first error of syntax.
    """
    parser = YAML(typ="safe", pure=True)
    yield from parser.parse(text)


def flaw_of(error: MarkedYAMLError) -> Flaw:
    """What the library says, in our words."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context or "unreadable").split())
    problem = _TUPLE.sub(r"'\1'", problem)
    if "'\\t'" in problem:
        problem = "a tab cannot start a value or indent; use spaces"
    elif problem == "mapping values are not allowed here":
        problem += "; is a line indented otherwise than its neighbours, or a value to be quoted?"
    elif error.context and error.context_mark and error.context_mark.line != (mark and mark.line):
        problem += f" ({' '.join(error.context.split())} that begins in line {error.context_mark.line + 1})"
    return Flaw(mark.line + 1 if mark else 0, f"is not valid YAML: {problem}")


class _Frame:
    """A mapping or list that is being read. ``key`` is the key whose value comes next."""

    __slots__ = ("anchor", "data", "key", "key_place", "place", "size")

    def __init__(self, data: Any, place: Place, *, anchor: str | None) -> None:
        self.data = data
        self.place = place
        self.anchor = anchor
        self.key: str | None = None
        self.key_place = place
        self.size = 1


class _Anchored:
    """A value that aliases may refer to; ``size`` counts the values in it."""

    __slots__ = ("data", "place", "size")

    def __init__(self, data: Any, place: Place, size: int) -> None:
        self.data = data
        self.place = place
        self.size = size


class _Composer:
    """Builds data from events. Flaws that leave the structure clear are collected."""

    def __init__(self, *, most: int = 1) -> None:
        self.flaws: list[Flaw] = []
        self.results: list[tuple[Any, Place]] = []
        self._most = most
        self._frames: list[_Frame] = []
        self._anchors: dict[str, _Anchored | None] = {}

    def take(self, event: Event) -> None:
        """Take the next event.

        :raises Malformed: where reading on makes no sense.
        """
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        match event:
            case DocumentStartEvent():
                self._start_document(event, line)
            case ScalarEvent():
                self._scalar(event, line, column)
            case MappingStartEvent() | SequenceStartEvent():
                self._open(event, line, column)
            case MappingEndEvent() | SequenceEndEvent():
                frame = self._frames.pop()
                self._finish(frame.data, frame.place, size=frame.size, anchor=frame.anchor)
            case AliasEvent():
                self._alias(event, line, column)

    def _start_document(self, event: DocumentStartEvent, line: int) -> None:
        if len(self.results) >= self._most:
            if self._most == 1:
                self._give_up(line, "begins a second document; put one document into a file")
            self._give_up(line, f"begins another document after {self._most}; use several files")
        self._anchors = {}
        version = event.version
        if version and tuple(version) != (1, 2):
            shown = ".".join(str(part) for part in version)
            self._give_up(1, f"is marked as YAML {shown}; only YAML 1.2 is read, delete the mark")

    def _scalar(self, event: ScalarEvent, line: int, column: int) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.data, dict) and frame.key is None:
            self._key(frame, event, Place(line, column))
            return
        if event.tag and event.tag not in _TEXT_TAGS:
            self.flaws.append(Flaw(line, "has a tag (`!`), which has no meaning here; delete it"))
        # A tag or any kind of quotes makes text of everything.
        plain = event.style is None and not event.tag
        value = self._resolve(event.value, line) if plain else event.value
        self._finish(value, Place(line, column), size=1, anchor=event.anchor)

    def _resolve(self, text: str, line: int) -> Any:
        """The value of an unquoted scalar by the core schema of YAML 1.2."""
        if text in NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if len(text) > MAX_DIGITS and _DECIMAL.fullmatch(text):
            self.flaws.append(Flaw(line, f"is a number of more than {MAX_DIGITS} digits"))
            return None
        if _DECIMAL.fullmatch(text):
            return WrittenInt(int(text), text)
        if _BASED.fullmatch(text):
            return WrittenInt(int(text, 0), text)
        if _FLOAT.fullmatch(text):
            return WrittenFloat(text)
        return text

    def _key(self, frame: _Frame, event: ScalarEvent, place: Place) -> None:
        # A key is its text, so that a version such as 042 can be one.
        key = event.value
        if key == "<<" and event.style is None:
            self.flaws.append(
                Flaw(
                    place.line,
                    "uses the merge key `<<`, which YAML 1.2 does not have; repeat the keys",
                )
            )
        if key in frame.data:
            assert isinstance(frame.place.children, dict)
            first = frame.place.children[key].line
            self.flaws.append(
                Flaw(place.line, f"{key}: is given twice, first in line {first}; keep one of them")
            )
        frame.key = key
        frame.key_place = place

    def _open(self, event: MappingStartEvent | SequenceStartEvent, line: int, column: int) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.data, dict) and frame.key is None:
            self._give_up(line, "has a mapping or list where a key should be; a key must be text")
        if len(self._frames) >= MAX_DEPTH:
            self._give_up(line, f"is nested more than {MAX_DEPTH} levels deep")
        if event.tag:
            self.flaws.append(Flaw(line, "has a tag (`!`), which has no meaning here; delete it"))
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, MappingStartEvent):
            place = Place(line, column, children={})
            self._frames.append(_Frame({}, place, anchor=event.anchor))
        else:
            place = Place(line, column, children=[])
            self._frames.append(_Frame([], place, anchor=event.anchor))

    def _alias(self, event: AliasEvent, line: int, column: int) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.data, dict) and frame.key is None:
            self._give_up(line, "has an alias where a key should be; a key must be text")
        if event.anchor not in self._anchors:
            self._give_up(
                line, "has an alias (`*`) of an anchor (`&`) that does not come before it"
            )
        anchored = self._anchors[event.anchor]
        if anchored is None:
            self._give_up(line, "has an alias inside the value that it stands for")
        place = Place(line, column, children=anchored.place.children, text=anchored.place.text)
        self._finish(anchored.data, place, size=anchored.size, anchor=None)

    def _finish(self, data: Any, place: Place, *, size: int, anchor: str | None) -> None:
        """Put a whole value where it belongs: under its key, into its list, or at the top."""
        if anchor is not None:
            self._anchors[anchor] = _Anchored(data, place, size)
        if not self._frames:
            self.results.append((data, place))
            return
        frame = self._frames[-1]
        frame.size += size
        if frame.size > MAX_VALUES:
            self._give_up(place.line, f"has more than {MAX_VALUES:,} values, its aliases followed")
        children = frame.place.children
        if isinstance(children, list):
            frame.data.append(data)
            children.append(place)
        else:
            assert children is not None
            assert frame.key is not None
            # The line of a member is that of its key, its text that of the value.
            at = frame.key_place
            frame.data[frame.key] = data
            children[frame.key] = Place(
                at.line, at.column, children=place.children, text=place.text
            )
            frame.key = None

    def _give_up(self, line: int, message: str) -> NoReturn:
        raise Malformed(*self.flaws, Flaw(line, message))
