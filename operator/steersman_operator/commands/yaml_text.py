"""JSON's values as YAML, for ``-o yaml``."""

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")
_SPECIAL = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that some reader of YAML takes for something else than a text."""


def yaml_text(content: Any) -> str:
    """The whole document, without the newline at its end."""
    return "\n".join(_lines(content))


def _lines(content: Any) -> Iterator[str]:
    match content:
        case dict() if content:
            for name, value in content.items():
                yield from _member(f"{_scalar(name)}:", value)
        case list() if content:
            for value in content:
                first, *rest = _lines(value)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
        case _:
            yield _scalar(content)


def _member(title: str, value: Any) -> Iterator[str]:
    match value:
        case dict() if value:
            yield title
            yield from (f"  {line}" for line in _lines(value))
        case list() if value:
            yield title
            yield from _lines(value)
        case _:
            yield f"{title} {_scalar(value)}"


def _scalar(value: Any) -> str:
    """A text stays bare where every reader takes it for a text, else it is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _SPECIAL:
        return value
    return f'"{"".join(map(_quoted, value))}"'


def _quoted(char: str) -> str:
    # JSON's escapes are YAML's, too, but not the two that make one character beyond 16 bits.
    if char.isprintable():
        return json.dumps(char, ensure_ascii=False)[1:-1]
    return json.dumps(char)[1:-1] if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
