"""One HTTP exchange over a unix socket, and why it did not come about."""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

from steersman_operator.client.errors import FleetForbidden

MAX_LINE = 64 * 1024 * 1024
"""Bytes of one line of a watch; far beyond any fleet."""

T = TypeVar("T")


class Lost(Exception):
    """Nobody answers now; somebody may in a moment. ``str()`` says what was found."""

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent
        """Whether there was somebody, who did not answer in time."""


class UnixConnection(HTTPConnection):
    """A connection to the socket at ``path``; ``timeout`` in seconds holds for each wait."""

    def __init__(self, path: Path, *, timeout: float) -> None:
        super().__init__("operator", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except PermissionError:
            raise FleetForbidden(
                f"{self._path}: permission denied; the fleet belongs to another user, run the command "
                "as the one who runs `steersman up`"
            ) from None

    def set_timeout(self, seconds: float) -> None:
        """For the next wait."""
        if self.sock is not None:
            self.sock.settimeout(seconds)


def ask(
    connection: UnixConnection, method: str, path: str, body: dict[str, Any] | None = None
) -> HTTPResponse:
    """Send a request and receive the head of its answer.

    :raises Lost: if nobody answers.
    :raises FleetForbidden: if the socket may not be opened.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}

    def exchange() -> HTTPResponse:
        connection.request(method, path, body=data, headers=headers)
        return connection.getresponse()

    return guarded(exchange)


def guarded(exchange: Callable[[], T]) -> T:
    """Do it, and tell each way to fail by what it means.

    :raises Lost: if nobody answers.
    """
    try:
        return exchange()
    except TimeoutError:
        raise Lost("it does not answer", silent=True) from None
    except (FileNotFoundError, NotADirectoryError):
        raise Lost("its socket is not there") from None
    except ConnectionRefusedError:
        raise Lost("nobody listens at its socket") from None
    except BlockingIOError as error:
        # What a unix socket says while its queue of connections is full.
        busy = error.errno == errno.EAGAIN
        raise Lost("it accepts no connection", silent=busy) from None
    except (ConnectionError, HTTPException):
        raise Lost("it has closed the connection") from None
    except OSError as error:
        raise Lost(str(error.strerror or error)) from None


def is_held(lock: Path) -> bool:
    """Whether the process that wrote itself into the lock file lives and has it locked.

    Nothing is locked for the look unless such a process lives, so that it cannot get into the way of
    one that is just starting.
    """
    try:
        pid = int(lock.read_text(encoding="ascii"))
        os.kill(pid, 0)
    except PermissionError:
        pass  # it lives, and belongs to somebody else
    except (OSError, ValueError, OverflowError):
        return False
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
