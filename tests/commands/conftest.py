"""A fleet in a directory, and what is printed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.support import Running, engine, fleet, pool, running
from tests.commands.support import Screen


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEERSMAN_DIR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Running]:
    """One RolloutEngine with two engines at rest."""
    with running(tmp_path, fleet(pool("qwen", engine("e0"), engine("e1")))) as there:
        yield there


@pytest.fixture
def directory(there: Running) -> str:
    return str(there.layout.directory)


@pytest.fixture
def screen(capsys: pytest.CaptureFixture[str]) -> Screen:
    return Screen(capsys)
