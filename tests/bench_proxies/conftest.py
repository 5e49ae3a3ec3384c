"""The compiled pair, and a server that answers every request with the same bytes."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.proxies.pair import Engines, NoCompilerError, Pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """On a machine without a C compiler these tests are left out; CI has one."""
    try:
        return Pair(tmp_path_factory.mktemp("pair"), core=None)
    except NoCompilerError as why:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(why))


@pytest.fixture
def engines(pair: Pair) -> Iterator[Engines]:
    with pair.engines(2) as running:
        yield running


class Parrot:
    """Answers each request with the same bytes, and keeps what it was asked."""

    def __init__(self, answer: bytes, *, closes: bool = False) -> None:
        self.heads: list[bytes] = []
        self._answer = answer
        self._closes = closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as lines:
                if not self._talk(connection, lines):
                    return

    def _talk(self, connection: socket.socket, lines) -> bool:
        """Until the connection ends; whether another one should be taken."""
        try:
            while first := lines.readline():
                if first.startswith(b"STOP"):
                    return False
                head, length = first, 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    head += line
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                lines.read(length)
                self.heads.append(head)
                connection.sendall(self._answer)
                if self._closes:
                    break
        except OSError:
            pass
        return True

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"STOP / HTTP/1.1\r\n\r\n")
            self._thread.join(10)
        self._listener.close()


@pytest.fixture
def parrot() -> Iterator[type[Parrot]]:
    """``parrot(answer)``; closed at the end."""
    made: list[Parrot] = []

    class Kept(Parrot):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    yield Kept
    for one in made:
        one.close()


@pytest.fixture
def top() -> Path:
    return Path(__file__).parents[2]
