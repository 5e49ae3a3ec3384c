"""A network without sockets: transports that behave as uvloop's do, driven turn by turn.

An example takes no system call, and what the proxy reads at a time is decided by the example alone.
What a kernel adds is left to :mod:`tests.fuzz.sockets`.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

import uvloop

HOST = "10.0.0.1"
PORT = 8000
URL = f"http://{HOST}:{PORT}"

_EOF = object()
_RESET = object()


class Peer(Protocol):
    """The other end of a connection."""

    def data(self, data: bytes) -> None:
        """These bytes have arrived."""
        ...

    def ended(self, *, reset: bool) -> None:
        """The proxy sends nothing more."""
        ...


class Network:
    """Counts what moves, so that a test can wait until nothing does."""

    def __init__(self) -> None:
        self.moves = 0
        self.accept: Callable[[MemoryTransport], Peer] | None = None
        """Makes the engine's end of a new connection."""


class MemoryLoop(uvloop.Loop):  # type: ignore[misc]
    """uvloop, but connections to :data:`HOST` are made of memory."""

    network: Network | None = None

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], Any], host: Any = None, port: Any = None, **more: Any
    ) -> tuple[Any, Any]:
        network = self.network
        if host != HOST or network is None:
            made: tuple[Any, Any] = await super().create_connection(factory, host, port, **more)
            return made
        await asyncio.sleep(0)
        if network.accept is None:
            raise ConnectionRefusedError(111, "Connection refused")
        transport = MemoryTransport(self, network, factory())
        transport.peer = network.accept(transport)
        transport.begin()
        return transport, transport.get_protocol()


class MemorySocket:
    """What protocols ask of a transport's socket."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self) -> None:
        self.resets = False
        """Whether closing sends RST."""
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._left = False

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.resets = struct.unpack("ii", value) == (1, 0)

    def getsockopt(self, *_: int) -> int:
        return 0

    def fileno(self) -> int:
        """A real one, made for whoever wants to look whether the peer is there."""
        if self._pair is None:
            self._pair = socket.socketpair()
            if self._left:
                self._pair[1].close()
        return self._pair[0].fileno()

    def peer_left(self) -> None:
        self._left = True
        if self._pair is not None:
            self._pair[1].close()

    def close(self) -> None:
        if self._pair is not None:
            for end in self._pair:
                end.close()

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    getsockname = getpeername


class MemoryTransport(asyncio.Transport):
    """The proxy's end of a connection.

    Like uvloop's: what is written is kept as the object that it is until the turn ends (so that a
    buffer written and then changed shows), reads may come one after the other without a turn in
    between, what waits while reading is paused comes in one piece.
    """

    peer: Peer

    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: Network, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self._loop = loop
        self._network = network
        self._protocol = protocol
        self._socket = MemorySocket()
        self._out: list[bytes | bytearray | memoryview] = []
        self._flushing = False
        self._in: list[Any] = []
        self._pumping = False
        self._reading = True
        self._closing = False
        self._gone = False
        self._half_closed = False
        self._told = False
        self._write_paused = False
        self._high = 65536
        self.window: int | None = None
        """Bytes that the peer takes now; ``None`` for all."""

    def begin(self) -> None:
        self._protocol.connection_made(self)

    # --- The other end's side ---

    def deliver(self, data: bytes) -> None:
        """The peer has written."""
        if data:
            self._arrive(data)

    def deliver_eof(self) -> None:
        """The peer has sent FIN."""
        self._arrive(_EOF)

    def deliver_reset(self) -> None:
        """The peer has sent RST; what came before can still be read."""
        self._arrive(_RESET)

    def open_window(self, size: int | None) -> None:
        """The peer takes so many more bytes."""
        self.window = size
        self._flush()

    def _arrive(self, item: object) -> None:
        if not self._gone:
            self._network.moves += 1
            self._in.append(item)
            if item in (_EOF, _RESET):
                self._socket.peer_left()
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping and self._in and (self._reading or self._in[0] is _RESET):
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        while self._in and not self._gone:
            if self._in[0] is _RESET:
                self._in.clear()
                self._closing = True
                self._lost(ConnectionResetError(104, "Connection reset by peer"))
            elif not self._reading or self._closing:
                return
            elif self._in[0] is _EOF:
                self._in.pop(0)
                if not self._protocol.eof_received():  # type: ignore[attr-defined]
                    self.close()
            else:
                self._network.moves += 1
                self._give(self._in.pop(0))

    def _give(self, data: bytes) -> None:
        while data and not self._closing:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = memoryview(protocol.get_buffer(-1))
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                data = data[size:]
                protocol.buffer_updated(size)
            else:
                protocol.data_received(data)  # type: ignore[attr-defined]
                return

    # --- The protocol's side ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"socket": self._socket, "peername": ("127.0.0.1", 1), "sockname": (HOST, PORT)}
        return known.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._reading:
            return
        self._reading = True
        cut = next((i for i, item in enumerate(self._in) if not isinstance(item, bytes)), None)
        waiting, rest = self._in[:cut], [] if cut is None else self._in[cut:]
        self._in = ([b"".join(waiting)] if waiting else []) + rest
        self._pump_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._out))

    def write(self, data: Any) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._half_closed:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if _RESET in self._in:
            # Nobody reads, so that it is noticed only now.
            self._in = [_RESET]
            self._pump_soon()
            return
        self._network.moves += 1
        self._out.append(data)
        if self.get_write_buffer_size() > self._high:
            self._flush()
            if self.get_write_buffer_size() > self._high and not self._write_paused:
                self._write_paused = True
                self._protocol.pause_writing()
        self._flush_soon()

    def writelines(self, parts: Any) -> None:
        for part in list(parts):
            self.write(part)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._half_closed:
            self._half_closed = True
            self._network.moves += 1
            self._loop.call_soon(self._flush)

    def _flush_soon(self) -> None:
        if self._out and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        if self._gone:
            return
        if self._half_closed and not self._out:
            self._tell_end()
            return
        data = b"".join(bytes(part) for part in self._out)
        taken = len(data) if self.window is None else min(self.window, len(data))
        self._out = [data[taken:]] if data[taken:] else []
        if self.window is not None:
            self.window -= taken
        if taken:
            self._network.moves += 1
            self.peer.data(data[:taken])
        if self._write_paused and self.get_write_buffer_size() <= self._high // 4:
            self._write_paused = False
            self._protocol.resume_writing()
        if self._half_closed and not self._out:
            self._tell_end()
        if self._closing and not self._out:
            self._loop.call_soon(self._lost, None)

    def _tell_end(self, *, reset: bool = False) -> None:
        if not self._told:
            self._told = True
            self._network.moves += 1
            self.peer.ended(reset=reset)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._network.moves += 1
            if not self._out:
                self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self._closing = True
        self._out.clear()
        self._loop.call_soon(self._lost, None)

    def _lost(self, error: Exception | None) -> None:
        if self._gone:
            return
        self._gone = True
        self._network.moves += 1
        protocol = self._protocol
        self._tell_end(reset=self._socket.resets)
        protocol.connection_lost(error)
        self._socket.close()
