"""The local API on a real unix socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from steersman_operator.api.local import LocalApi
from tests.api.asking import STATUS
from tests.api.support import FakeFleet, serving


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "api.sock"


@pytest.fixture
def there() -> FakeFleet:
    return FakeFleet(STATUS)


@pytest.fixture
async def api(there: FakeFleet, socket: Path) -> AsyncIterator[LocalApi]:
    async with serving(there, socket) as api:
        yield api


@pytest.fixture
async def http(api: LocalApi, socket: Path) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(socket), limit=0)
    async with aiohttp.ClientSession("http://operator", connector=connector) as session:
        yield session
