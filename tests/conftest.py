"""What every test gets: the leak watch, free ports and the Hypothesis profiles.

The leak watch is automatic. A proxy that forgets one task or one socket per request works in every
demo and dies after a day in production; so an async test that leaves either behind fails, even if
all its assertions held.
"""

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pytest_asyncio import is_async_test

pytest_plugins = ["pytester"]

# `ci` is the default everywhere: the same examples on every run, so that a red test is red for
# everybody. `make search` looks for new ones; what it finds becomes an explicit example.
# No deadlines: the time of one example says nothing on a shared machine.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "search", derandomize=False, deadline=None, max_examples=20_000, print_blob=True
)
settings.load_profile("ci")

LEAK_GRACE = 1.0
"""Seconds that closing transports and cancelled tasks get to finish after a test."""

_call_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failed test: what it left behind is a consequence, not a second failure."""
    report = yield
    if report.failed:
        item.stash[_call_failed] = True
    return report


@pytest.fixture
async def _loop_of_the_test() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test if tasks or sockets are there at its end that were not there before.

    Set up before the test's other fixtures, so it is taken down after them. Synchronous tests do not
    pay for an event loop. Both looks are taken while the loop stands still: uvloop has a pair of
    sockets of its own whenever it runs, a new one each time.
    """
    if not is_async_test(request.node):
        yield
        return
    loop: asyncio.AbstractEventLoop = request.getfixturevalue("_loop_of_the_test")
    tasks_before = asyncio.all_tasks(loop)
    sockets_before = open_sockets()
    yield
    leaks: list[str] = []
    if not request.node.stash.get(_call_failed, False):
        leaks = leaks_after(loop, tasks=tasks_before, sockets=sockets_before)
    left = asyncio.all_tasks(loop) - tasks_before
    leaks += [f"task {task} ignores its cancellation" for task in end_tasks(loop, left)]
    if leaks:
        pytest.fail("the test leaked:\n  " + "\n  ".join(sorted(leaks)), pytrace=False)


def leaks_after(
    loop: asyncio.AbstractEventLoop,
    *,
    tasks: "set[asyncio.Task[Any]]",
    sockets: set[tuple[int, int, int]],
) -> list[str]:
    """What is there now and was not among ``tasks`` and ``sockets``, after the grace time."""
    deadline = time.monotonic() + LEAK_GRACE
    pause = 0.0
    while True:
        new_tasks = asyncio.all_tasks(loop) - tasks
        new_sockets = open_sockets() - sockets
        if time.monotonic() >= deadline or not (new_tasks or new_sockets):
            break
        # The first rounds only let the loop turn; most leftovers are gone after one or two.
        loop.run_until_complete(asyncio.sleep(pause))
        pause = min(0.05, pause + 0.002)
    return [f"task {describe_task(task)}" for task in new_tasks] + [
        f"socket {describe_socket(descriptor)}" for descriptor, _, _ in sorted(new_sockets)
    ]


def end_tasks(loop: asyncio.AbstractEventLoop, left: "set[asyncio.Task[Any]]") -> list[str]:
    """Cancel the tasks that a test left behind; describe those that do not end.

    asyncio's runner would wait for them without a limit, after the test's own time limit has struck
    already. It does not see a task that is not registered any more.
    """
    if not left:
        return []
    for task in left:
        task.cancel()
    _, stubborn = loop.run_until_complete(asyncio.wait(left, timeout=LEAK_GRACE))
    for task in stubborn:
        asyncio.tasks._unregister_task(task)
    return [describe_task(task) for task in stubborn]


def open_sockets() -> set[tuple[int, int, int]]:
    """The sockets of this process as (descriptor, device, inode).

    With the inode, a descriptor number that was closed and taken again is not mistaken for the old
    one.
    """
    found = set()
    for entry in Path("/dev/fd").iterdir():
        descriptor = int(entry.name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # the descriptor of the listing itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((descriptor, status.st_dev, status.st_ino))
    return found


def unnamed_pairs(sockets: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """Those of the sockets that ``socketpair()`` made."""
    found = set()
    for one in sockets:
        with socket.socket(fileno=os.dup(one[0])) as duplicate:
            if duplicate.family == socket.AF_UNIX and duplicate.getsockname() == "":
                found.add(one)
    return found


def describe_task(task: "asyncio.Task[Any]") -> str:
    """Name, coroutine and the line where it waits."""
    frames = task.get_stack(limit=1)
    place = f" at {frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}){place}"


def describe_socket(descriptor: int) -> str:
    """Both ends of a socket, as far as it has them."""
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        here = duplicate.getsockname()
        try:
            there = f"connected to {duplicate.getpeername()!r}"
        except OSError:
            there = "not connected"
    return f"fd {descriptor} {here!r} {there}"


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now.

    Prefer port 0 and asking the server for what it got; this is for programs that must be told.
    """
    return _free_ports(1)[0]


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """``free_ports(n)``: as many different ports, like :func:`free_port`."""
    return _free_ports


def _free_ports(count: int) -> list[int]:
    """Held open together while they are chosen, so that they differ."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()
