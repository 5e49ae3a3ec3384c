"""A directory with a short name: the path of a local socket has at most 107 bytes."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.control.support import Journal, World, world


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ctl") as name:
        yield Path(name)


@pytest.fixture
async def place(short_path: Path) -> AsyncIterator[World]:
    async with world(short_path) as made:
        yield made


@pytest.fixture
async def journal() -> Journal:
    return Journal()
