"""From a path to a :class:`Document`, or to one error that says what is wrong with the file."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steersman.documents.document import Document, Flaw, Malformed, Place
from steersman.documents.nodes import Node, read_nodes
from steersman.documents.yaml12 import read_yaml, read_yaml_documents
from steersman.errors import DocumentError

MAX_BYTES = 8 * 1024**2
"""Size of a file; a table of 4,096 engines with every key set has about 2 MB."""

ACCEPTED = ".yaml, .yml or .toml"

# Both formats forbid them, with messages about syntax that hide the cause.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


# Tabs that begin a line of JSON; a text cannot go over the end of a line there.
_TABS = re.compile(r"^[ \t]+", re.MULTILINE)


def load_document(path: str | Path) -> Document:
    """Read a file.

    :raises DocumentError: if it cannot be read or is not valid YAML or TOML.
    """
    _kind_of(str(path))
    return parse_document(str(path), read_content(path))


def read_content(path: str | Path) -> bytes:
    """The bytes of a file that may be a document; follows symbolic links.

    :raises DocumentError: if there is no regular file of a bearable size that we may read.
    """
    path = Path(path)
    try:
        # Without O_NONBLOCK a named pipe would stop the proxy until somebody writes into it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _whole(path, "is not a regular file")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _whole(path, "does not exist; check the path") from None
    except IsADirectoryError:
        raise _whole(path, "is a directory; name a file in it") from None
    except PermissionError:
        raise _whole(path, "cannot be read: permission denied") from None
    except OSError as error:
        raise _whole(path, f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise _whole(path, f"is larger than {MAX_BYTES // 1024**2} MiB")
    return content


def parse_document(
    path: str, content: bytes, *, breathe: Callable[[], None] | None = None
) -> Document:
    """Read the content of the file ``path``, whose extension says the format.

    ``breathe`` is called about every millisecond of a long YAML file: a thread that reads one can
    sleep in it, as the interpreter would otherwise be handed over every 5 ms only.

    :raises DocumentError: if it is not valid YAML or TOML with a mapping at the top.
    """
    kind = _kind_of(path)
    try:
        text = _decode(content)
        data, root = _read_toml(text) if kind == "toml" else read_yaml(text, breathe=breathe)
    except Malformed as malformed:
        raise DocumentError(path, [_located(path, flaw) for flaw in malformed.flaws]) from None
    if data is None or (kind == "toml" and not data):
        raise _whole(path, "is empty; write at least one key, or leave the file out")
    if not isinstance(data, dict):
        raise DocumentError(path, [_no_keys(path, 1, data)])
    return Document(path, data=data, root=root)


def parse_documents(
    path: str, content: bytes, *, breathe: Callable[[], None] | None = None
) -> list[Document]:
    """Read a file that may have several documents: YAML, or JSON as the subset of YAML that it is.

    Documents without content are left out; a file without any has none.

    :raises DocumentError: if it is not valid, or a document has no keys at its top.
    """
    try:
        found = read_yaml_documents(_as_yaml(path, _decode(content)), breathe=breathe)
    except Malformed as malformed:
        raise DocumentError(path, [_located(path, flaw) for flaw in malformed.flaws]) from None
    problems = [
        _no_keys(path, root.line, data) for data, root in found if not isinstance(data, dict)
    ]
    if problems:
        raise DocumentError(path, problems)
    return [Document(path, data=data, root=root) for data, root in found]


def source_of(path: str, content: bytes) -> tuple[str, list[Node]]:
    """The text of a file that :func:`parse_documents` takes, and where its documents are in it.

    The text is without a byte order mark; as many nodes as the other has documents.

    :raises DocumentError: as :func:`parse_documents`.
    """
    try:
        text = _decode(content)
        return text, read_nodes(_as_yaml(path, text))
    except Malformed as malformed:
        raise DocumentError(path, [_located(path, flaw) for flaw in malformed.flaws]) from None


def _as_yaml(path: str, text: str) -> str:
    """``text`` in as many characters, but as YAML."""
    if not path.lower().endswith(".json"):
        return text
    # JSON allows tabs between its tokens, YAML does not where a line begins.
    return _TABS.sub(lambda match: " " * len(match[0]), text)


def _no_keys(path: str, line: int, data: object) -> str:
    found = "a list" if isinstance(data, list) else "a single value"
    return f"{path}:{line}: must have keys at its top, found {found}"


def _read_toml(text: str) -> tuple[dict[str, Any], Place]:
    # The parser comes with the extra of the proxy; the operator reads no TOML.
    from steersman.documents.toml import read_toml

    return read_toml(text)


def _kind_of(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in {".yaml", ".yml"}:
        return "yaml"
    if suffix == ".toml":
        return "toml"
    shown = f"the extension {suffix}" if suffix else "no extension"
    raise DocumentError(path, [f"{path}: has {shown}; the name must end in {ACCEPTED}"])


def _decode(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Malformed(Flaw(0, "is encoded as UTF-16; save it as UTF-8"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise Malformed(
            Flaw(line, f"has the byte 0x{byte:02x}, which is not UTF-8; save the file as UTF-8")
        ) from None
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        code = ord(control[0])
        raise Malformed(Flaw(line, f"has the control character U+{code:04X}; is it a text file?"))
    return text


def _located(path: str, flaw: Flaw) -> str:
    return f"{path}:{flaw.line}: {flaw.message}" if flaw.line else f"{path}: {flaw.message}"


def _whole(path: str | Path, message: str) -> DocumentError:
    return DocumentError(str(path), [f"{path}: {message}"])
