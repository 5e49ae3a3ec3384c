"""The HTTP tests run on both event loops: asyncio's own, and uvloop as in production."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from steersman.clock import MonotonicClock
from steersman_proxy.http.upstream import UpstreamPool
from tests.http import adapter as rigs


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    """An upstream pool on the real clock."""
    pool = UpstreamPool(clock=MonotonicClock())
    yield pool
    await pool.close()


@pytest.fixture(params=rigs.KINDS)
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once with each downstream adapter: every ``adapter_rig`` in it is of that kind."""
    monkeypatch.setattr(rigs, "kind", request.param)
    kind: str = request.param
    return kind
