"""TOML into plain data and places.

The standard library reads the data; it keeps no lines, so those come from a second, tolerant
parser. Where the two disagree the data is right and a problem names the nearest known line.
"""

import datetime
import re
import tomllib
from typing import Any

import tree_sitter
import tree_sitter_toml

from steersman.documents.document import Flaw, Malformed, Place, WrittenFloat, WrittenInt

MAX_DEPTH = 32
"""Levels of nesting; the schemas need seven."""

_AT = re.compile(r" ?\(at (?:line (?P<line>\d+), column \d+|end of document)\)$")
_WRITTEN = frozenset(
    ("integer", "float", "local_date", "local_time", "local_date_time", "offset_date_time")
)


def read_toml(text: str) -> tuple[dict[str, Any], Place]:
    """The data of ``text`` and its places.

    :raises Malformed: if it is not TOML or nested too deeply.
    """
    try:
        data = tomllib.loads(text, parse_float=WrittenFloat)
    except tomllib.TOMLDecodeError as error:
        raise Malformed(_flaw_of(error, text)) from None
    except RecursionError:
        raise Malformed(Flaw(0, f"is nested more than {MAX_DEPTH} levels deep")) from None
    except ValueError:
        raise Malformed(Flaw(0, "has a number with too many digits")) from None
    if _deeper_than(data, MAX_DEPTH):
        raise Malformed(Flaw(0, f"is nested more than {MAX_DEPTH} levels deep"))
    root = _places(text)
    _restore_texts(data, root)
    return data, root


def _flaw_of(error: tomllib.TOMLDecodeError, text: str) -> Flaw:
    message = str(error)
    at = _AT.search(message)
    if at is None:
        return Flaw(0, f"is not valid TOML: {message}")
    line = int(at["line"]) if at["line"] else text.count("\n") + 1
    message = message[: at.start()]
    if message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
        message += " (a key or table is given twice)"
    return Flaw(line, f"is not valid TOML: {message}")


def _deeper_than(data: Any, limit: int) -> bool:
    level = [data]
    for _ in range(limit):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
        if not below:
            return False
        level = below
    return True


def _restore_texts(data: Any, place: Place | None) -> None:
    """Give whole numbers their text back, and make text of dates, which no schema knows."""
    items: list[tuple[Any, Any]] = (
        list(data.items()) if isinstance(data, dict) else list(enumerate(data))
    )
    for key, value in items:
        inner = place.child(key) if place else None
        if isinstance(value, dict | list):
            _restore_texts(value, inner)
        elif isinstance(value, int) and not isinstance(value, bool) and inner and inner.text:
            data[key] = WrittenInt(value, inner.text)
        elif isinstance(value, datetime.date | datetime.time):
            data[key] = inner.text if inner and inner.text else str(value)


def _places(text: str) -> Place:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language()))
    document = parser.parse(text.encode()).root_node
    root = Place(1, 1, children={})
    for node in document.named_children:
        if node.type == "pair":
            _put_pair(root, node)
        elif node.type in {"table", "table_array_element"}:
            header, *pairs = [child for child in node.named_children if child.type != "comment"]
            table = _open_table(root, header, array=node.type == "table_array_element")
            for pair in pairs:
                _put_pair(table, pair)
    return root


def _open_table(root: Place, header: tree_sitter.Node, *, array: bool) -> Place:
    """The place of the table that a ``[header]`` or ``[[header]]`` begins."""
    *parents, last = _keys(header)
    members = _members(_descend(root, parents, header))
    fresh = _place(header, children={})
    if array:
        entry = members.setdefault(last, _place(header, children=[]))
        if isinstance(entry.children, list):
            entry.children.append(fresh)
        return fresh
    existing = members.get(last)
    if existing is None:
        members[last] = fresh
        return fresh
    # A table made by a header below it, such as [a.b] before [a].
    existing.line, existing.column = fresh.line, fresh.column
    return existing


def _put_pair(table: Place, node: tree_sitter.Node) -> None:
    if node.type != "pair":
        return
    named = [child for child in node.named_children if child.type != "comment"]
    if len(named) != 2:
        return
    key, value = named
    *parents, last = _keys(key)
    place = _value(value)
    place.line, place.column = _position(key)
    _members(_descend(table, parents, key))[last] = place


def _descend(place: Place, keys: list[str], node: tree_sitter.Node) -> Place:
    """Follow ``keys``, making tables on the way; a list of tables means its newest one."""
    for key in keys:
        place = _members(place).setdefault(key, _place(node, children={}))
        if isinstance(place.children, list) and place.children:
            place = place.children[-1]
    return place


def _members(place: Place) -> dict[str, Place]:
    """The members of a table; a throwaway where the two parsers disagree."""
    return place.children if isinstance(place.children, dict) else {}


def _value(node: tree_sitter.Node) -> Place:
    if node.type == "array":
        items = [_value(child) for child in node.named_children if child.type != "comment"]
        return _place(node, children=items)
    if node.type == "inline_table":
        table = _place(node, children={})
        for pair in node.named_children:
            _put_pair(table, pair)
        return table
    written = _text(node) if node.type in _WRITTEN else None
    return _place(node, text=written)


def _keys(node: tree_sitter.Node) -> list[str]:
    """The parts of a bare, quoted or dotted key."""
    if node.type == "dotted_key":
        return [key for child in node.named_children for key in _keys(child)]
    if node.type == "quoted_key":
        # The standard library knows the escapes.
        return list(tomllib.loads(f"{_text(node)} = 0"))
    return [_text(node)]


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode()


def _position(node: tree_sitter.Node) -> tuple[int, int]:
    return node.start_point.row + 1, node.start_point.column + 1


def _place(
    node: tree_sitter.Node,
    *,
    children: dict[str, Place] | list[Place] | None = None,
    text: str | None = None,
) -> Place:
    line, column = _position(node)
    return Place(line, column, children=children, text=text)
