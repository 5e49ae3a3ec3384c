"""The corpus: examples in files, by what must come of them.

``clients`` and ``regular`` are served, ``refused`` is, and ``odd`` is what two careful readers may
see differently, kept because it once went wrong.
"""

from pathlib import Path
from typing import NamedTuple

from tests.fuzz.example import Example, load

FOLDER = Path(__file__).parent / "corpus"


class Entry(NamedTuple):
    folder: str
    name: str
    example: Example

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"


def entries() -> list[Entry]:
    """All of it, by name."""
    paths = sorted(FOLDER.glob("*/*.txt"))
    return [Entry(path.parent.name, path.stem, load(path.read_text())) for path in paths]
