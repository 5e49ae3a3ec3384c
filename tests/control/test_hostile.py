"""Peers that are no proxies: the server counts them, turns them away, and serves the others."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.control import (
    MAX_TABLE_FRAME,
    Ack,
    FromOperator,
    Hello,
    Reject,
    RejectCode,
    Snapshot,
    Welcome,
    decode_from_operator,
    encode,
)
from steersman.table import Epoch
from steersman_operator.fleet.events import ProxyRef
from tests.control.support import TIMEOUT, Journal, World, row, table, until


class Stranger:
    """A DEALER socket that sends what it likes."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket

    async def says(self, *frames: bytes) -> None:
        await self._socket.send_multipart(list(frames))

    async def hears(self) -> FromOperator:
        async with asyncio.timeout(TIMEOUT):
            return decode_from_operator(await self._socket.recv())


@asynccontextmanager
async def stranger(endpoint: str, *, kind: int = zmq.DEALER) -> AsyncIterator[Stranger]:
    context = zmq.asyncio.Context()
    socket = context.socket(kind)
    socket.linger = 0
    socket.connect(endpoint)
    try:
        yield Stranger(socket)
    finally:
        socket.close()
        context.term()


async def still_serves(place: World, journal: Journal, endpoint: str) -> None:
    client = await place.client(endpoint, uid="honest", boot="honest", insecure=True)
    await journal.until("acked", "honest")
    await client.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", b"hello", b"\xff" * 100, encode(Hello(1, 1, "p", "b"))[:-1], b"\x91" * 5000],
)
async def test_a_bad_frame_is_counted_and_refused(
    place: World, journal: Journal, content: bytes
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(content)
        answer = await peer.hears()

    assert isinstance(answer, Reject)
    assert answer.code is RejectCode.MALFORMED
    assert server.stats.bad_frames == 1
    await still_serves(place, journal, server.endpoints[0])


async def test_a_bad_frame_within_a_session_ends_it(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(encode(Hello(1, 1, "p", "b")))
        assert isinstance(await peer.hears(), Welcome)
        await peer.says(b"\xc1")
        assert isinstance(await peer.hears(), Reject)

    await journal.until("lost", "p")
    assert server.stats.sessions == ()


@pytest.mark.parametrize("frames", [2, 3, 1000])
async def test_a_message_of_several_frames_is_none(
    place: World, journal: Journal, frames: int
) -> None:
    server = await place.server(journal)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(*[encode(Hello(1, 1, "p", "b"))] * frames)
        answer = await peer.hears()

    assert isinstance(answer, Reject)
    assert journal.entries == []


async def test_a_long_frame_is_refused_and_a_giant_one_ends_the_connection(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(b"\xc1" * (2 * 1024**2))
        assert isinstance(await peer.hears(), Reject)
        await peer.says(encode(Hello(1, 1, "p", "b")))
        await journal.until("joined", "p")
        await peer.says(bytes(MAX_TABLE_FRAME + 1))
        await journal.until("lost", "p")

    await still_serves(place, journal, server.endpoints[0])


async def test_bytes_that_are_no_zeromq_harm_nobody(place: World, journal: Journal) -> None:
    server = await place.server(journal, "tcp://127.0.0.1:*", insecure=True)
    server.publish(table(row("a")), urgent=True)
    port = int(server.endpoints[0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await still_serves(place, journal, server.endpoints[0])


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_sequence_of_frames_leaves_a_server_that_serves(frames: list[bytes]) -> None:
    from tests.control.wire import Wire

    wire = Wire()
    wire.publish(table(row("a")))
    wire.hello(b"x")
    for frame in frames:
        wire.hub.received(b"x", frame, address=None)
    session = wire.hello(b"p")
    wire.ack(b"p", session)

    assert ("p", "1.1") in wire.journal.of("acked")


async def test_another_kind_of_socket_is_no_peer(place: World, journal: Journal) -> None:
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    async with stranger(server.endpoints[0], kind=zmq.REQ) as peer:
        await peer.says(b"hello")
        await until(lambda: server.stats.bad_frames == 1, "the count")
    await still_serves(place, journal, server.endpoints[0])


def only(uid: str, address: str | None) -> Callable[[ProxyRef, str | None], bool]:
    return lambda asked, seen: (asked.uid, seen) == (uid, address)


async def test_a_peer_must_connect_from_the_address_of_the_pod_that_it_claims_to_be(
    place: World, journal: Journal
) -> None:
    server = await place.server(
        journal, "tcp://127.0.0.1:*", insecure=True, check_peer=only("honest", "127.0.0.1")
    )
    server.publish(table(row("a")), urgent=True)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(encode(Hello(1, 1, "somebody-else", "b")))
        answer = await peer.hears()

    assert isinstance(answer, Reject)
    assert answer.code is RejectCode.UNAUTHORISED
    assert "127.0.0.1" in answer.detail
    assert journal.entries == []
    await still_serves(place, journal, server.endpoints[0])


async def test_from_another_address_even_the_right_name_is_refused(
    place: World, journal: Journal
) -> None:
    server = await place.server(
        journal, "tcp://127.0.0.1:*", insecure=True, check_peer=only("pod", "10.9.9.9")
    )
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(encode(Hello(1, 1, "pod", "b")))
        answer = await peer.hears()

    assert isinstance(answer, Reject)
    assert answer.code is RejectCode.UNAUTHORISED


async def test_a_local_peer_has_no_address(place: World, journal: Journal) -> None:
    server = await place.server(journal, check_peer=only("honest", None))
    server.publish(table(row("a")), urgent=True)

    await still_serves(place, journal, server.endpoints[0])


async def test_a_local_socket_is_for_its_user_alone(place: World, journal: Journal) -> None:
    await place.server(journal)

    (path,) = place.directory.glob("*.sock")
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_proxy_that_does_not_read_has_one_table_outstanding_and_then_the_latest(
    place: World, journal: Journal
) -> None:
    server = await place.server(journal, heartbeat=30.0)
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(encode(Hello(1, 1, "slow", "b")))
        await journal.until("joined", "slow")
        rows = [row(f"engine-{n}") for n in range(2000)]
        for seq in range(1, 40):
            server.publish(table(*rows, seq=seq), urgent=True)
        assert server.stats.snapshots == 1

        welcome = await peer.hears()
        assert isinstance(welcome, Welcome)
        first = await peer.hears()
        assert isinstance(first, Snapshot)
        assert first.table.epoch == Epoch(1, 1)
        await peer.says(encode(Ack(welcome.session, Epoch(1, 1), first.digest)))
        second = await peer.hears()

    assert isinstance(second, Snapshot)
    assert second.table.epoch == Epoch(1, 39)
    assert server.stats.snapshots == 2
