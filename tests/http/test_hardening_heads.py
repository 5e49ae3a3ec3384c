"""Heads that are refused, over sockets: what the client reads, and that no engine hears of it."""

import logging
import socket

import pytest

from steersman.errors import Fault, InvalidRequest
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.http import limits
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, always, fake_engine
from tests.http.refusals import recorded, refused
from tests.http.shapes import HEADS, SMUGGLED, TWO, Refused, head, targeted

pytestmark = pytest.mark.usefixtures("adapter")


@pytest.mark.parametrize("shape", HEADS.values(), ids=HEADS)
async def test_a_head_without_one_reading_is_refused(
    shape: Refused, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(shape.sent)
        await refused(client, status=shape.status)
        record = await recorded(rig, fault=shape.fault)
        assert record.route == "unknown"
        assert engine.connections == 0
    assert caplog.records == []


@pytest.mark.parametrize("name", ["a folded header", "length then coding", "http 2", "no host"])
async def test_a_refused_head_may_come_byte_by_byte(name: str) -> None:
    shape = HEADS[name]
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(
            *(bytes([byte]) for byte in shape.sent[: shape.sent.index(b"\r\n\r\n") + 4])
        )
        await refused(client, status=shape.status)
        await recorded(rig, fault=shape.fault)
        assert engine.connections == 0


@pytest.mark.parametrize("shape", HEADS.values(), ids=HEADS)
async def test_a_good_request_before_it_is_answered_first(shape: Refused) -> None:
    """In one read, and nothing of the bad one reaches the engine."""
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(post(b"good") + shape.sent)
        assert (await client.answer()).body == b"ok"
        # One empty line between two requests is forgiven, so that two are one here.
        await refused(client, status=shape.status)
        await recorded(rig, fault=shape.fault, number=2)
        assert [request.body for request in engine.received] == [b"good"]


@pytest.mark.parametrize("name", ["two lengths of two values", "coding then length", "no host"])
async def test_what_follows_a_refused_head_is_never_served(name: str) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(HEADS[name].sent + SMUGGLED)
        got = await client.answer()
        assert got.status == 400
        await client.send(SMUGGLED)
        assert await client.reader.read() == b""
        await recorded(rig, fault=HEADS[name].fault)
        assert engine.connections == 0


async def test_a_refused_request_is_known_by_its_path_where_there_is_one() -> None:
    async with adapter_rig() as rig:
        for sent, known in (
            (head(b"X : a", line=b"POST /generate?key=secret HTTP/1.1\r\n"), ("POST", "/generate")),
            (targeted(b"/generate", version=b"HTTP/2.0"), ("POST", "/generate")),
            (targeted(b"http://user:secret@proxy/"), ("POST", "-")),
            (b"\x16\x03\x01", ("-", "-")),
        ):
            async with client_of(rig) as client:
                await client.send(sent)
                got = await client.answer()
                assert got.values(b"x-request-id")
            record = rig.recorder.records[-1]
            assert (record.method, record.path.partition("?")[0]) == known
            assert got.values(b"x-request-id") == [record.request_id.encode()]


@pytest.mark.parametrize("name", ["tls", "garbage", "a header of 70 kb", "no host"])
async def test_who_leaves_at_once_is_recorded_too(name: str) -> None:
    """As port scanners do."""
    shape = HEADS[name]
    async with adapter_rig() as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as sock:
            sock.sendall(shape.sent)
        await until(lambda: rig.recorder.records)
        (record,) = rig.recorder.records
        assert isinstance(record.error, InvalidRequest)
        assert record.error.fault is shape.fault
        # Whether it left before it was told is a matter of the event loop.
        assert record.outcome in (Outcome.CLIENT_GONE, Outcome.REJECTED)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tls", "http://"),
        ("http 2 with prior knowledge", "HTTP/2"),
        ("a space before the colon", "line 3"),
        ("lf alone after a header", "line 2 ends with LF alone"),
        ("two lengths of one value", "second header 'Content-Length'"),
        ("utf 8 in the target", "percent-encoded"),
        ("a method in lower case", "did you mean POST?"),
        ("connect", "tunnels"),
        ("no host", "Host"),
        ("too many headers", "257"),
        ("a head of 70 kb", "65536"),
        ("an unknown expectation", "100-continue"),
        ("http 0 9", "HTTP/1.1"),
    ],
)
async def test_the_client_is_told_what_is_wrong(name: str, says: str) -> None:
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.send(HEADS[name].sent)
        assert says in (await client.answer()).error["message"]


