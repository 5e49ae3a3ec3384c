"""Accepting as many clients as there are files for."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from steersman_proxy.http import accepting
from steersman_proxy.http.accepting import Acceptor
from tests.http.client import until


class Echo(asyncio.Protocol):
    """Says back what it hears; busy once it has heard ``busy``."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.transport: asyncio.Transport | None = None
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self._world.clients.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._world.clients.remove(self)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.busy = data == b"busy"
        self.transport.write(data)

    def close_if_idle(self) -> bool:
        if self.busy or self.transport is None:
            return False
        self.transport.close()
        return True


class Failing(socket.socket):
    """A socket whose ``accept`` fails as often as it is told to."""

    failures: list[int]
    asked = 0

    def accept(self):
        self.asked += 1
        if self.failures:
            number = self.failures.pop()
            raise OSError(number, errno.errorcode[number])
        return super().accept()


class World:
    """An acceptor and whom it has let in."""

    def __init__(self) -> None:
        self.clients: list[Echo] = []
        self.crowded: list[bool] = []
        self.listening = Failing(socket.AF_INET, socket.SOCK_STREAM)
        self.listening.failures = []
        self.listening.bind(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.acceptor = Acceptor(
            self.listening,
            lambda: Echo(self),
            backlog=128,
            clients=lambda: self.clients,
            on_crowded=self.crowded.append,
        )


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    world = World()
    await world.acceptor.start_serving()
    try:
        yield world
    finally:
        await world.acceptor.stop()
        for client in world.clients:
            assert client.transport is not None
            client.transport.abort()


class Caller:
    """A client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo(self, word: bytes) -> bool:
        """Whether it is served; ``False`` if the connection was closed."""
        self.writer.write(word)
        try:
            return await self.reader.readexactly(len(word)) == word
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def callers(world: World, count: int) -> AsyncIterator[list[Caller]]:
    made: list[Caller] = []
    try:
        for _ in range(count):
            made.append(Caller(*await asyncio.open_connection("127.0.0.1", world.port)))  # noqa: PERF401 (those made so far are closed)
        yield made
    finally:
        for caller in made:
            caller.leave()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files for so many clients, and frequent looks."""
    others = accepting._open_files() + 4
    monkeypatch.setattr(accepting, "_open_files", lambda: others)
    monkeypatch.setattr(accepting, "_limit", lambda: others + accepting.RESERVED + 6)
    monkeypatch.setattr(accepting, "LOOK_EVERY", 0.01)
    return 3


async def test_many_clients_are_accepted() -> None:
    async with serving() as world, callers(world, 3 * accepting.AT_A_TIME) as made:
        assert await asyncio.gather(*(one.echo(b"a") for one in made)) == [True] * len(made)
        assert world.crowded == []
        for client in world.clients:
            assert client.transport is not None
            sock = client.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_no_more_are_accepted_than_there_are_files_for(
    room: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as world, callers(world, room + 2) as made:
        assert world.acceptor.most == room
        assert all([await one.echo(b"busy") for one in made[:room]])
        waiting = [asyncio.create_task(one.echo(b"busy")) for one in made[room:]]
        await until(lambda: world.acceptor.paused)
        assert len(world.clients) == room

        for task, leaving in zip(waiting, made, strict=False):
            assert not task.done()
            assert world.crowded == [True]
            leaving.leave()
            assert await task
        assert len(world.clients) == room
        await until(lambda: world.crowded == [True, False])
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "no room for another client (3 are there)" in errors[0].getMessage()
    assert "ulimit" in errors[0].getMessage()


async def test_those_who_wait_are_not_looked_for_all_the_time(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "LOOK_EVERY", 3600.0)
    async with serving() as world, callers(world, room + 1) as made:
        assert all([await one.echo(b"busy") for one in made[:room]])
        await until(lambda: world.acceptor.paused)
        asked = world.listening.asked
        for _ in range(100):
            await asyncio.sleep(0)
        assert world.listening.asked == asked


async def test_clients_that_do_nothing_make_room(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "IDLE_ENOUGH", 0.05)
    async with serving() as world, callers(world, room) as made:
        assert await made[0].echo(b"busy")
        assert await made[1].echo(b"idle")
        await asyncio.sleep(0.1)  # longer than is enough
        assert await made[2].echo(b"idle")
        async with callers(world, 1) as (new,):
            assert await new.echo(b"a")
        # The one that was idle for longest has gone, and only that.
        assert await made[1].reader.read() == b""
        assert await made[0].echo(b"busy")
        assert await made[2].echo(b"busy")


async def test_clients_that_do_nothing_may_stay_while_nobody_waits(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "IDLE_ENOUGH", 0.0)
    async with serving() as world, callers(world, room) as made:
        assert all([await one.echo(b"idle") for one in made])
        await asyncio.sleep(0.05)  # several looks, if there were any
        assert all([await one.echo(b"idle") for one in made])


async def test_those_who_have_just_come_are_not_idle(room: int) -> None:
    """Their request is on its way. They would have to be idle for seconds."""
    async with serving() as world, callers(world, room + 1) as made:
        await until(lambda: world.acceptor.paused)
        await asyncio.sleep(0.05)  # several looks
        assert all([await one.echo(b"late") for one in made[:room]])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_when_the_system_has_no_file_left_it_is_asked_again(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "LOOK_EVERY", 0.01)
    async with serving() as world:
        world.listening.failures = [number] * 5
        async with callers(world, 1) as (caller,):
            assert await caller.echo(b"a")
        assert world.listening.failures == []
    errors = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert errno.errorcode[number] in errors[0]


async def test_the_log_says_so_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(accepting, "SAY_EVERY", 0.0)
    async with serving() as world:
        world.listening.failures = [errno.EMFILE] * 3
        async with callers(world, 1) as (caller,):
            assert await caller.echo(b"a")
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) == 3


async def test_a_client_that_leaves_before_its_turn_is_nobodys_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "steersman.http")
    async with serving() as world:
        world.listening.failures = [errno.ECONNABORTED, errno.EPROTO]
        async with callers(world, 2) as made:
            assert all([await one.echo(b"a") for one in made])
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_a_fault_that_does_not_end_does_not_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "LOOK_EVERY", 3600.0)
    async with serving() as world:
        world.listening.failures = [errno.EPERM] * 1000
        async with callers(world, 1):
            await until(lambda: world.acceptor.paused)
            assert world.listening.asked == accepting.AT_A_TIME


