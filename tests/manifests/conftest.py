"""A directory whose pool gets weights."""

from pathlib import Path

import pytest

from tests.manifests.refitting import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)
