"""What an engine gets of a client's request through the aiohttp adapter, and what is refused."""

import tracemalloc

import pytest

from steersman.settings import PoolSettings, Timeouts
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.fake_engine import OK, Wire, always, fake_engine

pytestmark = pytest.mark.usefixtures("adapter")

MIB = 2**20


async def test_row_31_only_end_to_end_headers_reach_the_engine() -> None:
    """production-stack#201, vllm-router#158."""

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            found = request.values(b"host") == [engine.url.removeprefix("http://").encode()]
            status = b"200 OK" if found else b"404 Not Found"
            await wire.send(
                b"HTTP/1.1 " + status + b"\r\nConnection: x-hop\r\nX-Hop: 1\r\n"
                b"Keep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
                b"Content-Length: 2\r\n\r\nok"
            )

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: rollout.example\r\n"
            b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"
            b"Proxy-Authorization: z\r\nAuthorization: Bearer k\r\nX-Session-ID: t1\r\n"
            b"x-smg-routing-key: t1\r\nAccept-Encoding: identity\r\nX-data-parallel-rank: 3\r\n"
            b"Cookie: a=1\r\nCookie: b=2\r\nContent-Length: 2\r\n\r\n{}"
        )
        got = await client.answer()
        assert got.status == 200
        assert [name for name, _ in got.headers][:3] == [
            b"Set-Cookie",
            b"Set-Cookie",
            b"Content-Length",
        ]
        assert got.values(b"set-cookie") == [b"a=1", b"b=2"]
        assert not got.values(b"x-hop") + got.values(b"keep-alive") + got.values(b"connection")
        (request,) = engine.received
        assert request.headers == [
            (b"Host", engine.url.removeprefix("http://").encode()),
            (b"Authorization", b"Bearer k"),
            (b"X-Session-ID", b"t1"),
            (b"x-smg-routing-key", b"t1"),
            (b"Accept-Encoding", b"identity"),
            (b"X-data-parallel-rank", b"3"),
            (b"Cookie", b"a=1"),
            (b"Cookie", b"b=2"),
            (b"x-request-id", b"id-1"),
            (b"Content-Length", b"2"),
        ]


@pytest.mark.parametrize(
    ("target", "arrives"),
    [
        (b"/generate?a=%2F%20&b=c//d", "/generate?a=%2F%20&b=c//d"),
        (b"http://proxy/generate?x", "/generate?x"),
        (b"HTTPS://proxy:1/generate", "/generate"),
    ],
)
async def test_a_target_arrives_as_it_was_sent(target: bytes, arrives: str) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        assert (await client.post(path=target)).status == 200
        assert engine.received[0].line == f"POST {arrives} HTTP/1.1"


@pytest.mark.parametrize(
    "target",
    [b"/nowhere", b"/generate/", b"//generate", b"/%67enerate", b"http://proxy", b"/g\xe9"],
)
async def test_other_targets_are_nobodys(target: bytes) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post(path=target)
        assert got.status in (400, 404)
        assert got.error["type"] == "invalid_request_error"
        assert engine.connections == 0


# --- Bodies -----------------------------------------------------------------------------------------


def chunked(*parts: bytes) -> bytes:
    head = b"POST /generate HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize("size", [0, 1, MIB + 1, int(8.5 * MIB), 100 * MIB])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_row_28_bodies_up_to_the_limit_pass(size: int, framing: str) -> None:
    """sglang#38714, gateway-api-inference-extension#854."""
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]

    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        if framing == "length":
            await client.send(post(body))
        else:
            parts = [body[start : start + MIB] for start in range(0, size, MIB)]
            await client.send(chunked(*parts), b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        (request,) = engine.received
        assert request.body == body
        assert request.values(b"content-length") == [b"%d" % size]
        assert request.values(b"transfer-encoding") == []


async def test_row_28_a_body_is_in_memory_once() -> None:
    """It grows by the body while that is collected, not by several times that."""
    size = 64 * MIB

    async def script(wire: Wire) -> None:
        await wire.head()
        left = size
        while left:
            left -= len(await wire._reader.read(2**16))
        await wire.send(OK)

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        part = bytes(2**16)
        tracemalloc.start()
        try:
            await client.send(post().replace(b"Length: 2", b"Length: %d" % size)[:-2])
            for _ in range(size // len(part)):
                await client.send(part)
            assert (await client.answer()).status == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.2 * size


async def test_row_28_a_length_over_the_limit_is_413_before_the_upload() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, max_body_bytes=MIB) as rig,
        client_of(rig) as client,
    ):
        await client.send(
            post(b"")[:-4].replace(b"Length: 0", b"Length: %d" % (MIB + 1)) + b"\r\n\r\n"
        )
        got = await client.answer()
        assert got.status == 413
        assert got.error["code"] == "body_too_large"
        assert got.values(b"connection") == [b"close"]
        assert engine.connections == 0


async def test_row_28_chunks_over_the_limit_are_413_before_the_upload_ends() -> None:
    """headroom#3326: the limit holds for chunked bodies too."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, max_body_bytes=MIB) as rig,
        client_of(rig) as client,
    ):
        await client.send(chunked(bytes(MIB), b"x"))  # and it would go on
        got = await client.answer()
        assert got.status == 413
        assert got.error["code"] == "body_too_large"
        assert got.values(b"connection") == [b"close"]
        client.writer.write_eof()
        assert await client.reader.read() == b""
        assert engine.connections == 0


async def test_a_client_that_asks_for_leave_to_send_gets_it() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        request = post(b"{}", b"Expect: 100-Continue")
        for _ in range(2):
            await client.send(request[:-2])
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"{}")
            assert (await client.answer()).status == 200
        assert [request.values(b"expect") for request in engine.received] == [[], []]


async def test_http_1_0_knows_no_interim_answer() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        request = post(b"{}", b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
        await client.send(request[:-2])
        await client.send(b"{}")
        assert (await client.answer()).status == 200


async def test_a_request_refused_before_its_body_is_asked_for_ends_the_connection() -> None:
    """The client may or may not send the body now; it must not be read as a request."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, api_keys=("k",)) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b"{}", b"Expect: 100-continue")[:-2])
        got = await client.answer()
        assert got.status == 401
        assert got.values(b"connection") == [b"close"]


async def test_a_request_refused_with_its_body_there_keeps_the_connection() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, api_keys=("k",)) as rig,
        client_of(rig) as client,
    ):
        assert (await client.post()).status == 401
        assert (await client.post(b"{}", b"Authorization: Bearer k")).status == 200
        (request,) = engine.received
        assert request.values(b"authorization") == []


# --- Slow clients ------------------------------------------------------------------------------------


async def test_an_upload_that_stops_is_not_waited_for() -> None:
    pool = PoolSettings(timeouts=Timeouts(client_stall=0.1))
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, pool=pool) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b"{}")[:-1])
        assert await client.reader.read() == b""
        assert engine.connections == 0
        assert len(rig.recorder.records) == 1
