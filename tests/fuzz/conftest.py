"""One world for all tests of a module: it keeps nothing from one example to the next."""

from collections.abc import Iterator

import pytest

from tests.fuzz.sockets import SocketWorld
from tests.fuzz.world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here runs with ``-m fuzz``, and nothing with ``-m "not fuzz"``."""
    for item in items:
        if "tests/fuzz" in item.path.as_posix():
            item.add_marker(pytest.mark.fuzz)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as world:
        yield world


@pytest.fixture(scope="module")
def socket_world() -> Iterator[SocketWorld]:
    with SocketWorld() as world:
        yield world
