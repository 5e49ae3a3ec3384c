"""The leak watch of ``tests/conftest.py`` must itself be trusted: what it catches, what it allows."""

import re
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LOOP = """
import {module}


def pytest_asyncio_loop_factories():
    return {{"{module}": {module}.new_event_loop}}
"""

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    default:unclosed resource <:ResourceWarning
"""

CLEAN = """
import asyncio
import socket

import pytest
from hypothesis import given, strategies as st


async def echo(reader, writer):
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@pytest.fixture
async def server():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


async def test_server_of_a_fixture_is_not_a_leak(server):
    reader, writer = await asyncio.open_connection(*server)
    writer.write(b"hello\\n")
    assert await reader.readline() == b"hello\\n"
    writer.close()
    await writer.wait_closed()


async def test_task_that_is_about_to_end_gets_its_grace():
    test_task_that_is_about_to_end_gets_its_grace.kept = asyncio.create_task(asyncio.sleep(0.05))


async def test_transport_that_is_closing_gets_its_grace(server):
    _, writer = await asyncio.open_connection(*server)
    writer.close()


kept = []


def test_sync_tests_are_not_watched():
    kept.append(socket.socketpair())


async def test_sockets_from_before_do_not_count():
    pass


def test_close_what_was_kept():
    for one in kept.pop():
        one.close()


@given(st.integers())
async def test_property(number):
    assert number == number


def test_ports(free_port, free_ports):
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert 0 < free_port < 65536
"""

LEAKING = """
import asyncio
import socket

kept = []


async def forever():
    await asyncio.Event().wait()


async def test_task():
    kept.append(asyncio.create_task(forever(), name="the-forgotten"))


async def test_listener():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    kept.append(server)


async def test_plain_socket():
    kept.append(socket.socketpair())


async def test_reused_descriptor():
    old = kept[-1][0]
    number = old.fileno()
    old.close()
    kept.append(socket.socket())
    assert kept[-1].fileno() == number


async def test_failing_test_is_told_once():
    kept.append(asyncio.create_task(forever()))
    raise AssertionError("the real reason")


async def never_ends():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def test_stubborn_task_does_not_hang_the_run():
    kept.append(asyncio.create_task(never_ends(), name="the-stubborn"))
    await asyncio.sleep(0)
    raise AssertionError("the real reason, too")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_allows_what_ends_in_time(pytester: pytest.Pytester, loop: str) -> None:
    result = run(pytester, CLEAN, loop=loop)
    result.assert_outcomes(passed=8)
    assert result.ret == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_fails_what_leaks(pytester: pytest.Pytester, loop: str) -> None:
    result = run(pytester, LEAKING, loop=loop)
    # Four bodies pass and their teardown is the error. The fifth fails by itself, without an error;
    # so does the sixth, but its task would hang the run, which has to be told.
    result.assert_outcomes(passed=4, errors=5, failed=2)
    output = result.stdout.str()
    assert re.search(r"task the-forgotten \(forever\) at .*:\d+", output)
    assert re.search(r"socket fd \d+ \('127\.0\.0\.1', \d+\) not connected", output)
    assert len(re.findall(r"^the test leaked:$", output, re.MULTILINE)) == 5
    assert re.search(r"task the-stubborn \(never_ends\) at .* ignores its cancellation", output)
    assert "the real reason" in output


def run(pytester: pytest.Pytester, source: str, *, loop: str) -> pytest.RunResult:
    """Run tests in a process of their own, whose descriptors are theirs alone."""
    pytester.makeini(SETTINGS)
    conftest = CONFTEST.read_text().replace("LEAK_GRACE = 1.0", "LEAK_GRACE = 0.2")
    pytester.makeconftest(conftest + LOOP.format(module=loop))
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "addopts=")
