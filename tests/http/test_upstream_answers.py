"""What comes back of an engine's answer: every framing, byte for byte."""

import asyncio
import gzip
import random

import pytest

from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.upstream import AttemptFailed, UpstreamPool
from tests.http.client import ask, read_all
from tests.http.fake_engine import OK, Wire, always, fake_engine, once

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_an_answer_is_read_and_its_connection_is_used_again(pool: UpstreamPool) -> None:
    async with fake_engine(always(OK)) as engine:
        for number in range(5):
            answer = await ask(pool, engine.url, body=[b"%d" % number])
            assert (answer.status, answer.reason, answer.content_length) == (200, b"OK", 2)
            assert answer.headers == [(b"Content-Length", b"2")]
            assert await read_all(answer) == b"ok"
            assert answer.complete
            assert await answer.read() is None
            answer.abort()  # of a whole answer: nothing happens
            assert pool.idle(engine.url) == 1
        assert engine.connections == 1
        assert [request.body for request in engine.received] == [b"0", b"1", b"2", b"3", b"4"]
        assert {request.line for request in engine.received} == {"POST /generate HTTP/1.1"}


async def test_an_answer_is_kept_while_its_connection_serves_another(pool: UpstreamPool) -> None:
    async with fake_engine(always(OK)) as engine:
        first = await ask(pool, engine.url)
        second = await ask(pool, engine.url)
        assert engine.connections == 1
        assert await read_all(second) == b"ok"
        assert await read_all(first) == b"ok"


async def test_answers_at_the_same_time_have_connections_of_their_own(pool: UpstreamPool) -> None:
    everybody = asyncio.Barrier(20)

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            await everybody.wait()
            await wire.send(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
                % (len(request.body), request.body)
            )

    async def one(number: int) -> bytes:
        return await read_all(await ask(pool, engine.url, body=[b"number %d" % number]))

    async with fake_engine(script) as engine:
        for _ in range(3):
            bodies = await asyncio.gather(*map(one, range(20)))
            assert bodies == [b"number %d" % number for number in range(20)]
        assert engine.connections == 20
        assert pool.idle(engine.url) == pool.open == 20


@pytest.mark.parametrize("size", [24, 928_786])
async def test_row_21_bytes_and_length_are_the_engines(pool: UpstreamPool, size: int) -> None:
    """miles#851, #1001, sglang#27523: the body is never made anew."""
    body = rb'{"a": 1, "b": "\u00e9" }'
    body = body[:-2] + b" " * (size - len(body)) + body[-2:]
    assert len(body) == size
    answer_head = (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    async with fake_engine(always(answer_head % size + body)) as engine:
        answer = await ask(pool, engine.url)
        assert (answer.status, answer.content_length) == (400, size)
        assert (b"content-length", b"%d" % size) in answer.headers
        assert await read_all(answer) == body
        assert pool.idle(engine.url) == 1


async def test_row_22_a_content_encoding_is_passed_through(pool: UpstreamPool) -> None:
    """production-stack#836: compressed bytes stay compressed, and keep their label."""
    packed = gzip.compress(b'data: {"x":1}\n\ndata: [DONE]\n\n')
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with fake_engine(always(head + chunk(packed) + b"0\r\n\r\n")) as engine:
        asked = [(b"Accept-Encoding", b"gzip")]
        answer = await ask(pool, engine.url, headers=asked)
        assert (b"Content-Encoding", b"gzip") in answer.headers
        assert await read_all(answer) == packed
        answer = await ask(pool, engine.url)
        assert await read_all(answer) == packed
        seen = [request.values(b"accept-encoding") for request in engine.received]
        assert seen == [[b"gzip"], []]


async def test_row_23_a_line_of_three_megabytes(pool: UpstreamPool) -> None:
    """sglang#7301, TensorRT-LLM#13952: nothing here knows lines, so none is too long."""
    line = b'data: {"meta_info":{"output_token_logprobs":[' + b"[-0.1,5]," * 349_525 + b"]}}\n\n"
    assert len(line) > 3 * 2**20
    body = line + b"data: [DONE]\n\n"
    parts = [chunk(line[start : start + 65536]) for start in range(0, len(line), 65536)]

    async with fake_engine(
        once(CHUNKED, *parts, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")
    ) as engine:
        assert await read_all(await ask(pool, engine.url)) == body


async def test_row_23_the_line_in_one_chunk(pool: UpstreamPool) -> None:
    line = random.Random(23).randbytes(3 * 2**20)
    async with fake_engine(once(CHUNKED, chunk(line), b"0\r\n\r\n")) as engine:
        assert await read_all(await ask(pool, engine.url)) == line


STREAM = (
    'data: {"meta_info":{"weight_version":"7"}}\r\n\r\n: ping\n\n'
    'data:{"t":"\u00e9"}\n\ndata: [DONE]\n\n'
).encode()


async def test_row_27_a_stream_cut_at_every_byte(pool: UpstreamPool) -> None:
    """tt-studio#936: where a write ends means nothing."""
    whole = CHUNKED + chunk(STREAM[:40]) + chunk(STREAM[40:]) + b"0\r\n\r\n"

    async def script(wire: Wire) -> None:
        while True:
            cut = int((await wire.request()).body)
            await wire.cut(whole[:cut], whole[cut:])

    async with fake_engine(script) as engine:
        for cut in range(len(whole) + 1):
            answer = await ask(pool, engine.url, body=[b"%d" % cut])
            assert await read_all(answer) == STREAM
        assert engine.connections == 1


async def test_parts_arrive_as_they_are_sent(pool: UpstreamPool) -> None:
    go_on = asyncio.Semaphore(0)

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED)
        for number in range(10):
            await go_on.acquire()
            await wire.send(chunk(b"data: %d\n\n" % number))
        await go_on.acquire()
        await wire.send(b"0\r\nX-Trailer: dropped\r\n\r\n")
        await wire.gone()

    async with fake_engine(script) as engine:
        answer = await ask(pool, engine.url)
        assert answer.content_length is None
        for number in range(10):
            go_on.release()
            assert await answer.read() == b"data: %d\n\n" % number
        go_on.release()
        assert await answer.read() is None
        assert answer.headers == [
            (b"Content-Type", b"text/event-stream"),
            (b"Transfer-Encoding", b"chunked"),
        ]
        assert pool.idle(engine.url) == 1


async def test_a_body_may_end_with_the_connection(pool: UpstreamPool) -> None:
    async with fake_engine(
        once(b"HTTP/1.1 200 OK\r\n\r\n", b"some", b" bytes", then="close")
    ) as engine:
        answer = await ask(pool, engine.url)
        assert answer.content_length is None
        assert await read_all(answer) == b"some bytes"
        assert pool.idle(engine.url) == 0


async def test_interim_answers_are_skipped(pool: UpstreamPool) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with fake_engine(always(interim + OK)) as engine:
        for _ in range(2):
            answer = await ask(pool, engine.url)
            assert (answer.status, answer.reason) == (200, b"OK")
            assert answer.headers == [(b"Content-Length", b"2")]
            assert await read_all(answer) == b"ok"
        assert engine.connections == 1


@pytest.mark.parametrize(
    ("method", "head", "length"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", 500),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n", None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 0),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", 500),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0),
        ("GET", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 0),
    ],
)
async def test_answers_without_a_body(
    pool: UpstreamPool, method: str, head: bytes, length: int | None
) -> None:
    async with fake_engine(always(head)) as engine:
        for _ in range(2):
            answer = await ask(pool, engine.url, method=method, body=[])
            assert answer.content_length == length
            assert await read_all(answer) == b""
        # With a coding, the parser waits for chunks that never come: not used again.
        assert engine.connections == (2 if b"chunked" in head else 1)


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"OK\r\n", b"OK\r\nConnection: x, Close\r\n"),
        OK.replace(b"1.1", b"1.0"),
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        OK + b"garbage",
        b"HTTP/1.1 204 No Content\r\n\r\nok",
    ],
    ids=["close", "http10", "second answer", "garbage", "body of 204"],
)
async def test_connections_that_are_not_used_again(pool: UpstreamPool, answer: bytes) -> None:
    """The answer itself is good."""
    async with fake_engine(always(answer)) as engine:
        for _ in range(2):
            assert await read_all(await ask(pool, engine.url)) in (b"ok", b"")
            assert pool.idle(engine.url) == 0
        assert engine.connections == 2


