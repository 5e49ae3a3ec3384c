"""Takes secrets out of what an engine tells of itself.

SGLang's ``/server_info`` is a dump of its launch arguments with the keys among them, once as members
and once within ``launch_command``; vLLM's shows its environment.
"""

import re
from typing import Any

_SECRET_NAME = re.compile(
    r"(api[_-]?key|password|passwd|secret|hf_token|access_key|credentials)$", re.IGNORECASE
)
_SECRET_ARGUMENT = re.compile(
    r"(--[\w-]*(?:api[_-]key|password|secret|hf[_-]token))(=|\s+)(\"[^\"]*\"|'[^']*'|\S+)",
    re.IGNORECASE,
)
_SECRET_FLAG = re.compile(r"--[\w-]*(?:api[_-]key|password|secret|hf[_-]token)", re.IGNORECASE)

HIDDEN = "***"


def redact(value: Any, *, known: str | None = None) -> Any:
    """``value``, which came from JSON, without secrets.

    Members with a secret's name are dropped, arguments of a command line are hidden, and so is
    ``known``, the engine's key, wherever it stands.
    """
    match value:
        case dict():
            return {
                name: redact(member, known=known)
                for name, member in value.items()
                if _SECRET_NAME.search(name) is None
            }
        case list():
            return _redact_list(value, known)
        case str():
            return redact_text(value, known=known)
        case _:
            return value


def redact_text(text: str, *, known: str | None = None) -> str:
    """``text`` without the values of secret arguments and without ``known``."""
    text = _SECRET_ARGUMENT.sub(rf"\1\2{HIDDEN}", text)
    return text.replace(known, HIDDEN) if known else text


def _redact_list(values: list[Any], known: str | None) -> list[Any]:
    """A list may be a command line: the value of a secret flag is then the next item."""
    found = []
    hide = False
    for value in values:
        found.append(HIDDEN if hide else redact(value, known=known))
        hide = isinstance(value, str) and _SECRET_FLAG.fullmatch(value) is not None
    return found
