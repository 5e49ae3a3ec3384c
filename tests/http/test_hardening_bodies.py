"""Bodies: badly framed ones, trailers, expectations, and answers without any."""

import asyncio

import pytest

from steersman.errors import Fault
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http import limits
from tests.http.adapter import Client, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, always, fake_engine
from tests.http.refusals import recorded, refused
from tests.http.shapes import BODIES, CHUNKED, SMUGGLED, TWO, chunks, head

pytestmark = pytest.mark.usefixtures("adapter")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def turns(count: int = 5) -> None:
    """Let both ends take what is under way, so that parts arrive as parts."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cut", ["nowhere", "after the head", "everywhere"])
@pytest.mark.parametrize("framed", BODIES.values(), ids=BODIES)
async def test_a_badly_framed_body_is_refused_whenever_it_comes(framed: bytes, cut: str) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        if cut == "nowhere":
            await client.send(chunks(framed))
        else:
            await client.send(chunks(b""))
            await until(lambda: rig.adapter.running)
            step = len(framed) if cut == "after the head" else 1 + len(framed) // 50
            for at in range(0, len(framed), step):
                await client.send(framed[at : at + step])
                await turns()
        await refused(client)
        record = await recorded(rig, fault=Fault.BODY)
        assert record.route == "/generate"
        assert engine.connections == 0


async def test_a_good_request_before_a_bad_body_is_answered_first() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b"good") + chunks(b"2\r\n{}X\r\n") + post(b"never"))
        assert (await client.answer()).status == 200
        await refused(client)
        await recorded(rig, fault=Fault.BODY, number=2)
        assert [request.body for request in engine.received] == [b"good"]


async def test_a_body_that_breaks_after_its_answer_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request was refused for its route; what is wrong with its body is nobody's business."""
    async with adapter_rig() as rig, client_of(rig) as client:
        sent = chunks(b"2\r\n{}\r\n").replace(b"/generate", b"/nowhere")
        await client.send(sent)
        got = await client.answer()
        assert got.status == 404
        await client.send(b"zz\r\n", SMUGGLED)
        assert await client.reader.read() == b""
        assert len(rig.recorder.records) == 1
    assert caplog.records == []


async def test_the_rest_of_an_upload_that_nobody_wants_is_read_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client sees its answer, and the connection goes on if the upload ends in time."""
    monkeypatch.setattr(limits, "LINGER", 0.2)
    body = bytes(2**20)
    async with adapter_rig() as rig, client_of(rig) as client:
        for sent in (
            post(body, path=b"/nowhere"),
            chunks(b"100000\r\n%b\r\n0\r\n\r\n" % body).replace(b"/generate", b"/nowhere"),
        ):
            await client.send(sent)
            assert (await client.answer()).status == 404
        assert rig.adapter.running == 0
        await client.send(sent[:-10])
        assert (await client.answer()).status == 404
        assert await client.reader.read() == b""


# --- trailers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trailers",
    [
        b"X-Trailer: 1\r\n",
        b"Authorization: Bearer other\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n",
        b"X-Smg-Target-Worker: e9\r\n",
        b"X: a\r\n" * 1000,
    ],
)
async def test_trailers_are_dropped(trailers: bytes) -> None:
    """Neither the request nor the next one of the connection gets them as headers."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        sent = chunks(b"2;ext=1\r\n{}\r\n0;ext\r\n%b\r\n" % trailers)
        await client.send(sent.replace(b"Host", b"Trailer: X-Trailer\r\nHost") + post(b"[]"))
        for _ in range(2):
            assert (await client.answer()).status == 200
        first, second = engine.received
        assert (first.body, second.body) == (b"{}", b"[]")
        for request in engine.received:
            assert [name.lower() for name, _ in request.headers] == [
                b"host",
                b"x-request-id",
                b"content-length",
            ]
            assert request.values(b"content-length") == [b"2"]


async def test_the_longest_chunk_lines_and_trailers_pass() -> None:
    line = b"2;" + b"x" * (limits.MAX_CHUNK_LINE - 4) + b"\r\n"
    trailer = b"X: " + b"x" * (limits.MAX_TRAILERS - 5) + b"\r\n"
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(chunks(line + b"{}\r\n0\r\n" + trailer + b"\r\n"))
        assert (await client.answer()).status == 200
        assert engine.received[0].body == b"{}"


async def test_a_body_of_tiny_chunks_arrives_whole() -> None:
    body = bytes(range(256)) * 200
    framed = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(chunks(framed) + post(b"[]"))
        for _ in range(2):
            assert (await client.answer()).status == 200
        assert [request.body for request in engine.received] == [body, b"[]"]


# --- expectations -----------------------------------------------------------------------------------


async def continued(client: Client) -> None:
    assert await client.head() == CONTINUE


@pytest.mark.parametrize("framing", [TWO, CHUNKED])
async def test_a_client_is_told_to_go_on(framing: bytes) -> None:
    body = b"{}" if framing is TWO else b"2\r\n{}\r\n0\r\n\r\n"
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for value in (b"100-continue", b"100-Continue"):
            await client.send(head(b"Expect: " + value, framing, body=b""))
            await continued(client)
            assert engine.received == [] or len(engine.received) == 1
            await client.send(body)
            assert (await client.answer()).status == 200
        assert [request.body for request in engine.received] == [b"{}", b"{}"]
        assert [request.values(b"expect") for request in engine.received] == [[], []]


