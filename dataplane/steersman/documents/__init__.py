"""Files that people write: YAML 1.2 and TOML, read with the line of every key.

Everything wrong with a file becomes one :class:`~steersman.errors.DocumentError` whose problems
each name file, line and key. The parsers and pydantic are used in here and in the packages that
define a schema, nowhere else.

The operator and the proxies read files alike, so this is a part of the shared package. It needs
what their extras bring; nothing else in ``steersman`` imports it.
"""

from steersman.documents.document import Document, KeyPath
from steersman.documents.load import (
    load_document,
    parse_document,
    parse_documents,
    read_content,
    source_of,
)
from steersman.documents.model import Model
from steersman.documents.nodes import Node

__all__ = [
    "Document",
    "KeyPath",
    "Model",
    "Node",
    "load_document",
    "parse_document",
    "parse_documents",
    "read_content",
    "source_of",
]
