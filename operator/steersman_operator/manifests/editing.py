"""A change of a resource, made in the text of its file.

Comments, quotes, order and layout stay as people wrote them. The new text is read again, and is taken
only if exactly the wanted value is another one; so a mistake of the cutting can refuse a change, but
not damage a file.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from steersman.documents import Node, parse_documents, source_of
from steersman.documents.document import WrittenFloat, WrittenInt
from steersman.errors import DocumentError, EditImpossible
from steersman_operator.manifests.changes import (
    Change,
    DropOverride,
    SetOverride,
    SetState,
    SetValue,
)
from steersman_operator.manifests.cuts import (
    CannotCutError,
    Cut,
    append_item,
    apply,
    first_member,
    insert_member,
    remove_item,
    remove_member,
    replace_scalar,
)

BOM = b"\xef\xbb\xbf"

_BEHIND: Mapping[str, Sequence[str]] = {
    "state": ("model",),
    "overrides": ("state", "model"),
    "weightVersionRef": ("state", "model"),
    "refitNonce": ("weightVersionRef", "state", "model"),
}
"""Where a key is added: behind the first that there is of these."""

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
# Words that are something else than text; `yes` and the like are for readers of YAML 1.1.
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def edited(file: str, content: bytes, *, document: int, changes: Sequence[Change]) -> bytes:
    """``content`` with the changes made in its document number ``document``, one after the other.

    :raises EditImpossible: if one cannot be made without changing something else; says what to
        write by hand.
    """
    for change in changes:
        content = _edited(file, content, document=document, change=change)
    return content


def _edited(file: str, content: bytes, *, document: int, change: Change) -> bytes:
    text, tops = source_of(file, content)
    top = tops[document]
    spec = top.member("spec")
    try:
        if spec is None or spec.members is None:
            raise CannotCutError("the spec is written elsewhere (by an alias)")
        written = apply(text, _cuts(text, spec, change))
        mark = BOM if content.startswith(BOM) else b""
        result = mark + written.encode()
        _prove(file, content, result, document=document, change=change)
    except CannotCutError as error:
        line = text.count("\n", 0, top.start) + 1
        raise EditImpossible(
            f"{file}:{line}: cannot be changed safely, as {error}; change it by hand: "
            f"{_by_hand(change)}"
        ) from None
    return result


def _by_hand(change: Change) -> str:
    match change:
        case SetState(state):
            return f"write `state: {state}` below `spec`"
        case SetOverride(engine, state):
            return f"write `- {{engine: {_word(engine)}, state: {state}}}` below `spec.overrides`"
        case DropOverride(engine):
            return f"remove the entry of the engine {engine} below `spec.overrides`"
        case SetValue(path):
            return (
                f"write `{path[0]}: {_inline(change.content[path[0]], quoted=False)}` below `spec`"
            )


def _cuts(text: str, spec: Node, change: Change) -> list[Cut]:
    match change:
        case SetState(state):
            node = spec.member("state")
            if node is not None:
                return [replace_scalar(text, node, state.value)]
            lines = [f"state: {state}"]
            return [_insert(text, spec, lines, {"state": state.value})]
        case SetOverride(engine, state):
            return [_set_override(text, spec, engine, state.value)]
        case DropOverride(engine):
            overrides = _overrides(spec)
            position = _position(overrides, engine)
            if len(overrides.items or ()) == 1:
                return remove_member(text, spec, "overrides")
            return remove_item(text, overrides, position)
        case SetValue():
            return [_set_value(text, spec, change)]


def _set_value(text: str, spec: Node, change: SetValue) -> Cut:
    node = spec
    content: Any = change.content
    for depth, key in enumerate(change.path):
        if node.members is None:
            shown = ".".join(change.path[:depth])
            raise CannotCutError(f"{shown} is written elsewhere (by an alias), or has no keys")
        inner = node.member(key)
        if inner is None:
            return _insert(text, node, list(_lines(content)), content)
        node, content = inner, content[key]
    return replace_scalar(text, node, _text(content), bare=_inline(content, quoted=False))


def _lines(content: dict[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_inline(value, quoted=False)}"


def _set_override(text: str, spec: Node, engine: str, state: str) -> Cut:
    item = {"engine": engine, "state": state}
    if spec.member("overrides") is None:
        lines = ["overrides:", f"  - engine: {_word(engine)}", f"    state: {state}"]
        return _insert(text, spec, lines, {"overrides": [item]})
    overrides = _overrides(spec)
    assert overrides.items is not None
    position = _position(overrides, engine, missing_is_fine=True)
    if position >= 0:
        node = overrides.items[position].member("state")
        if node is None:
            raise CannotCutError("the entry of the engine has no state of its own")
        return replace_scalar(text, node, state)
    inline = _inline(item, quoted=_is_json(text, spec))
    if overrides.items and not overrides.items[-1].flow:
        lines = [f"- engine: {_word(engine)}", f"  state: {state}"]
    else:
        lines = [f"- {inline}"]
    return append_item(text, overrides, lines, inline=inline)


def _overrides(spec: Node) -> Node:
    node = spec.member("overrides")
    if node is None or node.items is None:
        raise CannotCutError("the list of overrides is written elsewhere (by an alias)")
    return node


def _position(overrides: Node, engine: str, *, missing_is_fine: bool = False) -> int:
    assert overrides.items is not None
    for position, item in enumerate(overrides.items):
        name = item.member("engine")
        if item.is_alias or (name is not None and name.is_alias):
            raise CannotCutError("an entry of the overrides is written elsewhere (by an alias)")
        if name is not None and name.value == engine:
            return position
    if missing_is_fine:
        return -1
    raise CannotCutError("the entry of the engine is not found")


def _insert(text: str, section: Node, lines: Sequence[str], member: dict[str, Any]) -> Cut:
    """A further member of a section, where people would look for it, else behind the last of all."""
    assert section.members is not None
    inline = _inline(member, quoted=_is_json(text, section))[1:-1]
    if not section.members:
        return first_member(text, section, inline)
    last = next(reversed(section.members))
    (name,) = member
    after = next((key for key in _BEHIND.get(name, ()) if key in section.members), last)
    return insert_member(text, section.members[after], lines, inline=inline, flow=section.flow)


def _is_json(text: str, section: Node) -> bool:
    """Whether keys are in double quotes, which JSON demands."""
    if not section.members:
        return text.lstrip()[:1] == "{"
    return section.flow and all(key.style == '"' for key, _ in section.members.values())


def _inline(value: Any, *, quoted: bool) -> str:
    """Plain data between brackets."""
    if quoted:
        return json.dumps(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_inline(member, quoted=False)}' for key, member in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(item, quoted=False) for item in value)}]"
    return json.dumps(value) if isinstance(value, bool) else _word(value)


def _text(value: str | bool) -> str:
    return json.dumps(value) if isinstance(value, bool) else value


def _word(text: str) -> str:
    """A text that is text for every reader of YAML."""
    if _BARE.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    # Beyond 16 bits JSON has two escapes for one character, which YAML reads as two.
    return json.dumps(text, ensure_ascii=False)


def _prove(file: str, before: bytes, after: bytes, *, document: int, change: Change) -> None:
    """Make sure that the change is in ``after``, and nothing else."""
    expected = [found.data for found in parse_documents(file, before)]
    expected[document] = _changed(expected[document], change)
    try:
        found = [found.data for found in parse_documents(file, after)]
    except DocumentError:
        raise CannotCutError("the layout is unusual") from None
    if not _same(expected, found):
        raise CannotCutError("the text is shared (by an alias), or the layout is unusual")


def _changed(data: dict[str, Any], change: Change) -> dict[str, Any]:
    """The data with the change; what it shares with other places is copied, not changed."""
    spec = dict(data["spec"])
    match change:
        case SetState(state):
            spec["state"] = state.value
        case SetOverride(engine, state):
            item = {"engine": engine, "state": state.value}
            overrides = [dict(old) for old in spec.get("overrides") or ()]
            old = next((old for old in overrides if old.get("engine") == engine), None)
            if old is None:
                overrides.append(item)
            else:
                old |= item
            spec["overrides"] = overrides
        case DropOverride(engine):
            spec["overrides"] = [old for old in spec["overrides"] if old.get("engine") != engine]
            if not spec["overrides"]:
                del spec["overrides"]
        case SetValue():
            spec = _merged(spec, change.content)
    return data | {"spec": spec}


def _merged(section: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    merged = dict(section)
    for key, value in content.items():
        merged[key] = _merged(section.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same, down to how their numbers are written."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, WrittenInt | WrittenFloat):
        return bool(one.text == other.text)
    return bool(one == other)