async def test_a_client_that_does_not_wait_is_served_as_well() -> None:
    """It may or may not be told to go on (RFC 9110, 10.1.1)."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        expecting = head(b"Expect: 100-continue", TWO)
        await client.send(expecting + post(b"[]"))
        got = await client.answer()
        if got.status == 100:
            got = await client.answer()
        assert got.status == 200
        assert (await client.answer()).status == 200
        assert [request.body for request in engine.received] == [b"{}", b"[]"]


async def test_who_expects_to_go_on_without_a_body_is_just_served() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(head(b"Expect: 100-continue", b"Content-Length: 0", body=b""))
        assert (await client.answer()).status == 200
        await client.send(
            head(b"Expect: 100-continue", line=b"GET /liveness HTTP/1.1\r\n", body=b"")
        )
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("settings", "sent", "status"),
    [
        ({"api_keys": ("k",)}, head(b"Expect: 100-continue", TWO, body=b""), 401),
        (
            {},
            head(b"Expect: 100-continue", TWO, body=b"").replace(b"/generate", b"/nowhere"),
            404,
        ),
        ({"max_body_bytes": 1}, head(b"Expect: 100-continue", TWO, body=b""), 413),
        ({}, head(b"Expect: 100-continue", TWO, body=b"").replace(b"POST", b"GET"), 405),
    ],
)
async def test_a_refused_client_is_not_told_to_go_on(
    settings: dict[str, object], sent: bytes, status: int
) -> None:
    """And what it may send all the same is no request."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, **settings) as rig,
        client_of(rig) as client,
    ):
        await client.send(sent)
        await refused(client, status=status)
        await client.send(SMUGGLED)
        assert engine.connections == 0
        assert len(rig.recorder.records) == 1


async def test_a_client_that_leaves_instead_of_sending_is_forgotten() -> None:
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            await client.send(head(b"Expect: 100-continue", TWO, body=b""))
            await continued(client)
            client.leave()
        await until(lambda: rig.recorder.records)
        assert rig.recorder.records[0].outcome is Outcome.CLIENT_GONE
        assert engine.connections == 0


# --- HEAD and OPTIONS -------------------------------------------------------------------------------

ASKS = (b"Origin: https://app", b"Access-Control-Request-Method: POST")


def asking(method: bytes, path: bytes, *lines: bytes) -> bytes:
    return head(*lines, line=b"%b %b HTTP/1.1\r\n" % (method, path), body=b"")


@pytest.mark.parametrize("path", [b"/generate", b"/v1/models", b"/liveness", b"/nowhere", b"*"])
@pytest.mark.parametrize("method", [b"HEAD", b"OPTIONS", b"DELETE", b"PATCH"])
async def test_methods_that_a_route_does_not_take(method: bytes, path: bytes) -> None:
    if path == b"*" and method != b"OPTIONS":
        return
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for _ in range(2):
            await client.send(asking(method, path))
            got = await client.answer(method=method.decode())
            if path in (b"/nowhere", b"*"):
                assert got.status == 404
            elif method == b"HEAD" and path != b"/generate":
                assert got.status == 200
            else:
                assert got.status == 405
                assert got.values(b"allow") == [
                    b"POST, PUT" if path == b"/generate" else b"GET, HEAD"
                ]
            (length,) = got.values(b"content-length")
            assert int(length) > 0
        # Nothing of a body came after either head.
        await client.send(post(b"{}"))
        assert (await client.answer()).body == b"ok"
        assert len(engine.received) == 1


async def test_a_preflight_is_answered_for_those_origins_alone_that_are_allowed() -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, allowed_origins=("https://app",), api_keys=("k",)) as rig,
        client_of(rig) as client,
    ):
        for path in (b"/generate", b"/v1/models", b"/nowhere"):
            await client.send(asking(b"OPTIONS", path, *ASKS))
            got = await client.answer()
            assert (got.status, got.values(b"content-length")) == (204, [])
            assert got.values(b"access-control-allow-origin") == [b"https://app"]
        for lines in (ASKS[:1], ASKS[1:], (b"Origin: https://evil", ASKS[1])):
            await client.send(asking(b"OPTIONS", b"/generate", *lines))
            assert (await client.answer()).status == 401
        assert engine.connections == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (asking(b"HEAD", b"/liveness").replace(b"Host", b"Hose"), 400),
        (asking(b"HEAD", b"/liveness", b"X : y"), 400),
        (asking(b"HEAD", b"/liveness", b"Expect: more"), 417),
        (asking(b"HEAD", b"/liveness").replace(b"HTTP/1.1", b"HTTP/2.0"), 505),
    ],
)
async def test_a_refusal_of_a_head_request_has_no_body(sent: bytes, status: int) -> None:
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.send(sent)
        got = await client.answer(method="HEAD")
        assert (got.status, got.values(b"connection")) == (status, [b"close"])
        assert int(got.values(b"content-length")[0]) > 0
        assert await client.reader.read() == b""
        await until(lambda: rig.recorder.records)
        assert rig.recorder.records[0].method == "HEAD"


# --- sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_upload_over_the_limit_is_answered_while_it_goes_on(framing: str) -> None:
    """The client sees 413, and then the end, though it never stops sending."""
    size = 2**20
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url, max_body_bytes=size) as rig,
        client_of(rig) as client,
    ):
        if framing == "length":
            await client.send(head(b"Content-Length: %d" % (8 * size), body=bytes(8 * size - 1)))
        else:
            await client.send(chunks(b""), *[b"%x\r\n%b\r\n" % (size, bytes(size))] * 8)
        await refused(client, status=413)
        assert engine.connections == 0
        assert len(rig.recorder.records) == 1
