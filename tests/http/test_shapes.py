"""A head of a known shape says what it would say if it were read line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_proxy.exchange.admission import Admission
from steersman_proxy.exchange.targeting import affinity_key
from steersman_proxy.http import plain_head as plain_heads
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.plain_head import plain_head
from steersman_proxy.http.shapes import KeptLines, Shapes
from steersman_proxy.http.splice import head as regular_heads
from steersman_proxy.http.splice.head import RegularHead, ShapedHead, regular_head
from steersman_proxy.http.splice.way import Way

BASE = base_url("http://10.0.0.7:8000")


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are remembered by the process; what another test taught must not be of help here."""
    for module in (regular_heads, plain_heads):
        monkeypatch.setattr(module._shapes, "_known", {})
        monkeypatch.setattr(module._shapes, "_seen", set())


def request(*lines: bytes) -> bytes:
    return b"\r\n".join((b"POST /v1/chat/completions HTTP/1.1", b"Host: proxy", *lines))


def answer(*lines: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines))


def read(text: bytes) -> RegularHead | None:
    return regular_head(text + b"\r\n\r\nbody", len(text))


def taught(text: bytes) -> None:
    """Have the shape of a head remembered: it is when it comes again."""
    for _ in range(2):
        assert not isinstance(read(text), ShapedHead)


IDS = (b"X-Session-ID", b"x-request-id", b"X-SMG-Routing-Key", b"Traceparent")
VALUES = st.text(alphabet="abcXYZ019-_.:/", min_size=1, max_size=12).map(str.encode)
LINES = st.one_of(
    st.sampled_from(
        [
            b"Accept: */*",
            b"authorization: Bearer k",
            b"Connection: keep-alive",
            b"connection: close",
            b"Content-Type: application/json",
            b"Te: trailers",
            b"x-smg-target-worker: 3",
            b"x-session-id: with spaces, and more",
            b"Keep-Alive: 5",
        ]
    ),
    st.tuples(st.sampled_from(IDS), VALUES).map(lambda pair: b"%b: %b" % pair),
)
LENGTHS = st.integers(0, 10**19).map(lambda n: b"Content-Length: %d" % n)


def other_values(data: st.DataObject, text: bytes) -> bytes:
    """The same head with other values in the lines that differ."""
    lines = []
    for line in text.split(b"\r\n"):
        name, _, _ = line.partition(b": ")
        if name in IDS:
            line = b"%b: %b" % (name, data.draw(VALUES))
        elif name == b"Content-Length":
            line = data.draw(LENGTHS)
        lines.append(line)
    return b"\r\n".join(lines)


@given(
    st.lists(LINES, max_size=8).flatmap(
        lambda lines: st.permutations([*lines, b"Content-Length: 3"])
    ),
    st.data(),
)
def test_a_request_of_a_known_shape_reads_as_line_by_line(
    lines: list[bytes], data: st.DataObject
) -> None:
    text = request(*lines)
    for _ in range(3):
        read(text)
    other = other_values(data, text)
    head, expected = read(other), regular_heads._read(other)
    if expected is None:
        assert head is None
        return
    assert head is not None
    assert head.body_length == expected.body_length
    assert (head.method, head.keep_alive) == (expected.method, expected.keep_alive)
    if head.shape is not None:
        way = Way(head, Admission(consumed=frozenset({b"authorization"})))
        remove = frozenset({b"authorization"})
        lines_ = [*expected.begun(BASE, remove), b"Content-Length: %d" % expected.body_length]
        assert way.written(head, BASE, b"") == b"\r\n".join((*lines_, b"", b""))
        assert way.affinity(head) == affinity_key(expected)
        assert way.names_itself == (b"x-request-id" in expected.raw)
    assert head.raw == expected.raw
    assert head.headers == expected.headers
    assert (head.target, head.path, head.repeats) == (
        expected.target,
        expected.path,
        expected.repeats,
    )


ANSWER_LINES = st.sampled_from(
    [
        b"content-type: application/json",
        b"server: uvicorn",
        b"connection: keep-alive",
        b"connection: close",
        b"x-request-id: abc",
        b"vary: a",
        b"vary: b",
        b"content-encoding: gzip",
        b"date: Mon, 30 Nov 2026 14:13:26 GMT",
        b"Date: Tue, 01 Dec 2026 00:00:00 GMT",
    ]
)


