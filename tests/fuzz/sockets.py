"""The same examples over real sockets, with what only a kernel does: fewer, as they take longer."""

import asyncio
import socket
import struct
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any, cast

from steersman_proxy.settings import AdapterKind
from tests.fuzz.example import Example
from tests.fuzz.memory import Network
from tests.fuzz.strict import Received, read_request
from tests.fuzz.world import (
    AUTHORITY,
    Engine,
    Observed,
    World,
    close,
    left_over,
    record_of,
    rig_of,
    settle,
    turns,
)

ENOUGH = 60
"""Turns without a movement. What is sent over loopback is there at once, so time plays no part."""


class _Socket(asyncio.Protocol):
    """One end of a connection that belongs to the test."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.transport: asyncio.Transport | None = None
        self.ending = "open"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def socket(self) -> Any:
        assert self.transport is not None
        return self.transport.get_extra_info("socket")

    def deliver(self, data: bytes) -> None:
        self._network.moves += 1
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def deliver_eof(self) -> None:
        self._network.moves += 1
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def deliver_reset(self, patience: int = 300) -> None:
        """RST, once what was written has arrived, since it throws the rest away; in so many turns,
        since a proxy that does not read takes nothing.
        """
        self._network.moves += 1
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        queued = transport.get_write_buffer_size()
        if patience and (queued or any(ioctl(self.socket.fileno(), TIOCOUTQ, bytes(4)))):
            asyncio.get_running_loop().call_soon(self.deliver_reset, patience - 1)
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def eof_received(self) -> bool:
        self._network.moves += 1
        self.ending = "fin"
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.moves += 1
        if exc is not None:
            self.ending = "rst"
        self.transport = None


class _ClientSocket(_Socket):
    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.read = bytearray()

    def data_received(self, data: bytes) -> None:
        self._network.moves += 1
        self.read += data


class _EngineSocket(_Socket):
    def __init__(self, network: Network, engine: Engine) -> None:
        super().__init__(network)
        self._link = engine.accept(self)

    def data_received(self, data: bytes) -> None:
        self._network.moves += 1
        self._link.data(data)

    def eof_received(self) -> bool:
        super().eof_received()
        self._link.ended(reset=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._link.ended(reset=exc is not None)


class SocketWorld(World):
    """As :class:`World`, with a kernel between the three."""

    async def _run(self, example: Example, kind: AdapterKind) -> Observed:
        self.complaints.found.clear()
        loop, network = self.loop, Network()
        engine = Engine(loop, example, b"")
        upstream = await loop.create_server(lambda: _EngineSocket(network, engine), "127.0.0.1", 0)
        authority = f"127.0.0.1:{_port(upstream)}"
        engine.authority = authority.encode()
        tasks = len(asyncio.all_tasks())
        rig = rig_of(example, kind, f"http://{authority}")
        server = await loop.create_server(rig.adapter.protocol, "127.0.0.1", 0)
        client = _ClientSocket(network)
        await loop.create_connection(lambda: client, "127.0.0.1", _port(server))
        for piece in example.client:
            client.deliver(piece)
            await turns(max(3, example.gap))  # so that each piece is a read of its own
        leave = client.deliver_eof if example.leave.startswith("fin") else client.deliver_reset
        if example.leaves_early:
            leave()
        await settle(network, engine, enough=ENOUGH)
        ended, answers = client.ending, bytes(client.read)
        leave()
        await settle(network, engine, enough=ENOUGH)
        deaf = any(
            one.transport is not None and not one.transport.is_reading()
            for one in rig.adapter.connections
        )
        faults = [] if deaf else left_over(rig)
        if client.transport is not None:
            client.transport.abort()
        server.close()
        upstream.close()
        received = tuple(engine.received)
        engine.leave()
        await settle(network, engine, enough=ENOUGH)
        faults += await close(rig)
        await settle(network, engine, enough=ENOUGH)
        if left := len(asyncio.all_tasks()) - tasks:
            faults.append(f"{left} tasks are left")
        return Observed(
            requests=tuple(_renamed(one, engine.authority) for one in received),
            answers=answers.replace(engine.authority, AUTHORITY),
            ended=ended,
            records=tuple(map(record_of, rig.recorder.records)),
            deaf=deaf,
            faults=(*engine.faults, *faults, *self.complaints.found),
        )


def _port(server: Any) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def _renamed(received: Received, authority: bytes) -> Received:
    """The request as an engine at the address of :mod:`tests.fuzz.memory` would have got it."""
    read = read_request(received.raw.replace(authority, AUTHORITY, 1), authority=AUTHORITY)
    assert read is not None
    return read[0]
