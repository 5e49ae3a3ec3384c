"""The gate before the parser, without I/O: what it lets through, and that aiohttp reads it alike."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st

from steersman.errors import Fault, InvalidRequest
from steersman_proxy.http import limits
from steersman_proxy.http.request_framing import RequestFraming
from steersman_proxy.http.request_rules import SINGLE, Head
from tests.http.shapes import BODIES, CHUNKED, HEADS, Refused, chunks, head


class Gate:
    """Feeds a framing and keeps what it lets through: for each request its head and its body."""

    def __init__(self) -> None:
        self.framing = RequestFraming()
        self.heads: list[Head] = []
        self.passed: list[bytes] = []

    def feed(self, *parts: bytes) -> "Gate":
        for part in parts:
            self.framing.receive(part)
            while True:
                begins = self.framing.at_head
                piece = self.framing.take()
                if piece and begins:
                    assert self.framing.head is not None
                    self.heads.append(self.framing.head)
                    self.passed.append(b"")
                if piece:
                    self.passed[-1] += piece
                if self.framing.ended:
                    self.framing.following()
                elif not piece:
                    break
        return self


def singly(data: bytes) -> Iterator[bytes]:
    return (data[index : index + 1] for index in range(len(data)))


def refusal(*parts: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        Gate().feed(*parts)
    return caught.value


@pytest.mark.parametrize("shape", HEADS.values(), ids=HEADS)
def test_heads_are_refused_wherever_they_are_cut(shape: Refused) -> None:
    whole = refusal(shape.sent)
    assert (whole.fault, whole.status) == (shape.fault, shape.status)
    if len(shape.sent) > limits.MAX_HEAD:
        return  # the next test; byte by byte it would take a while
    bytewise = refusal(*singly(shape.sent))
    # What is looked for early may be found before something else is.
    assert bytewise.status in (shape.status, 400)
    for at in range(1, len(shape.sent), 1 + len(shape.sent) // 300):
        assert refusal(shape.sent[:at], shape.sent[at:]).status in (shape.status, 400)


@pytest.mark.parametrize("size", [1, 1000, 4096, 65_536])
@pytest.mark.parametrize("shape", ["a head of 70 kb", "a target of 70 kb without end"])
def test_a_head_is_not_collected_for_ever(shape: str, size: int) -> None:
    gate = Gate()
    sent = HEADS[shape].sent
    with pytest.raises(InvalidRequest) as caught:  # noqa: PT012 (any of them may be the one)
        for at in range(0, len(sent), size):
            gate.feed(sent[at : at + size])
            assert len(gate.framing.waiting) <= limits.MAX_HEAD
    assert caught.value.fault is Fault.SIZE


def test_the_largest_head_passes() -> None:
    rest = limits.MAX_HEAD - len(head(b"X: ", body=b""))
    largest = head(b"X: " + b"x" * rest, body=b"")
    assert Gate().feed(largest).passed == [largest]
    assert refusal(largest.replace(b"X: ", b"X: x")).status == 431
    many = head(*[b"X: a"] * (limits.MAX_HEADERS - 1), body=b"")
    assert Gate().feed(many).passed == [many]


@pytest.mark.parametrize("framed", BODIES.values(), ids=BODIES)
def test_bodies_are_refused_wherever_they_are_cut(framed: bytes) -> None:
    sent = chunks(framed)
    error = refusal(sent)
    assert (error.fault, error.status) == (Fault.BODY, 400)
    refusal(*singly(sent))
    for at in range(len(sent) - len(framed), len(sent), 1 + len(framed) // 300):
        refusal(sent[:at], sent[at:])


def test_nothing_after_a_fault_is_let_through() -> None:
    gate = Gate()
    good = head(b"Content-Length: 2")
    with pytest.raises(InvalidRequest):
        gate.feed(good + chunks(b"2\r\n{}X") + good)
    assert gate.passed == [good, chunks(b"")]


GOOD: dict[str, tuple[bytes, Head]] = {
    "no body": (head(body=b""), Head("POST", b"/generate", 0, False)),
    "length": (head(b"Content-Length: 2"), Head("POST", b"/generate", 2, False)),
    "space around": (head(b"Content-Length:\t 2 \t"), Head("POST", b"/generate", 2, False)),
    "no space": (head(b"Content-Length:2"), Head("POST", b"/generate", 2, False)),
    "leading zeros": (head(b"Content-Length: 0002"), Head("POST", b"/generate", 2, False)),
    "chunked": (
        head(b"transfer-encoding: Chunked ", body=b"0\r\n\r\n"),
        Head("POST", b"/generate", 0, True),
    ),
    "URL": (
        head(line=b"GET HTTP://[::1]:80/a?b HTTP/1.1\r\n", body=b""),
        Head("GET", b"HTTP://[::1]:80/a?b", 0, False),
    ),
    "URL without path": (
        head(line=b"GET http://proxy?b HTTP/1.1\r\n", body=b""),
        Head("GET", b"http://proxy?b", 0, False),
    ),
    "asterisk": (head(line=b"OPTIONS * HTTP/1.1\r\n", body=b""), Head("OPTIONS", b"*", 0, False)),
    "HTTP/1.0": (
        head(line=b"GET / HTTP/1.0\r\n", host=b"", body=b""),
        Head("GET", b"/", 0, False),
    ),
    "HTTP/1.0 expects nothing": (
        head(b"Expect: x", line=b"GET / HTTP/1.0\r\n", body=b""),
        Head("GET", b"/", 0, False),
    ),
    "odd but clear": (
        head(
            b"x!#$%&'*+-.^_`|~: \x80\xff\t\"",
            b"X:",
            b"X:",
            line=b'GET /%00?"<>\\^`{|} HTTP/1.1\r\n',
            body=b"",
        ),
        Head("GET", b'/%00?"<>\\^`{|}', 0, False),
    ),
}


@pytest.mark.parametrize(("sent", "found"), GOOD.values(), ids=GOOD)
def test_heads_pass_wherever_they_are_cut(sent: bytes, found: Head) -> None:
    for parts in ([sent], singly(sent), *((sent[:at], sent[at:]) for at in range(1, len(sent)))):
        gate = Gate().feed(*parts)
        assert gate.heads == [found]
        assert gate.passed == [sent]
        assert gate.framing.waiting == b""


@pytest.mark.parametrize(
    "host",
    [b"a", b"a:", b"a:80", b"127.0.0.1", b"[::1]", b"[::1]:80", b"a_b", b"A.", b"%41", b"a,b"],
)
def test_hosts_that_are_hosts_pass(host: bytes) -> None:
    sent = head(host=b"Host: %b \r\n" % host, body=b"")
    assert Gate().feed(sent).passed == [sent]


def test_one_empty_line_before_each_request_is_forgiven() -> None:
    """RFC 9112, 2.2: some clients end a body with one that they do not count."""
    sent = head(b"Content-Length: 2")
    for data in (b"\r\n" + sent + b"\r\n" + sent, sent + b"\r\n" + sent + b"\r\n"):
        for parts in ([data], singly(data)):
            gate = Gate().feed(*parts)
            assert gate.passed == [sent, sent]
            assert not gate.framing.in_head


def test_trailers_do_not_pass_but_all_else_of_a_chunked_body_does() -> None:
    framed = b"1;a=b\r\n{\r\n01\r\n}\r\n"
    sent = chunks(framed + b"000;x\r\nX-T: 1\r\nContent-Length: 5\r\n\r\n") + head(body=b"")
    passed = [chunks(framed + b"000;x\r\n\r\n"), head(body=b"")]
    for parts in ([sent], singly(sent), *((sent[:at], sent[at:]) for at in range(1, len(sent)))):
        assert Gate().feed(*parts).passed == passed


def test_what_means_nothing_does_not_pass() -> None:
    """Parsers make something of it: they keep what is to be closed, or wait for what never comes."""
    sent = head(b"Proxy-Connection: a", b"X-Upgrade: b", b"UPGRADE:", b"upgrade: tcp", body=b"")
    assert Gate().feed(sent).passed == [head(b"X-Upgrade: b", body=b"")]


# --- against aiohttp's parser -------------------------------------------------------------------------


class _Protocol:
    """What the parser wants of a connection."""

    def pause_reading(self) -> None:
        raise AssertionError("nothing here is that large")

    def resume_reading(self, resume_parser: bool = True) -> None:
        pass


def parsed(data: bytes, loop: asyncio.AbstractEventLoop) -> list[tuple[Any, Any]]:
    """The messages that aiohttp finds; fails on those that are not whole."""
    parser = HttpRequestParser(
        _Protocol(),
        loop,
        2**20,
        max_line_size=limits.MAX_HEAD,
        max_field_size=limits.MAX_HEAD,
        max_headers=limits.MAX_HEADERS,
        auto_decompress=False,
    )
    messages, _, _ = parser.feed_data(data)
    assert all(payload.is_eof() for _, payload in messages)
    return list(messages)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_aiohttp_reads_with_its_parser_in_c() -> None:
    """The other one is slower, and forgives other things."""
    assert HttpRequestParser.__module__ == "aiohttp._http_parser"


_PIECES = st.sampled_from(
    [
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b" ",
            b"\t",
            b":",
            b",",
            b";",
            b"\0",
            b"\x0b",
            b"\x80",
            b"#",
            b"*",
        ),
        *(b"POST", b"GET", b"OPTIONS", b"/generate", b"http://proxy/a", b"HTTP/1.1", b"HTTP/1.0"),
        *(b"Host: proxy\r\n", b"Host:", b"Content-Length: 2\r\n", b"Content-Length:", b"2", b"+2"),
        *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:", b"chunked", b"identity"),
        *(b"Connection: close\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"{}"),
        *(
            b"Proxy-Connection: close\r\n",
            b"0\r\n\r\n",
            b"2\r\n{}\r\n",
            b"2;x\r\n",
            b"X: a\r\n",
            b"Expect: 100-continue\r\n",
        ),
    ]
)
_SEEDS = st.sampled_from(
    [
        head(b"Content-Length: 2"),
        head(CHUNKED, body=b"2\r\n{}\r\n0\r\n\r\n"),
        head(body=b"") + head(b"Content-Length: 2"),
        *(shape.sent for shape in HEADS.values() if len(shape.sent) < 1000),
        *map(chunks, BODIES.values()),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request, or something like it, with pieces put in, taken out and put in place of others."""
    data = draw(_SEEDS)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 4))
        data = data[:at] + draw(st.one_of(_PIECES, st.just(b""))) + data[at + cut :]
    return data


