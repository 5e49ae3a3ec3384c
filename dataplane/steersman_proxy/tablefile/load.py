"""From a path or a document to a validated :class:`TableFile`."""

from pathlib import Path

from pydantic import ValidationError

from steersman.documents.document import Document
from steersman.documents.load import load_document
from steersman.documents.model import problems_of
from steersman_proxy.tablefile.schema import TableFile
from steersman_proxy.tablefile.uniqueness import collisions


def load_table_file(path: str | Path) -> TableFile:
    """Read a table file.

    :raises DocumentError: with all its problems.
    """
    return read_table_file(load_document(path))


def read_table_file(document: Document) -> TableFile:
    """As :func:`load_table_file`, from a document in memory.

    :raises DocumentError: with all its problems.
    """
    problems = []
    file: TableFile | None = None
    try:
        file = TableFile.model_validate(document.data)
    except ValidationError as error:
        problems = problems_of(error, TableFile)
    problems += collisions(document)
    if file is None or problems:
        raise document.error(problems)
    return file
