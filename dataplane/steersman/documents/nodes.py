"""Where the pieces of a YAML text are, to the character: what is needed to change one in place.

A :class:`~steersman.documents.document.Place` names a line for people; a :class:`Node` says which
characters a value has, so that a program can replace these and leave the rest of the file alone.
"""

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from steersman.documents.document import Malformed
from steersman.documents.yaml12 import NULLS, events_of, flaw_of


class Node:
    """One value. ``start`` and ``end`` are its first character and the one after its last.

    An anchor or tag belongs to the value; a block of lines without brackets ends wherever the next
    value begins, so :attr:`written_end` is the place to cut.
    """

    __slots__ = ("anchor", "column", "end", "flow", "items", "members", "start", "style", "value")

    def __init__(self, event: Event) -> None:
        self.start: int = event.start_mark.index
        self.end: int = event.end_mark.index
        self.column: int = event.start_mark.column
        """From 0."""
        self.anchor: str | None = getattr(event, "anchor", None)
        """The name behind ``&``, or behind ``*`` if :attr:`is_alias`."""
        self.value: str | None = None
        """The text of a single value, without its quotes."""
        self.style: str | None = None
        """How a single value is written: ``'``, ``"``, ``|``, ``>``; ``None`` for a bare one."""
        self.flow = False
        """Whether a mapping or list is in brackets."""
        self.members: dict[str, tuple[Node, Node]] | None = None
        """Of a mapping: key and value by the text of the key."""
        self.items: list[Node] | None = None
        """Of a list."""
        if isinstance(event, ScalarEvent):
            self.value, self.style = event.value, event.style
        elif isinstance(event, MappingStartEvent):
            self.members, self.flow = {}, bool(event.flow_style)
        elif isinstance(event, SequenceStartEvent):
            self.items, self.flow = [], bool(event.flow_style)

    @property
    def is_alias(self) -> bool:
        """Whether the value stands elsewhere."""
        return self.value is None and self.members is None and self.items is None

    @property
    def written_end(self) -> int:
        """The place after the last character of what was written, comments left out."""
        if self.members is not None and self.members and not self.flow:
            key, value = next(reversed(self.members.values()))
            return max(key.end, value.written_end) if value.start < value.end else key.end
        if self.items and not self.flow:
            return self.items[-1].written_end
        return self.end

    def member(self, key: str) -> "Node | None":
        """The value below ``key``; ``None`` if there is none, or this is no mapping."""
        found = (self.members or {}).get(key)
        return found[1] if found else None


def read_nodes(text: str) -> list[Node]:
    """The top of each document in ``text``, those without content left out.

    :raises Malformed: if it is not YAML. What else would be wrong with it is not looked at.
    """
    tops: list[Node] = []
    open_nodes: list[Node] = []
    keys: list[Node | None] = []
    try:
        for event in events_of(text):
            if isinstance(event, MappingEndEvent | SequenceEndEvent):
                node = open_nodes.pop()
                keys.pop()
                node.end = event.end_mark.index
                _put(node, open_nodes, keys, tops)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                open_nodes.append(Node(event))
                keys.append(None)
            elif isinstance(event, ScalarEvent | AliasEvent):
                _put(Node(event), open_nodes, keys, tops)
    except MarkedYAMLError as error:
        raise Malformed(flaw_of(error)) from None
    return [top for top in tops if top.style is not None or top.value not in NULLS]


def _put(node: Node, open_nodes: list[Node], keys: list[Node | None], tops: list[Node]) -> None:
    """Put a whole node into the one that is open."""
    if not open_nodes:
        tops.append(node)
        return
    around = open_nodes[-1]
    if around.items is not None:
        around.items.append(node)
        return
    assert around.members is not None
    key = keys[-1]
    if key is None:
        keys[-1] = node
        return
    if key.value is not None:
        around.members[key.value] = (key, node)
    keys[-1] = None
