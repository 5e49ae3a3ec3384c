"""Ports of a standalone fleet: found free, or kept so that nobody else gets in between."""

import contextlib
import errno
import os
import socket
from collections.abc import Sequence

from steersman.errors import SteersmanError


class PortTaken(SteersmanError):
    """A port cannot be had."""

    code = "port_taken"
    remedy = "End the program that has the port, or choose another with the option that is named."


class SharedPort:
    """One port for several processes, each of which binds it with ``SO_REUSEPORT``.

    The supervisor keeps it bound and never listens. So the port stays this fleet's while all proxies
    are being restarted, and a second fleet cannot mix its proxies with these: the system would
    let them share the port, and clients would get answers of both.
    """

    def __init__(self, host: str, port: int, *, option: str) -> None:
        """Bind; ``port`` 0 finds a free one, and ``option`` is the flag that an error names.

        :raises PortTaken: if somebody else has it, or the address is not this machine's.
        """
        self._socket = _bound(host, port, option=option)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def _bound(host: str, port: int, *, option: str) -> socket.socket:
    family, address = _resolve(host, port, option=option)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Bound without sharing first: only that finds out whether somebody else has the port.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            address = alone.getsockname()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise PortTaken(_sentence(error, host=host, port=port, option=option)) from None
    return made


def check_free(host: str, ports: Sequence[int], *, option: str) -> None:
    """See that ports can be bound.

    :raises PortTaken: names the first that cannot.
    """
    for port in ports:
        family, address = _resolve(host, port, option=option)
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
            except OSError as error:
                raise PortTaken(_sentence(error, host=host, port=port, option=option)) from None


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has right now, all different."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            family, address = _resolve(host, 0, option="--metrics-host")
            tried = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                tried.bind(address)
            except OSError as error:
                option = "--metrics-host"
                raise PortTaken(_sentence(error, host=host, port=0, option=option)) from None
            ports.append(int(tried.getsockname()[1]))
        return ports


def _resolve(host: str, port: int, *, option: str) -> tuple[int, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        message = f"{host!r} is not an address of this machine ({error}); see {option}"
        raise PortTaken(message) from None
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _sentence(error: OSError, *, host: str, port: int, option: str) -> str:
    where = f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where} is in use by another program; end it, or choose another with {option}"
        case errno.EACCES:
            return f"{where} may not be bound by this user; choose a port from 1024 with {option}"
        case _:
            reason = os.strerror(error.errno or 0)
            return f"{where} cannot be bound: {reason}; see {option}"
