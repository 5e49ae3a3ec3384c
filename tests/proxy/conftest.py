"""Fixtures of the tests that run real processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from steersman_sim.engine import EngineConfig, SimEngine
from tests.proxy.process import row
from tests.proxy.support import TableFile


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    async with SimEngine(EngineConfig(speed=0, weight_version="7")) as started:
        yield started


@pytest.fixture
async def stepped() -> AsyncIterator[SimEngine]:
    """An engine that makes tokens when the test says so."""
    async with SimEngine(EngineConfig(speed=0, weight_version="7", manual=True)) as started:
        yield started


@pytest.fixture
def table(tmp_path: Path, engine: SimEngine) -> TableFile:
    return TableFile(tmp_path / "table.yaml", [row(engine)])
