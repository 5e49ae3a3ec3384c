"""A proxy process that may have few files open."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from steersman_sim.engine import SimEngine
from tests.proxy.process import WITHIN, Proxy, proxy, row
from tests.proxy.support import TableFile

FILES = 100
BODY = b'{"text": "a", "sampling_params": {"max_new_tokens": 2}}'
REQUEST = b"POST /generate HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Caller:
    """A client of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def generate(self) -> tuple[int, bool]:
        """The status of a request, and whether the connection is kept."""
        self.writer.write(REQUEST)
        async with asyncio.timeout(WITHIN):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None
            await self.reader.readexactly(int(length[1]))
        return int(head.split()[1]), b"connection: close" not in head.lower()

    def leave(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def callers(served: Proxy, count: int) -> AsyncIterator[list[Caller]]:
    """So many connections."""
    host, port = served.url.removeprefix("http://").split(":")
    made = [Caller(*await asyncio.open_connection(host, int(port))) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.leave()


async def logged(served: Proxy, pattern: str) -> re.Match[str]:
    """Wait for something in the log, which a thread of the proxy writes."""
    async with asyncio.timeout(WITHIN):
        while True:
            found = re.search(pattern, served.process.log)
            if found is not None:
                return found
            await asyncio.sleep(0.01)


async def most(served: Proxy) -> int:
    """The number of clients that the proxy says it has room for."""
    return int((await logged(served, r"room for (\d+) clients at a time"))[1])


async def test_more_clients_than_files(tmp_path: Path, engine: SimEngine) -> None:
    """Those who are in are served, the others wait, and are served when others leave."""
    file = TableFile(tmp_path / "table.yaml", [row(engine)])
    async with proxy(tmp_path, file.path, most_files=FILES) as served:
        room = await most(served)
        assert 10 < room < FILES // 2
        async with callers(served, room) as inside, callers(served, 30) as outside:
            waiting = [asyncio.create_task(one.generate()) for one in outside]
            await logged(served, "no room for another client")
            # The metrics port, and what each request needs, are not at the others' mercy.
            assert await served.status("/readyz") == 200
            assert (await inside[0].generate())[0] == 200
            assert not any(task.done() for task in waiting)
            for one in inside[1:]:
                one.leave()
            assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
        assert "ulimit" in served.process.log
        assert served.process.log.count("no room for another client") == 1
        assert "Traceback" not in served.process.log


async def test_clients_that_keep_their_connections_make_room(
    tmp_path: Path, engine: SimEngine
) -> None:
    """While somebody waits, an answer is the last one of its connection."""
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    async with proxy(tmp_path, file.path, most_files=FILES) as served:
        room = await most(served)
        async with callers(served, 4 * room) as everybody:
            asking = [asyncio.create_task(one.generate()) for one in everybody]
            await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == room)
            file.set("e0", control="active")
            answers = await asyncio.gather(*asking)
        assert {status for status, _ in answers} == {200}
        kept = [is_kept for _, is_kept in answers]
        assert kept.count(False) >= 2 * room
        assert kept.count(True) > 0


async def test_waiting_for_files_costs_nothing(tmp_path: Path, engine: SimEngine) -> None:
    """It looks ten times a second, rather than all the time."""
    file = TableFile(tmp_path / "table.yaml", [row(engine)])
    async with proxy(tmp_path, file.path, most_files=FILES) as served:
        room = await most(served)
        async with callers(served, room + 5):
            await logged(served, "no room for another client")
            before = served.process.cpu_seconds()
            await asyncio.sleep(2)  # the time that is looked at
            assert served.process.cpu_seconds() - before < 1


async def test_a_proxy_that_waits_for_files_leaves_in_good_order(
    tmp_path: Path, engine: SimEngine
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine)])
    config = {"shutdown": {"drain": "100ms", "grace": "30s"}}
    async with proxy(tmp_path, file.path, config=config, most_files=FILES) as served:
        room = await most(served)
        async with callers(served, room + 5):
            await logged(served, "no room for another client")
            served.process.terminate()
            assert (await served.process.end())[0] == 0
        assert "Traceback" not in served.process.log
