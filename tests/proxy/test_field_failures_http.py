"""What went wrong in the field with plain HTTP, over sockets, with each adapter (rows of section C)."""

import asyncio
import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from steersman_proxy.load.breaker import BreakerState
from tests.http.adapter import Answered, post
from tests.http.fake_engine import OK, STREAM, Wire, always, fake_engine
from tests.proxy.process import proxy
from tests.proxy.raw import chunk, connected, reset, rows
from tests.proxy.support import TableFile, running, until

pytestmark = pytest.mark.usefixtures("adapter")

MIB = 2**20
PATHS = (b"/generate", b"/v1/chat/completions", b"/encode")
"""Whose JSON answers are read along, also for their version, and whose are not."""

# --- 21: miles#851, miles#1001, sglang#27523 ---------------------------------------------------------

ANSWER_21 = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n"
    rb'{"a": 1, "b": "\u00e9" }'
)


def assert_as_sent(got: Answered, answer: bytes) -> None:
    """Status, type, length and bytes are the engine's."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert got.head.split(b"\r\n")[0] == head.split(b"\r\n")[0]
    assert got.values(b"content-type") == [b"application/json"]
    assert got.values(b"content-length") == [b"%d" % len(body)]
    assert got.values(b"transfer-encoding") == []
    assert (got.body, got.whole) == (body, True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("request_body", [b"{}", b'{"stream":true}'])
@pytest.mark.parametrize("size", [24, 928_786])
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
async def test_field_failure_21_bytes_and_length_are_the_engine_s(
    tmp_path: Path, path: bytes, request_body: bytes, size: int, status: bytes
) -> None:
    answer = ANSWER_21.replace(b"200 OK", status).replace(b" 24\r\n", b" %d\r\n" % size)
    answer = answer[:-2] + b" " * (size - 24) + answer[-2:]
    async with (
        fake_engine(always(answer)) as engine,
        running(tmp_path, rows(engine)) as world,
        connected(world.app.port) as client,
    ):
        for _ in range(2):  # a wrong length would show in the answer after it
            assert_as_sent(await client.post(request_body, path=path), answer)


# --- 22: production-stack#836 ------------------------------------------------------------------------

EVENTS_22 = b'data: {"x":1}\n\ndata: [DONE]\n\n'


def stored_as_zstd(data: bytes) -> bytes:
    """One frame with one raw block (RFC 8878, 3.1.1)."""
    return b"\x28\xb5\x2f\xfd\x20%c%b%b" % (
        len(data),
        (len(data) << 3 | 1).to_bytes(3, "little"),
        data,
    )


def stored_as_brotli(data: bytes) -> bytes:
    """One uncompressed meta-block and the empty last one (RFC 7932, 9.2)."""
    return (len(data) - 1 << 4 | 1 << 20).to_bytes(3, "little") + data + b"\x03"


PACKED = {
    b"gzip": gzip.compress(EVENTS_22),
    b"zstd": stored_as_zstd(EVENTS_22),
    b"br": stored_as_brotli(EVENTS_22),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("coding", PACKED)
async def test_field_failure_22_what_is_packed_stays_packed_and_says_so(
    tmp_path: Path, path: bytes, asked: bool, coding: bytes
) -> None:
    packed = PACKED[coding]
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: %b\r\n\r\n" % coding)
    async with (
        fake_engine(always(head + chunk(packed) + b"0\r\n\r\n")) as engine,
        running(tmp_path, rows(engine, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        asks = [b"Accept-Encoding: %b" % coding] if asked else []
        got = await client.post(b'{"stream":true}', *asks, path=path)
        assert got.values(b"content-encoding") == [coding]
        assert got.values(b"content-length") == []
        assert (got.body, got.whole) == (packed, True)
        assert got.values(b"x-smg-weight-version") == [b"7"]
        (received,) = engine.received
        assert received.values(b"accept-encoding") == ([coding] if asked else [])


@pytest.mark.parametrize("asked", [True, False])
async def test_field_failure_22_a_packed_json_answer_is_not_unpacked_for_its_stamp(
    tmp_path: Path, asked: bool
) -> None:
    packed = gzip.compress(b'{"meta_info":{"weight_version":"9"}}')
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    answer += b"Content-Length: %d\r\n\r\n%b" % (len(packed), packed)
    async with (
        fake_engine(always(answer)) as engine,
        running(tmp_path, rows(engine, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        got = await client.post(b"{}", *([b"Accept-Encoding: gzip"] if asked else []))
        assert got.values(b"content-encoding") == [b"gzip"]
        assert_as_sent(got, answer)
        assert engine.received[0].values(b"accept-encoding") == ([b"gzip"] if asked else [])


# --- 25: smg#2136, sglang#19524, sglang#39461 --------------------------------------------------------


@pytest.mark.parametrize("leave", ["FIN", "RST"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("head", [True, False], ids=["head sent", "no head"])
async def test_field_failure_25_the_engine_sees_that_the_client_has_left(
    tmp_path: Path, head: bool, stream: bool, leave: str
) -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()
    aborts: list[bytes] = []

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if request.line.startswith("POST /abort_request "):
            aborts.append(request.body)
            await wire.send(OK)
            return
        if head:
            await wire.send(STREAM if stream else ANSWER_21.partition(b"{")[0])
        arrived.set()
        await wire.gone()
        closed.set()

    async with (
        fake_engine(script) as engine,
        running(
            tmp_path, rows(engine, runtime="sglang"), rid_header={"pool": "x-override-rid"}
        ) as world,
        connected(world.app.port) as client,
    ):
        body = json.dumps({"text": "a", "stream": stream, "rid": "a"}).encode()
        await client.send(post(body))
        await arrived.wait()
        if head and stream:
            await client.head()
        assert world.engine("e0").load.requests == 1
        if leave == "RST":
            reset(client)
        else:
            client.writer.close()
        async with asyncio.timeout(1.0):
            await closed.wait()
        await until(lambda: world.engine("e0").load.requests == 0, within=1.0)
        assert world.engine("e0").breaker.failures == 0
        assert world.engine("e0").breaker.state is BreakerState.CLOSED
        # By our id, never by the caller's: engines match ids by prefix.
        await until(lambda: bool(aborts))
        (ours,) = engine.received[0].values(b"x-override-rid")
        assert [json.loads(content)["rid"] for content in aborts] == [ours.decode()]
        assert engine.received[0].body == body


async def test_field_failure_25_without_an_id_of_ours_nothing_is_aborted_by_name(
    tmp_path: Path,
) -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if b'"rid":"a"' not in request.body:
            await wire.send(OK)
            return
        arrived.set()
        await wire.gone()
        closed.set()

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine, runtime="sglang")) as world,
    ):
        async with connected(world.app.port) as client:
            await client.send(post(b'{"text":"a","rid":"a"}', b"x-override-rid: a"))
            await arrived.wait()
        await closed.wait()
        await world.idle()
        async with connected(world.app.port) as client:
            assert (await client.post()).status == 200  # whatever was to come has come by now
        assert [received.line for received in engine.received] == ["POST /generate HTTP/1.1"] * 2


# --- 28: sglang#38714, sglang#38735, sglang#6622, gateway-api-inference-extension#854 -----------------

SIZES = {"1 MiB + 1": MIB + 1, "three images": 17 * MIB // 2, "100 MiB": 100 * MIB}


def json_of(size: int) -> bytes:
    return b'{"text":"%b"}' % (b"x" * (size - 11))


def upload(body: bytes, *, chunked: bool) -> Iterable[bytes]:
    """A POST in parts."""
    if not chunked:
        yield post(b"").replace(b"Content-Length: 0", b"Content-Length: %d" % len(body))
        yield body
        return
    yield post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for start in range(0, len(body), 2**16):
        yield chunk(body[start : start + 2**16])
    yield b"0\r\n\r\n"


class Hashing:
    """Answers ``ok``; keeps size and hash of each body, not the body."""

    def __init__(self) -> None:
        self.received: list[tuple[int, str]] = []

    async def __call__(self, wire: Wire) -> None:
        while True:
            head = await wire.head()
            assert b"transfer-encoding" not in head.lower()
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            digest, left = hashlib.sha256(), size
            while left:
                part = await wire.read(left)
                digest.update(part)
                left -= len(part)
            self.received.append((size, digest.hexdigest()))
            await wire.send(OK)


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
async def test_field_failure_28_what_is_within_the_cap_arrives_unchanged(
    tmp_path: Path, size: int, chunked: bool
) -> None:
    script, body = Hashing(), json_of(size)
    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine)) as world,
        connected(world.app.port) as client,
    ):
        await client.send(*upload(body, chunked=chunked))
        assert (await client.answer()).status == 200
        assert script.received == [(size, hashlib.sha256(body).hexdigest())]


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
async def test_field_failure_28_above_the_cap_413_comes_before_the_upload_ends(
    tmp_path: Path, size: int, chunked: bool
) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        running(tmp_path, rows(engine), max_body_bytes=size - 1) as world,
        connected(world.app.port) as client,
    ):
        *parts, last = upload(json_of(size), chunked=chunked)
        # With a length the head alone says it; of chunks all have come that break the limit.
        await client.send(*parts)
        got = await client.answer()
        assert (got.status, got.error["code"]) == (413, "body_too_large")
        assert got.values(b"connection") == [b"close"]
        assert last
        assert engine.connections == 0


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
async def test_field_failure_28_memory_grows_by_the_body_once(
    tmp_path: Path, adapter: str, chunked: bool
) -> None:
    size = SIZES["100 MiB"]
    script, body = Hashing(), json_of(size)
    async with fake_engine(script) as engine:
        file = TableFile(tmp_path / "table.yaml", rows(engine))
        async with proxy(tmp_path, file.path, config={"listen": {"adapter": adapter}}) as served:
            await served.generate()
            before = peak(served.process.pid)
            async with connected(int(served.url.rpartition(":")[2])) as client:
                await client.send(*upload(body, chunked=chunked))
                assert (await client.answer()).status == 200
            grown = peak(served.process.pid) - before
        assert script.received[-1] == (size, hashlib.sha256(body).hexdigest())
        assert 0.9 * size < grown < 2 * size


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


# --- 31: production-stack#201, vllm-router#158 -------------------------------------------------------

HEADERS_31 = (
    b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"
    b"Proxy-Authorization: z\r\nAuthorization: Bearer k\r\nX-Session-ID: t1\r\n"
    b"x-smg-routing-key: t1\r\nAccept-Encoding: identity\r\nX-data-parallel-rank: 3\r\n"
    b"X-Twice: a\r\nX-Twice: b\r\n"
)
HOP_BY_HOP = (
    (b"Connection", b"X-Hop"),
    (b"X-Hop", b"1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Authenticate", b"Basic"),
    (b"Proxy-Authorization", b"z"),
    (b"TE", b"trailers"),
    (b"Trailer", b"X-Sum"),
    (b"Upgrade", b"h2c"),
)


def only_for(authority: bytes, request: bytes) -> bytes:
    """The answer of an engine that knows itself by one name."""
    status = b"200 OK" if b"\r\nHost: %b\r\n" % authority in request else b"404 Not Found"
    hops = b"".join(b"%b: %b\r\n" % header for header in HOP_BY_HOP)
    return (
        b"HTTP/1.1 %b\r\n%bSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Kept: 1\r\n"
        b"Content-Length: 2\r\n\r\nok" % (status, hops)
    )


@pytest.mark.parametrize("without", [b"", b"Upgrade: h2c\r\n"], ids=["as reported", "no upgrade"])
async def test_field_failure_31_the_engine_s_host_and_nothing_that_is_for_one_hop(
    tmp_path: Path, without: bytes
) -> None:
    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            await wire.send(only_for(engine.url.removeprefix("http://").encode(), request.head))

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine)) as world,
        connected(world.app.port) as client,
    ):
        sent = HEADERS_31.replace(without, b"")
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: rollout.example\r\n%b"
            b"Content-Length: 2\r\n\r\n{}" % sent
        )
        got = await client.answer()
        assert got.status == 200
        (received,) = engine.received
        kept = [
            (name, value)
            for name, value in received.headers
            if name not in (b"Host", b"Content-Length", b"x-request-id")
        ]
        assert kept == [
            (b"Authorization", b"Bearer k"),
            (b"X-Session-ID", b"t1"),
            (b"x-smg-routing-key", b"t1"),
            (b"Accept-Encoding", b"identity"),
            (b"X-data-parallel-rank", b"3"),
            (b"X-Twice", b"a"),
            (b"X-Twice", b"b"),
        ]
        assert received.values(b"content-length") == [b"2"]
        assert received.body == b"{}"
        # And back:
        assert got.values(b"set-cookie") == [b"a=1", b"b=2"]
        assert got.values(b"x-kept") == [b"1"]
        names = {name.lower() for name, _ in got.headers}
        assert not names & {name.lower() for name, _ in HOP_BY_HOP}


@pytest.mark.parametrize(("name", "value"), HOP_BY_HOP, ids=lambda part: part.decode())
async def test_field_failure_31_each_of_them_alone(
    tmp_path: Path, name: bytes, value: bytes
) -> None:
    """One by one, since a head with any of them may take another way than one without."""

    async with (
        fake_engine(always(OK)) as engine,
        running(tmp_path, rows(engine)) as world,
        connected(world.app.port) as client,
    ):
        listed = [b"Connection: X-Hop"] if name == b"X-Hop" else []
        assert (await client.post(b"{}", *listed, name + b": " + value)).status == 200
        (received,) = engine.received
        assert {header for header, _ in received.headers} == {
            b"Host",
            b"Content-Length",
            b"x-request-id",
        }
