"""What a client's socket tells that no event loop does: what was not taken, and who has left."""

import asyncio
import select
import socket
import sys
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ


def untaken(transport: asyncio.WriteTransport) -> int:
    """Bytes that the client has not taken, here and in the kernel.

    The kernel's count matters: it asks for more only once a third of its megabytes is gone, which
    takes a slow client a while.
    """
    size = transport.get_write_buffer_size()
    with suppress(OSError):
        queued = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        size += int.from_bytes(queued, sys.byteorder)
    return size


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has closed its end, found out without reading."""
    poll = select.poll()
    try:
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    except (OSError, ValueError):
        return True
    return bool(poll.poll(0))


def set_tail_limit(transport: asyncio.BaseTransport, *, seconds: float) -> None:
    """Let the kernel give up a client that takes nothing for so long, whatever we are doing."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
