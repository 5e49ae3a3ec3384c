"""The HTTP tests run on both event loops: asyncio's own, and uvloop as in production."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from steersman.clock import MonotonicClock
from steersman_proxy.http.upstream import UpstreamPool


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    """An upstream pool on the real clock."""
    pool = UpstreamPool(clock=MonotonicClock())
    yield pool
    await pool.close()