@given(data=mutated())
@example(data=head(b"Sec-WebSocket-Key1: x", body=b""))
def test_what_passes_is_read_alike_by_aiohttp(data: bytes, loop: asyncio.AbstractEventLoop) -> None:
    gate = Gate()
    with contextlib.suppress(InvalidRequest):
        gate.feed(data)
    whole = len(gate.heads) - (not gate.framing.at_head)
    for found, passed in zip(gate.heads[:whole], gate.passed, strict=False):
        if b"sec-websocket-key1" in passed.lower():
            continue  # aiohttp refuses one name by principle
        ((message, payload),) = parsed(passed, loop)
        assert message.method == found.method
        assert message.path.encode("utf-8", "surrogateescape") == found.target
        assert message.chunked == found.chunked
        block = passed[: passed.index(b"\r\n\r\n")].split(b"\r\n")[1:]
        lines = [line.partition(b":") for line in block]
        assert [*message.raw_headers] == [(name, value.strip(b" \t")) for name, _, value in lines]
        body = payload.read_nowait() if payload.total_bytes else b""
        if not found.chunked:
            assert body == passed[passed.index(b"\r\n\r\n") + 4 :]
            assert len(body) == found.length


def test_the_documentation_lists_what_stands_alone() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text().lower()
    assert [name for name in SINGLE if f"`{name.decode()}`" not in page] == []
    assert [fault.value for fault in Fault if f"`{fault.value}`" not in page] == []