async def test_bytes_that_nobody_asked_for_close_an_idle_connection(pool: UpstreamPool) -> None:
    """Answer splitting: they would pass for the answer to the next request."""
    closed = asyncio.Event()
    speak = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        if engine.connections == 1:
            await speak.wait()
            await wire.send(OK.replace(b"ok", b"no"))
        await wire.gone()
        closed.set()

    async with fake_engine(script) as engine:
        assert await read_all(await ask(pool, engine.url)) == b"ok"
        assert pool.idle(engine.url) == 1
        speak.set()
        await closed.wait()
        assert pool.idle(engine.url) == 0
        assert await read_all(await ask(pool, engine.url)) == b"ok"
        assert engine.connections == 2


GOOD_CHUNK = b"5\r\nhello\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 No\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + GOOD_CHUNK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + GOOD_CHUNK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n" + GOOD_CHUNK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + GOOD_CHUNK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n" + GOOD_CHUNK,
        b"HTTP/1.1 200 OK\r\nX: one\r\n two\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: one\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX : one\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: o\0ne\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 12_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 103 Early\r\n\r\n" * 5_000,
    ],
)
async def test_what_is_not_http_is_refused(pool: UpstreamPool, answer: bytes) -> None:
    async with fake_engine(once(answer)) as engine:
        with pytest.raises(AttemptFailed) as caught:
            await ask(pool, engine.url)
        assert caught.value.failure is Failure.PROTOCOL
        assert not caught.value.unsent
        assert len(engine.received) == 1
        assert pool.idle(engine.url) == 0


@pytest.mark.parametrize(
    "bad", [b"zz\r\nhello\r\n", b"-5\r\nhello\r\n", b"5\r\nhelloXX", b"F" * 17]
)
async def test_a_bad_chunk_ends_the_body_badly(pool: UpstreamPool, bad: bytes) -> None:
    """After what was good, and never with a proper end."""
    async with fake_engine(once(CHUNKED + GOOD_CHUNK + bad)) as engine:
        answer = await ask(pool, engine.url)
        got = await answer.read()
        assert got is not None
        assert got.startswith(b"hello")
        for _ in range(2):
            with pytest.raises(AttemptFailed) as caught:
                await answer.read()
            assert caught.value.failure is Failure.PROTOCOL
        assert not answer.complete
