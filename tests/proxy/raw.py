"""A client that writes bytes to a whole proxy, and fake engines as rows of its table."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

from tests.http.adapter import Client
from tests.http.fake_engine import FakeEngine
from tests.proxy.support import Rig


def rows(*engines: FakeEngine, **columns: Any) -> list[dict[str, Any]]:
    """A row for each engine, ``e0``, ``e1`` and so on."""
    return [{"id": f"e{n}", "url": engine.url} | columns for n, engine in enumerate(engines)]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A connection to a proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def reset(client: Client) -> None:
    """Leave with RST."""
    linger = struct.pack("ii", 1, 0)
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.writer.transport.abort()


async def sample(world: Rig, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    total = 0.0
    for line in (await world.metrics()).splitlines():
        series, _, value = line.rpartition(" ")
        family, _, rest = series.partition("{")
        if family == name and all(f'{key}="{said}"' in rest for key, said in labels.items()):
            total += float(value)
    return total
