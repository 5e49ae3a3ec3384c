"""Where operators may be: addresses as they are configured, and what their names stand for now.

Operators are replicas behind a headless Service, whose name resolves to all of them. Each gets a
socket of its own: through one socket for all, messages would go to them in turns.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

RESOLVE_EVERY = 5.0
"""Seconds between two looks at the names."""


def checked_address(text: str) -> str:
    """The address, if it is one.

    :raises ValueError: if it is not.
    """
    if text.startswith("ipc://") and len(text) > len("ipc://"):
        return text
    host, port = _split(text)
    if not host or not 0 < port < 65536:
        raise ValueError(_problem(text))
    return text


def is_named(address: str) -> bool:
    """Whether the address has a name that must be resolved."""
    if address.startswith("ipc://"):
        return False
    try:
        ipaddress.ip_address(_split(address)[0])
    except ValueError:
        return True
    return False


async def resolve(address: str) -> frozenset[str]:
    """All addresses that a named one stands for; of a dual-stack host both.

    :raises OSError: if the name cannot be resolved.
    """
    host, port = _split(address)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(
        f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}"
        for name in _hosts(entry[4] for entry in found)
    )


def _hosts(places: Iterable[tuple[object, ...]]) -> set[str]:
    return {str(place[0]) for place in places}


def _split(address: str) -> tuple[str, int]:
    """Host and port of a ``tcp://`` address.

    :raises ValueError: if it is not of that form.
    """
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise ValueError(_problem(address))
    return host.removeprefix("[").removesuffix("]"), int(port)


def _problem(text: str) -> str:
    return f"must be ipc:///path/to/socket or tcp://host:port, found {text[:80]!a}"
