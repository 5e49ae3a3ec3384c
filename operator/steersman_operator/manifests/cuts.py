"""Changing a YAML or JSON text by cutting out and putting in, so that everything else stays.

Nothing in here is trusted: whoever cuts reads the result again and compares (see ``editing``).
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from steersman.documents import Node


class CannotCutError(Exception):
    """The text is written in a way that these functions do not change. Says why."""


class Cut(NamedTuple):
    """Characters ``start`` to ``end`` become ``text``."""

    start: int
    end: int
    text: str = ""


Member = tuple[Node, Node]
"""A key of a mapping and its value."""

_BREAK = re.compile(r"\r\n|\n|\r")
_REST_WITH_COMMA = re.compile(r"[ \t]*,[ \t]*(#[^\r\n]*)?(\r\n|\n|\r)")
_SKIPPED = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")


def apply(text: str, cuts: Sequence[Cut]) -> str:
    """``text`` with all cuts made; they must not overlap."""
    for cut in sorted(cuts, reverse=True):
        text = text[: cut.start] + cut.text + text[cut.end :]
    return text


def replace_scalar(text: str, node: Node, value: str, *, bare: str | None = None) -> Cut:
    """Another ``value`` for a single value; its quotes stay.

    ``bare`` is how it is written where there are no quotes; without it, as it is.
    """
    if node.is_alias:
        raise CannotCutError(f"the value is written elsewhere (alias *{node.anchor})")
    if node.value is None or node.style not in (None, "'", '"'):
        raise CannotCutError("the value is not a word in one line")
    quote = node.style or ""
    # An anchor or tag before it belongs to the node.
    before = f"{quote}{node.value}{quote}"
    start = node.end - len(before)
    if start < node.start or text[start : node.end] != before:
        raise CannotCutError("the value is written with escapes or over several lines")
    return Cut(start, node.end, _quoted(value, quote) if quote else bare or value)


def _quoted(value: str, quote: str) -> str:
    if quote == '"':
        return json.dumps(value, ensure_ascii=False)
    return f"'{value.replace(quote, quote + quote)}'"


def insert_member(
    text: str, after: Member, lines: Sequence[str], *, inline: str, flow: bool
) -> Cut:
    """A further member of a mapping: ``lines`` in a block, else ``inline``; behind ``after``."""
    key, value = after
    if not flow:
        return _insert_lines(text, key.start, value.written_end, lines)
    return _insert_inline(text, key.start, value.end, inline)


def first_member(text: str, mapping: Node, inline: str) -> Cut:
    """The only member of a mapping that has none yet."""
    if not mapping.flow:
        raise CannotCutError("there is nothing below its key")
    start = text.index("{", mapping.start) + 1
    return Cut(start, start, inline)


def append_item(text: str, items: Node, lines: Sequence[str], *, inline: str) -> Cut:
    """A further item of a list: ``lines`` (the first with its dash) in a block, else ``inline``."""
    assert items.items is not None
    if not items.items:
        if not items.flow:
            raise CannotCutError("the list is empty")
        start = text.index("[", items.start) + 1
        return Cut(start, start, inline)
    last = items.items[-1]
    if items.flow:
        return _insert_inline(text, last.start, last.end, inline)
    return _insert_lines(text, _dash(text, last), last.written_end, lines)


def remove_item(text: str, items: Node, position: int) -> list[Cut]:
    """One of several items of a list."""
    assert items.items is not None
    node = items.items[position]
    if items.flow:
        spans = [(item.start, item.end) for item in items.items]
        return _remove_inline(text, spans, position)
    return [_remove_lines(text, _dash(text, node), node.written_end)]


def remove_member(text: str, mapping: Node, name: str) -> list[Cut]:
    """One of several members of a mapping."""
    assert mapping.members is not None
    key, value = mapping.members[name]
    if mapping.flow:
        spans = [(key.start, value.end) for key, value in mapping.members.values()]
        return _remove_inline(text, spans, list(mapping.members).index(name))
    return [_remove_lines(text, key.start, max(key.end, value.written_end))]


def _insert_lines(text: str, start: int, end: int, lines: Sequence[str]) -> Cut:
    """Lines below what goes from ``start`` to ``end``, indented as it is."""
    indent = _indent(text, start)
    if indent is None:
        _odd_layout()
    place, line_break = _after_line(text, end)
    block = line_break.join(f"{indent}{line}" for line in lines)
    if place > 0 and text[place - 1] in "\r\n":
        return Cut(place, place, f"{block}{line_break}")
    # The file has no line break at its end, and gets none.
    return Cut(place, place, f"{line_break}{block}")


def _insert_inline(text: str, start: int, end: int, inline: str) -> Cut:
    """Something more between brackets, on a line of its own if what is before it is."""
    indent = _indent(text, start)
    if indent is None:
        return Cut(end, end, f", {inline}")
    rest = _REST_WITH_COMMA.match(text, end)
    if rest is not None:
        return Cut(rest.end(), rest.end(), f"{indent}{inline},{rest[2]}")
    _, line_break = _after_line(text, end)
    alone = _BREAK.match(text, _blanks_end(text, end))
    separator = f",{line_break}{indent}" if alone else ", "
    return Cut(end, end, f"{separator}{inline}")


def _remove_lines(text: str, start: int, end: int) -> Cut:
    """All lines from that of ``start`` to that of ``end``."""
    indent = _indent(text, start)
    if indent is None:
        _odd_layout()
    first = start - len(indent)
    last, _ = _after_line(text, end)
    if last == len(text) and text[last - 1] not in "\r\n" and first > 0:
        # The file had no line break at its end, and has none after it.
        first -= 2 if text[first - 2 : first] == "\r\n" else 1
    return Cut(first, last)


def _remove_inline(text: str, spans: Sequence[tuple[int, int]], position: int) -> list[Cut]:
    start, end = spans[position]
    if position + 1 < len(spans):
        following = spans[position + 1][0]
        if "#" not in text[end:following]:
            return [Cut(start, following)]
        comma = _comma(text, end)
        return [_whole_line(text, Cut(start, comma + 1))]
    if position == 0:
        raise CannotCutError("it is the only one between its brackets")
    before = spans[position - 1][1]
    own_comma = _comma_at(text, end)
    if own_comma is not None and _indent(text, start) is not None:
        return [_whole_line(text, Cut(start, own_comma + 1))]
    if "#" not in text[before:start]:
        return [Cut(before, end)]
    comma = _comma(text, before)
    return [Cut(comma, comma + 1), _whole_line(text, Cut(start, end))]


def _whole_line(text: str, cut: Cut) -> Cut:
    """The same cut, with the line if nothing else is on it."""
    indent = _indent(text, cut.start)
    if indent is None:
        return cut
    rest = _blanks_end(text, cut.end)
    line_break = _BREAK.match(text, rest)
    if line_break is None:
        return Cut(cut.start, rest)
    return Cut(cut.start - len(indent), line_break.end())


def _comma(text: str, end: int) -> int:
    """The comma behind a value that ends at ``end``."""
    comma = _comma_at(text, end)
    if comma is None:
        _odd_layout()
    return comma


def _comma_at(text: str, end: int) -> int | None:
    """As :func:`_comma`; ``None`` if there is none."""
    skipped = _SKIPPED.match(text, end)
    found = skipped.end() if skipped is not None else end
    return found if text[found : found + 1] == "," else None


def _blanks_end(text: str, start: int) -> int:
    """The first character from ``start`` that is not space."""
    while text[start : start + 1] in (" ", "\t"):
        start += 1
    return start


def _dash(text: str, item: Node) -> int:
    """The dash of an item of a list in a block."""
    place = item.start - 1
    while place >= 0 and text[place] in " \t":
        place -= 1
    if place < 0 or text[place] != "-":
        _odd_layout()
    return place


def _indent(text: str, start: int) -> str | None:
    """What is before ``start`` in its line; ``None`` if that is not only space."""
    line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    indent = text[line:start]
    return None if indent.strip(" \t") else indent


def _after_line(text: str, end: int) -> tuple[int, str]:
    """Where the line that holds the character before ``end`` is over, and how lines end there."""
    if end > 0 and text[end - 1] in "\r\n":
        # A block of text has its last line break inside.
        return end, "\r\n" if text[end - 2 : end] == "\r\n" else text[end - 1]
    found = _BREAK.search(text, end)
    if found is not None:
        return found.end(), found[0]
    # The last line of the file; the one before tells how lines end.
    before = max(text.rfind("\n"), text.rfind("\r"))
    if before < 0:
        return len(text), "\n"
    return len(text), "\r\n" if text[before - 1 : before + 1] == "\r\n" else text[before]


def _odd_layout() -> NoReturn:
    raise CannotCutError("the layout is unusual")