async def test_the_limit_may_be_raised_while_it_runs(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as world, callers(world, room + 1) as made:
        assert all([await one.echo(b"busy") for one in made[:room]])
        await until(lambda: world.acceptor.paused)
        before = accepting._limit()
        monkeypatch.setattr(accepting, "_limit", lambda: before + 2)
        assert await made[room].echo(b"busy")


async def test_little_room_is_told_at_the_start(
    room: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving():
        (record,) = caplog.records
        assert "room for 3 clients at a time" in record.getMessage()


async def test_who_was_accepted_stays_after_closing() -> None:
    async with serving() as world, callers(world, 1) as (made,):
        assert await made.echo(b"a")
        world.acceptor.close()
        world.acceptor.close()
        assert await made.echo(b"b")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", world.port)


async def test_closing_while_there_is_no_room(room: int) -> None:
    async with serving() as world, callers(world, room + 1):
        await until(lambda: world.acceptor.paused)
        await world.acceptor.stop()
        await until(lambda: len(world.clients) == room)
        assert not world.acceptor.paused


async def test_those_who_wait_for_an_answer_do_not_keep_the_idle_ones(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as silent, and most of them are silent for longer."""
    monkeypatch.setattr(accepting, "IDLE_ENOUGH", 0.05)
    async with serving() as world, callers(world, room) as made:
        for waiting in made[:-1]:
            assert await waiting.echo(b"busy")
        assert await made[-1].echo(b"idle")
        async with callers(world, 1) as (new,):
            assert await new.echo(b"a")
        assert await made[-1].reader.read() == b""
