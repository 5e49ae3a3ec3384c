"""Where the fleet is looked for, and what is said if it is not there or does not answer."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman_operator.client import (
    FleetClient,
    FleetForbidden,
    FleetSilent,
    NoFleet,
    OperatorRefused,
    fleet_directory,
)
from steersman_operator.client import connection as module
from steersman_operator.client.connection import is_held
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.locks import FileLock
from tests.api.support import NoSuch, Running, engine, fleet, pool


@contextlib.contextmanager
def held(directory: Path) -> Iterator[Layout]:
    """A directory in which a `steersman up` runs, and no operator yet."""
    layout = Layout(directory)
    layout.make()
    lock = FileLock(layout.lock)
    assert lock.take()
    try:
        yield layout
    finally:
        lock.release()


@contextlib.contextmanager
def listening(path: Path, *answers: bytes | None) -> Iterator[None]:
    """Answers one connection after the other with these bytes; ``None`` is silence."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(8)
    kept = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            for answer in answers:
                peer, _ = server.accept()
                kept.append(peer)
                if answer is not None:
                    peer.recv(65536)
                    peer.sendall(answer)
                    peer.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        server.close()
        for peer in kept:
            peer.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def answer(body: bytes, *, length: int | None = None) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


# --- which fleet ----------------------------------------------------------------------------------


def test_where_the_fleet_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleet_directory(None) == tmp_path
    monkeypatch.setenv("STEERSMAN_DIR", "/from/environment")
    assert fleet_directory(None) == Path("/from/environment")
    assert fleet_directory("/from/option") == Path("/from/option")


# --- nobody there ---------------------------------------------------------------------------------


def test_no_fleet(tmp_path: Path) -> None:
    with pytest.raises(NoFleet) as found:
        FleetClient(tmp_path).status()
    assert str(found.value) == (
        f"no fleet runs in {tmp_path}; start one with `steersman up -f {tmp_path}`"
    )


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(NoFleet, match="nowhere does not exist; name the directory of a fleet"):
        FleetClient(tmp_path / "nowhere").status()
    (tmp_path / "file").touch()
    with pytest.raises(NoFleet, match="file is not a directory"):
        FleetClient(tmp_path / "file").status()


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with pytest.raises(NoFleet, match="no fleet runs in"):
        FleetClient(long).status()


def test_what_a_fleet_of_yesterday_has_left(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(layout.api))
    server.close()
    layout.lock.write_text(f"{os.getpid()}\n")

    for ask in (FleetClient(tmp_path).status, lambda: next(FleetClient(tmp_path).watch())):
        with pytest.raises(NoFleet):
            ask()


def test_a_fleet_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked(socket.socket):
        def connect(self, _: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(f"{module.__name__}.socket.socket", Locked)
    with pytest.raises(FleetForbidden, match=r"api\.sock: permission denied; the fleet belongs to"):
        FleetClient(tmp_path).status()


def test_whether_a_lock_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    path.write_text("rubbish")
    assert not is_held(path)
    path.write_text("99999999999999999999")
    assert not is_held(path)
    lock = FileLock(path)
    assert lock.take()
    assert is_held(path)
    lock.release()
    assert not is_held(path)
    assert lock.take(), "looking does not lock"
    lock.release()


# --- not there at the moment ----------------------------------------------------------------------


def test_an_operator_that_is_being_restarted_is_waited_for(tmp_path: Path) -> None:
    with held(tmp_path) as layout:
        client = FleetClient(tmp_path)
        result: list[object] = []
        asking = threading.Thread(target=lambda: result.append(client.status()))
        asking.start()
        with listening(layout.api, b"", answer(b'{"pools": [', length=400), answer(b'{"a": 1}')):
            asking.join(20)
        assert result == [{"a": 1}], "neither a closed connection nor half an answer is one"


def test_an_operator_that_does_not_come_back(tmp_path: Path) -> None:
    with held(tmp_path) as layout, pytest.raises(FleetSilent) as found:
        FleetClient(tmp_path, patience=0.2).status()
    assert str(found.value) == (
        f"a fleet runs in {tmp_path}, but not its operator: its socket is not there; "
        f"see {layout.log('operator')}"
    )


def test_an_operator_that_says_nothing(tmp_path: Path) -> None:
    with held(tmp_path) as layout, listening(layout.api, None, None):
        client = FleetClient(tmp_path, patience=0.2)
        with pytest.raises(FleetSilent, match="it does not answer"):
            client.status()
        # A watch with a time limit just ends.
        assert list(client.watch(timeout=0.2)) == []


def test_an_operator_that_falls_silent_within_a_watch(tmp_path: Path) -> None:
    lost: list[str] = []
    line = b'{"a": 1}\n'
    head = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (len(line), line)
    with held(tmp_path) as layout:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(layout.api))
        server.listen(8)
        peers = []

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                peers.append(peer)
                peer.sendall(head + chunk)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        watch = FleetClient(tmp_path, silence=0.2).watch(on_lost=lost.append)
        assert [next(watch), next(watch)] == [{"a": 1}, {"a": 1}], "asked again"
        watch.close()
        thread.join(10)
        for one in (*peers, server):
            one.close()
    assert lost == ["the operator is gone (it does not answer); waiting for it to come back"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000])
def test_what_is_not_understood(tmp_path: Path, body: bytes) -> None:
    with (
        held(tmp_path) as layout,
        listening(layout.api, answer(body)),
        pytest.raises(Exception, match="answered 200 with what is not understood") as found,
    ):
        FleetClient(tmp_path).status()
    assert type(found.value).__module__ == "steersman.errors"


# --- there ----------------------------------------------------------------------------------------


def test_manifests_are_read_on_request_and_by_no_watch_without(there: Running) -> None:
    client = FleetClient(there.layout.directory)
    client.read()
    next(client.watch())
    assert there.fleet.reads == 1
    next(client.watch(read=True))
    assert there.fleet.reads == 2


def test_a_refusal_keeps_its_status_and_words(there: Running) -> None:
    there.fleet.answer = NoSuch("there is no RolloutEngine quen")

    with pytest.raises(OperatorRefused, match="there is no RolloutEngine quen") as found:
        FleetClient(there.layout.directory).edit("quen", verb="pause")
    assert found.value.status == 404


def test_a_fault_of_the_operator(there: Running) -> None:
    there.fleet.hurt = ZeroDivisionError("oh")

    with pytest.raises(FleetSilent, match="failed: a fault of the operator; its log has more"):
        FleetClient(there.layout.directory).status()


def test_a_watch_ends_with_its_time(there: Running) -> None:
    watch = FleetClient(there.layout.directory).watch(timeout=0.3)

    assert [one["pools"][0]["name"] for one in watch] == ["qwen"]


def test_a_watch_takes_a_fleet_of_512_engines(there: Running) -> None:
    there.become(fleet(pool("big", *(engine(f"e{i}", problem="x" * 200) for i in range(512)))))

    with contextlib.closing(FleetClient(there.layout.directory).watch(timeout=20)) as watch:
        assert len(next(status for status in watch if len(status["pools"][0]["engines"]) > 2)) > 0


def test_a_watch_that_is_left_leaves_nothing(there: Running) -> None:
    watch = FleetClient(there.layout.directory).watch()
    next(watch)
    watch.close()

    async def left() -> None:
        import asyncio

        assert there.api is not None
        async with asyncio.timeout(20):
            while there.api.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    there.do(left)
