"""What a client gets of an engine's answer through the aiohttp adapter, byte for byte."""

import asyncio
import gzip

import pytest

from steersman_proxy.exchange.exchange import Exchange
from steersman_proxy.exchange.messages import Failure, Outcome, Relay
from tests.http.adapter import Client, adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import Script, Wire, always, fake_engine, once

pytestmark = pytest.mark.usefixtures("adapter")

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, head: bytes = JSON) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_head_is_the_engines_with_the_stamps_and_nothing_else() -> None:
    answer = (
        b"HTTP/1.1 299 Very  well\r\nX-b: 1\r\nset-cookie: a=1\r\nSet-Cookie: b=\xe9\r\n"
        b"Content-Length: 2\r\nX-a: \r\n\r\nok"
    )
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        stamps = b"x-smg-routed-worker-id: %b\r\nx-smg-weight-version: 7\r\n" % (
            engine.url.encode()
        )
        assert got.head == (
            b"HTTP/1.1 299 Very  well\r\nX-b: 1\r\nset-cookie: a=1\r\nSet-Cookie: b=\xe9\r\n"
            b"Content-Length: 2\r\nX-a: \r\n" + stamps + b"x-request-id: id-1\r\n\r\n"
        )
        assert got.body == b"ok"


async def test_without_rl_only_the_engine_is_named() -> None:
    body = b'{"meta_info": {"weight_version": "9"}}'
    async with (
        fake_engine(always(whole(body))) as engine,
        adapter_rig(engine.url, rl_enabled=False) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        added = b"x-smg-routed-worker-id: %b\r\n\r\n" % engine.url.encode()
        assert got.head + got.body == whole(body).replace(b"\r\n\r\n", b"\r\n" + added)


@pytest.mark.parametrize("size", [24, 928_786])
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
async def test_row_21_bytes_and_length_are_the_engines(size: int, status: bytes) -> None:
    """miles#851, #1001: also an error to a streaming request, which is not wrapped in an event."""
    body = rb'{"a": 1, "b": "\u00e9" }'
    body = body[:-2] + b" " * (size - len(body)) + body[-2:]
    answer = whole(body, JSON.replace(b"200 OK", status))
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for request in (b"{}", b'{"stream":true}'):
            got = await client.post(request)
            assert got.status == int(status[:3])
            assert got.body == body
            assert got.values(b"content-length") == [b"%d" % size]
            assert got.values(b"content-type") == [b"application/json"]


async def test_row_22_a_content_encoding_is_passed_through() -> None:
    """production-stack#836: nothing is unpacked, on either side."""
    packed = gzip.compress(b'data: {"x":1}\n\ndata: [DONE]\n\n')
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with (
        fake_engine(always(head + chunk(packed) + b"0\r\n\r\n")) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        upload = gzip.compress(b"{}")
        for asked in ([b"Accept-Encoding: gzip"], []):
            got = await client.post(upload, b"Content-Encoding: gzip", *asked)
            assert got.body == packed
            assert got.values(b"content-encoding") == [b"gzip"]
            request = engine.received[-1]
            assert request.body == upload
            assert request.values(b"content-encoding") == [b"gzip"]
            assert request.values(b"accept-encoding") == [b"gzip"] * len(asked)


async def test_row_23_a_line_of_three_megabytes() -> None:
    """sglang#7301: the reader of stamps may give up, the relay may not."""
    line = b'data: {"meta_info":{"output_token_logprobs":[' + b"[-0.1,5]," * 349_525 + b"]}}\n\n"
    parts = [chunk(line[start : start + 65536]) for start in range(0, len(line), 65536)]
    async with (
        fake_engine(once(STREAM, *parts, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert got.whole
        assert got.body == line + b"data: [DONE]\n\n"


# --- Row 26: the engine dies in the middle ----------------------------------------------------------


def dies(head: bytes, first: bytes, how: str, seen: asyncio.Event) -> Script:
    """Sends ``first``, and dies once the client has it."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(head + first)
        await seen.wait()
        if how == "reset":
            wire.reset()
        else:
            await wire.close()

    return script


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_row_26_the_clients_stream_fails_when_the_engines_does(
    how: str, version: bytes
) -> None:
    """litellm#33404, #39748: no proper end is invented, nor a ``[DONE]``; nothing is retried."""
    seen = asyncio.Event()
    async with (
        fake_engine(dies(STREAM, chunk(EVENT), how, seen)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b"{}").replace(b"HTTP/1.1", b"HTTP/" + version))
        head = await client.head()
        if version == b"1.1":
            assert b"Transfer-Encoding: chunked" in head
            assert await client.chunk() == EVENT
            seen.set()
            # The connection ends, without the last chunk.
            assert await client.reader.read() == b""
        else:
            # There the end of the connection is the end of the answer; it must be a broken one.
            assert b"ransfer-" not in head
            assert await client.reader.readexactly(len(EVENT)) == EVENT
            seen.set()
            with pytest.raises(ConnectionResetError):
                await client.reader.read()
        await until(lambda: rig.recorder.records)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.UPSTREAM_FAILED
        assert rig.recorder.failures == [Failure.INCOMPLETE]
        assert len(engine.received) == 1
        assert rig.in_flight == 0


async def test_row_26_a_length_cut_short_is_cut_short_for_the_client() -> None:
    seen = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n"
    async with (
        fake_engine(dies(head, b"part", "close", seen)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        assert b"Content-Length: 1000\r\n" in await client.head()
        assert await client.reader.readexactly(4) == b"part"
        seen.set()
        assert await client.reader.read() == b""


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_row_26_an_answer_of_which_the_client_saw_nothing_becomes_502(how: str) -> None:
    seen = asyncio.Event()
    seen.set()
    async with (
        fake_engine(dies(JSON + b"Content-Length: 1000\r\n\r\n", b'{"a":', how, seen)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert got.status == 502
        assert got.error["code"] == "upstream_body_incomplete"
        assert got.values(b"x-smg-routed-worker-id") == [engine.url.encode()]
        assert len(engine.received) == 1


async def test_row_27_a_stream_cut_at_every_byte() -> None:
    """tt-studio#936: output and stamp are the same for every cut."""
    events = (
        'data: {"meta_info":{"weight_version":"7"}}\r\n\r\n: ping\n\n'
        'data:{"t":"\u00e9"}\n\ndata: [DONE]\n\n'
    ).encode()
    answer = STREAM + chunk(events) + b"0\r\n\r\n"

    async def script(wire: Wire) -> None:
        while True:
            cut = int((await wire.request()).body)
            await wire.cut(answer[:cut], answer[cut:])

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for cut in range(len(answer)):
            got = await client.post(b"%d" % cut)
            assert got.whole
            assert got.body == events
            assert got.values(b"x-smg-weight-version") == [b"7"]
        assert engine.connections == 1


# --- Framing ----------------------------------------------------------------------------------------


async def test_parts_are_passed_on_as_they_come() -> None:
    go_on = asyncio.Semaphore(0)

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM)
        for number in range(5):
            await go_on.acquire()
            await wire.send(chunk(b"data: %d\n\n" % number))
        await go_on.acquire()
        await wire.send(b"0\r\nX-Trailer: dropped\r\n\r\n")
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        await client.head()  # before the first byte of the body
        for number in range(5):
            go_on.release()
            assert await client.chunk() == b"data: %d\n\n" % number
        go_on.release()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def test_a_body_that_ends_with_the_engines_connection_gets_chunks() -> None:
    async with (
        fake_engine(once(b"HTTP/1.1 200 OK\r\n\r\nsome bytes", then="close")) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert got.values(b"transfer-encoding") == [b"chunked"]
        assert (got.body, got.whole) == (b"some bytes", True)


async def test_a_collected_answer_gets_its_length() -> None:
    body = b'{"meta_info": {"weight_version": "7"}}'
    answer = JSON + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n"
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert got.values(b"content-length") == [b"%d" % len(body)]
        assert got.values(b"transfer-encoding") == []
        assert got.body == body


async def test_an_answer_over_the_cap_is_passed_on_before_its_end() -> None:
    part, seen = b"x" * 2000, asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(JSON + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(part))
        await seen.wait()
        await wire.send(chunk(part) + b"0\r\n\r\n")
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url, buffered_answer_cap=1000) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        await client.head()
        assert await client.chunk() == part
        seen.set()
        assert await client.chunk() == part
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@pytest.mark.parametrize("extra", [b"", b"Content-Length: 0\r\n"])
async def test_answers_without_a_body_end_with_their_head(status: bytes, extra: bytes) -> None:
    answer = b"HTTP/1.1 " + status + b"\r\n" + extra + b"\r\n"
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for _ in range(2):
            got = await client.post()
            assert got.status == int(status[:3])
            assert got.values(b"transfer-encoding") == []
            if got.status == 204:
                assert got.values(b"content-length") == []


async def test_interim_answers_of_an_engine_end_here() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + whole(b"{}")
    async with (
        fake_engine(always(answer)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        got = await client.post()
        assert (got.status, got.body) == (200, b"{}")


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "upstream_protocol_error", 502),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "upstream_protocol_error", 502),
        (b"", "upstream_body_incomplete", 502),
    ],
)
async def test_an_engine_that_does_not_answer_is_502(answer: bytes, code: str, status: int) -> None:
    async with (
        fake_engine(once(answer, then="close")) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for _ in range(2):
            got = await client.post()
            assert got.status == status
            assert got.error["code"] == code
        assert len(engine.received) == 2


async def test_a_refused_connection_is_tried_elsewhere(free_ports: object) -> None:
    async with fake_engine(always(whole(b"{}"))) as engine:
        dead = [f"http://127.0.0.1:{port}" for port in free_ports(2)]  # type: ignore[operator]
        async with adapter_rig(*dead, engine.url) as rig, client_of(rig) as client:
            for _ in range(10):
                assert (await client.post()).status == 200
            assert len(engine.received) == 10
            assert Failure.CONNECT_REFUSED in rig.recorder.failures


@pytest.mark.parametrize(("extra", "sent_before"), [(b"x", True), (b"x", False), (b"", True)])
async def test_a_body_that_differs_from_its_head_breaks_off(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extra: bytes,
    sent_before: bool,
) -> None:
    """Whatever made it longer, the client must not read the rest as its next answer."""
    part = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        if sent_before:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
            await part.wait()
            await wire.send(b"body")
        else:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
        await wire.gone()

    def change(exchange: Exchange, data: bytes) -> Relay:
        return Relay([data, extra] if extra else [data[1:]])

    monkeypatch.setattr(Exchange, "answer_data", change)
    monkeypatch.setattr(Exchange, "passes_through", False)
    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post() + post())
        if sent_before:
            assert b"Content-Length: 4\r\n" in await client.head()
            part.set()
            assert len(await client.reader.read()) < 4
        else:
            got = await client.answer()
            assert (got.status, got.error["code"]) == (500, "proxy_fault")
            assert await client.reader.read() == b""
        assert len(engine.received) == 1
    assert "than its head says" in caplog.text


async def test_http_1_0_keeps_its_connection_only_if_it_asks() -> None:
    async with fake_engine(always(whole(b"{}"))) as engine, adapter_rig(engine.url) as rig:
        async with client_of(rig) as client:
            for _ in range(2):
                await client.send(
                    post(b"{}", b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
                )
                got = await client.answer()
                assert got.values(b"connection") == [b"keep-alive"]
                assert got.body == b"{}"
        async with client_of(rig) as client:
            await client.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
            got = await client.answer()
            assert got.values(b"connection") == [b"close"]
            assert await client.reader.read() == b""


async def test_two_pipelined_requests_are_answered_in_order() -> None:
    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            await wire.send(whole(request.body))

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b'"first"') + post(b'"second"'))
        assert (await client.answer()).body == b'"first"'
        assert (await client.answer()).body == b'"second"'


async def read_slowly(client: Client, size: int) -> int:
    total = 0
    while total < size:
        part = await client.reader.read(2**16)
        assert part
        total += len(part)
    return total


async def test_a_client_that_does_not_read_stops_the_engine() -> None:
    """Backpressure through both sides; then all arrives."""
    unit, count, sent = bytes(2**16), 1024, 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * len(unit)))
        for _ in range(count):
            await wire.send(unit)
            sent += 1
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post())
        await client.head()
        before = -1
        while before != sent:
            before = sent
            for _ in range(20):
                await asyncio.sleep(0.002)
        assert sent < count
        assert await read_slowly(client, count * len(unit)) == count * len(unit)
