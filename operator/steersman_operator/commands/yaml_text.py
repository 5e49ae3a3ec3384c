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
    """A text stays bare where every reader takes it for a text; JSON's strings are YAML's, too."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _SPECIAL:
        return value
    return json.dumps(value)
