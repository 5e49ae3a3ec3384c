"""A change of a resource, made in the text of its file.

Comments, quotes, order and layout stay as people wrote them. The new text is read again, and is taken
only if exactly the wanted value is another one; so a mistake of the cutting can refuse a change, but
not damage a file.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from steersman.documents import Node, parse_documents, source_of
from steersman.documents.document import WrittenFloat, WrittenInt
from steersman.errors import DocumentError, EditImpossible
from steersman_operator.manifests.cuts import (
    CannotCutError,
    Cut,
    append_item,
    apply,
    insert_member,
    remove_item,
    remove_member,
    replace_scalar,
)
from steersman_operator.manifests.verbs import Change, DropOverride, SetOverride, SetState

BOM = b"\xef\xbb\xbf"

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
# Words that are something else than text; `yes` and the like are for readers of YAML 1.1.
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def edited(file: str, content: bytes, *, document: int, change: Change) -> bytes:
    """``content`` with the change made in its document number ``document``.

    :raises EditImpossible: if that cannot be done without changing something else; says what to
        write by hand.
    """
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


def _cuts(text: str, spec: Node, change: Change) -> list[Cut]:
    match change:
        case SetState(state):
            node = spec.member("state")
            if node is not None:
                return [replace_scalar(text, node, state.value)]
            lines = [f"state: {state}"]
            return [_insert(text, spec, ("model",), lines, {"state": state.value})]
        case SetOverride(engine, state):
            return [_set_override(text, spec, engine, state.value)]
        case DropOverride(engine):
            overrides = _overrides(spec)
            position = _position(overrides, engine)
            if len(overrides.items or ()) == 1:
                return remove_member(text, spec, "overrides")
            return remove_item(text, overrides, position)


def _set_override(text: str, spec: Node, engine: str, state: str) -> Cut:
    item = {"engine": engine, "state": state}
    if spec.member("overrides") is None:
        lines = ["overrides:", f"  - engine: {_word(engine)}", f"    state: {state}"]
        return _insert(text, spec, ("state", "model"), lines, {"overrides": [item]})
    overrides = _overrides(spec)
    assert overrides.items is not None
    position = _position(overrides, engine, missing_is_fine=True)
    if position >= 0:
        node = overrides.items[position].member("state")
        if node is None:
            raise CannotCutError("the entry of the engine has no state of its own")
        return replace_scalar(text, node, state)
    inline = _inline(item, quoted=_is_json(spec))
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


def _insert(
    text: str, spec: Node, behind: Sequence[str], lines: Sequence[str], member: dict[str, Any]
) -> Cut:
    """A further member of ``spec``, behind the first that there is of the keys ``behind``."""
    assert spec.members is not None
    after = next((spec.members[key] for key in behind if key in spec.members), None)
    if after is None:
        raise CannotCutError("the spec has no model")
    inline = _inline(member, quoted=_is_json(spec))[1:-1]
    return insert_member(text, after, lines, inline=inline, flow=spec.flow)


def _is_json(spec: Node) -> bool:
    """Whether keys are in double quotes, which JSON demands."""
    return spec.flow and all(key.style == '"' for key, _ in (spec.members or {}).values())


def _inline(value: Any, *, quoted: bool) -> str:
    """Plain data between brackets."""
    if quoted:
        return json.dumps(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_inline(member, quoted=False)}' for key, member in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(item, quoted=False) for item in value)}]"
    return _word(value)


def _word(text: str) -> str:
    """A text that is text for every reader of YAML."""
    if _BARE.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return json.dumps(text)


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
    return data | {"spec": spec}


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