@given(
    st.lists(ANSWER_LINES, max_size=6).flatmap(
        lambda lines: st.permutations([*lines, b"content-length: 3"])
    ),
    st.integers(0, 10**19),
)
def test_an_answer_of_a_known_shape_reads_as_line_by_line(lines: list[bytes], length: int) -> None:
    text = answer(*lines)
    for _ in range(3):
        plain_head(text + b"\r\n\r\n", len(text))
    other = text.replace(b"content-length: 3", b"content-length: %d" % length)
    other = other.replace(b"14:13:26", b"15:00:00").replace(b"id: abc", b"id: other")
    head, expected = plain_head(other + b"\r\n\r\n", len(other)), plain_heads._read(other)
    if expected is None:
        assert head is None
        return
    assert head is not None
    assert b"".join(head.kept()) == b"".join(expected.kept())
    for attribute in ("length", "status", "keep_alive", "json", "special", "reason", "by_name"):
        assert getattr(head, attribute) == getattr(expected, attribute), attribute
    assert head.pairs() == expected.pairs()
    assert head.passing(frozenset()) == expected.passing(frozenset())


def test_a_shape_is_known_from_the_third_time_on() -> None:
    taught(request(b"X-Session-ID: 1", b"Content-Length: 1"))
    head = read(request(b"X-Session-ID: two", b"Content-Length: 22"))
    assert isinstance(head, ShapedHead)
    assert (head.values, head.body_length) == ([b"two", b"22"], 22)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([b"X-Session-ID: 1", b"Content-Length: 1", b"X: 1"], id="one-line-more"),
        pytest.param([b"Content-Length: 1", b"X-Session-ID: 1"], id="another-order"),
        pytest.param([b"x-session-id: 1", b"Content-Length: 1"], id="another-spelling"),
        pytest.param([b"X-Session-ID: a b", b"Content-Length: 1"], id="a-value-with-a-space"),
    ],
)
def test_another_head_is_of_another_shape(other: list[bytes]) -> None:
    taught(request(b"X-Session-ID: 1", b"Content-Length: 1"))
    head = read(request(*other))
    assert head is not None
    assert head.shape is None


@pytest.mark.parametrize("length", [b"1x", b"-1", b"1.5", b"9" * 19, b"0x10", b"1:2"])
def test_what_is_no_length_is_irregular_in_a_known_shape_too(length: bytes) -> None:
    taught(request(b"Content-Length: 1"))
    assert read(request(b"Content-Length: " + length)) is None


@pytest.mark.parametrize(
    "line", [b"X-Session-ID: 1\n", b"X-Session-ID: 1\r", b"X-Session-ID:1", b"X-Session-ID: \x001"]
)
def test_a_bad_line_is_irregular_beside_a_known_shape(line: bytes) -> None:
    taught(request(b"X-Session-ID: 1", b"Content-Length: 1"))
    assert read(request(line, b"Content-Length: 1")) is None


def test_lines_that_are_forgotten_are_forgotten_once() -> None:
    taught(request(b"x-request-id: 1", b"Content-Length: 1"))
    head = read(request(b"x-request-id: 2", b"Content-Length: 1"))
    assert isinstance(head, ShapedHead)
    head.forget_lines()
    assert head.headers == []
    assert head.first(b"x-request-id") == "2"
    assert head.headers == []
    head.forget_lines()
    assert head.first(b"x-request-id") == "2"


def test_a_name_that_no_head_has_is_an_error() -> None:
    taught(request(b"Content-Length: 1"))
    head = read(request(b"Content-Length: 2"))
    with pytest.raises(AttributeError, match="color"):
        _ = head.color  # type: ignore[union-attr]


def test_what_is_remembered_is_bounded() -> None:
    shapes = Shapes[int]((b"A",), value=rb"[a-z]+")
    for number in range(20_000):
        parts = shapes.parts(b"X %d\r\nA: b" % number)
        assert not shapes.comes_again(parts)
        assert shapes.comes_again(parts)
        shapes.learn(parts, number)
        assert shapes.get(parts) == number
    assert len(shapes._known) <= 1024
    assert len(shapes._seen) <= 8192
    long = shapes.parts(b"X\r\nB: " + b"b" * 5000)
    assert not shapes.comes_again(long)
    assert not shapes.comes_again(long)


def test_kept_lines_are_written_with_their_values() -> None:
    shapes = Shapes[int]((b"A", b"B"), value=rb"[a-z]+")
    parts = shapes.parts(b"first\r\nX: 1\r\nA: a\r\nB: b\r\nY: 2\r\nZ: 3")
    for passes, expected in (
        ((True,) * 5, b"X: 1\r\nA: v\r\nB: w\r\nY: 2\r\nZ: 3\r\n"),
        ((False, True, False, False, True), b"A: v\r\nZ: 3\r\n"),
        ((True, False, True, True, False), b"X: 1\r\nB: w\r\nY: 2\r\n"),
        ((False,) * 5, b""),
    ):
        assert b"".join(KeptLines(parts, passes).fill((b"v", b"w"))) == expected
