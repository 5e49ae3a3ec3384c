"""Fixtures of the tests of a whole proxy, in the test's loop or as a real process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from steersman_sim.engine import EngineConfig, SimEngine
from tests.proxy import support
from tests.proxy.process import row
from tests.proxy.support import TableFile


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What is tested with each adapter is tested on the event loop of production."""
    if "adapter" in getattr(item, "fixturenames", ()):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(params=support.ADAPTERS)
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once with each downstream adapter: every proxy made in it has that one."""
    monkeypatch.setattr(support, "adapter", request.param)
    kind: str = request.param
    return kind


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