async def test_values_of_headers_are_not_repeated() -> None:
    """Answers end up in logs; a header may hold a key."""
    async with adapter_rig() as rig:
        for line in (b"Authorization : Bearer secret", b"Authorization Bearer secret"):
            async with client_of(rig) as client:
                await client.send(head(line, TWO))
                assert b"secret" not in (await client.answer()).body


@pytest.mark.parametrize("size", [limits.MAX_HEAD, 4 * limits.MAX_HEAD, 64 * limits.MAX_HEAD])
async def test_a_client_that_goes_on_sending_still_sees_the_answer(size: int) -> None:
    """A reset would overtake it."""
    async with adapter_rig() as rig, client_of(rig) as client:
        await client.send(HEADS["a header of 70 kb without end"].sent, b"x" * size)
        await refused(client, status=431)


# --- what is odd, and clear ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (head(b"Content-Length:\t 2 \t"), "POST /generate HTTP/1.1"),
        (head(b"content-LENGTH:2"), "POST /generate HTTP/1.1"),
        (head(b"Content-Length: 0002"), "POST /generate HTTP/1.1"),
        (head(TWO, host=b"HOST: [::1]:8000\r\n"), "POST /generate HTTP/1.1"),
        (head(TWO, host=b"Host:proxy:\r\n"), "POST /generate HTTP/1.1"),
        (head(TWO, line=b"POST /generate HTTP/1.0\r\n", host=b""), "POST /generate HTTP/1.1"),
        (targeted(b"http://proxy/generate?a=b"), "POST /generate?a=b HTTP/1.1"),
        (targeted(b"HTTPS://[::1]:8000/generate"), "POST /generate HTTP/1.1"),
        (targeted(b'/generate?a="<>\\^`{|}%zz'), 'POST /generate?a="<>\\^`{|}%zz HTTP/1.1'),
        (b"\r\n" + head(TWO), "POST /generate HTTP/1.1"),
        (head(TWO, b"X-Latin: \xe9\x80", b"X:", b"X: a\tb"), "POST /generate HTTP/1.1"),
        (head(TWO, b"Connection: Upgrade", b"Upgrade: h2c"), "POST /generate HTTP/1.1"),
        (head(TWO, b"Connection: Upgrade", b"Upgrade: websocket"), "POST /generate HTTP/1.1"),
    ],
)
async def test_what_is_odd_but_clear_passes(sent: bytes, line: str) -> None:
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(sent)
        assert (await client.answer()).status == 200
        (request,) = engine.received
        assert (request.line, request.body) == (line, b"{}")
        assert request.values(b"upgrade") + request.values(b"connection") == []


async def test_the_largest_head_reaches_the_engine_whole() -> None:
    rest = limits.MAX_HEAD - len(head(TWO, b"X: ", body=b""))
    value = b"x" * rest
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        for extra, status in ((b"", 200), (b"x", 431)):
            await client.send(head(TWO, b"X: " + extra + value))
            assert (await client.answer()).status == status
        (request,) = engine.received
        assert request.values(b"x") == [value]


async def test_as_many_headers_as_may_be_reach_the_engine() -> None:
    many = [b"X: %d" % index for index in range(limits.MAX_HEADERS - 2)]
    async with (
        fake_engine(always(OK)) as engine,
        adapter_rig(engine.url) as rig,
        client_of(rig) as client,
    ):
        await client.send(head(TWO, *many))
        assert (await client.answer()).status == 200
        (request,) = engine.received
        assert len(request.values(b"x")) == limits.MAX_HEADERS - 2
        await client.send(head(TWO, b"X: one more", *many))
        await refused(client, status=431)
        await recorded(rig, fault=Fault.SIZE, number=2)
