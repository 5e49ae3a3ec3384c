"""Answers out of bytes, however they are cut, and bytes that are none."""

import json

import pytest

from steersman_operator.engines import answers as answers_module
from steersman_operator.engines.answers import AnswerReader, Broken, Reply

HEAD = b"HTTP/1.1 200 OK\r\n"


def read(raw: bytes, *, cuts: tuple[int, ...] = (), ended: bool = False) -> list[Reply]:
    reader = AnswerReader()
    replies: list[Reply] = []
    for begin, end in zip((0, *cuts), (*cuts, len(raw)), strict=True):
        replies += reader.feed(raw[begin:end])
    if ended:
        last = reader.end()
        replies += [] if last is None else [last]
    return replies


def ok(body: bytes = b"", status: int = 200) -> Reply:
    return Reply(status=status, body=body)


ANSWERS = [
    (HEAD + b"Content-Length: 0\r\n\r\n", [ok()]),
    (HEAD + b"Content-Length: 5\r\n\r\nhello", [ok(b"hello")]),
    (HEAD + b"content-length:\t5 \r\nX: y\r\n\r\nhello", [ok(b"hello")]),
    (HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", [ok(b"x")]),
    (HEAD + b"Content-Encoding: identity\r\nContent-Length: 1\r\n\r\nx", [ok(b"x")]),
    (b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", [ok(status=503)]),
    (b"HTTP/1.1 404\r\nContent-Length: 2\r\n\r\n\r\n", [ok(b"\r\n", 404)]),
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", [ok(status=204)]),
    (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", [ok(status=304)]),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [ok()]),
    (
        HEAD + b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA ;x=y\r\n, everyone\r\n0\r\n\r\n",
        [ok(b"hello, everyone")],
    ),
    (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n000\r\nA: b\r\nC: d\r\n\r\n",
        [ok(b"x")],
    ),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\nx", [ok(b"x")]),
    (
        HEAD + b"Content-Length: 1\r\n\r\na" + b"HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nb"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\n"
        b"HTTP/1.1 204 No\r\n\r\n",
        [ok(b"a"), ok(b"b", 404), ok(b"c"), ok(status=204)],
    ),
]


@pytest.mark.parametrize(("raw", "expected"), ANSWERS)
def test_wherever_they_are_cut(raw: bytes, expected: list[Reply]) -> None:
    assert read(raw) == expected
    assert read(raw, cuts=tuple(range(1, len(raw)))) == expected, "one byte at a time"
    for cut in range(1, len(raw)):
        assert read(raw, cuts=(cut,)) == expected


@pytest.mark.parametrize(("raw", "expected"), ANSWERS)
def test_an_end_afterwards_changes_nothing(raw: bytes, expected: list[Reply]) -> None:
    assert read(raw, ended=True) == expected


@pytest.mark.parametrize(("raw", "expected"), ANSWERS[1:4] + ANSWERS[9:12])
def test_an_end_in_the_middle_is_no_answer(raw: bytes, expected: list[Reply]) -> None:
    for cut in range(1, len(raw)):
        with pytest.raises(Broken) as caught:
            read(raw[:cut], ended=True)
        assert not caught.value.garbled


@pytest.mark.parametrize(
    "head", [HEAD, HEAD + b"Connection: keep-alive\r\n", b"HTTP/1.0 200 x\r\n"]
)
def test_without_a_length_it_lasts_until_the_end(head: bytes) -> None:
    raw = head + b"\r\nto the end\r\n\r\n"
    assert read(raw) == []
    for cut in range(1, len(raw)):
        assert read(raw, cuts=(cut,), ended=True) == [ok(b"to the end\r\n\r\n")]


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (HEAD, False),
        (HEAD + b"Connection: keep-alive\r\n", False),
        (HEAD + b"Connection: close\r\n", True),
        (HEAD + b"connection: Upgrade , CLOSE\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", True),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", False),
    ],
)
def test_whether_the_connection_ends(head: bytes, *, closes: bool) -> None:
    reader = AnswerReader()
    assert reader.feed(head + b"Content-Length: 0\r\n\r\n") == [ok()]
    assert reader.closes is closes
    assert reader.between


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        HEAD + b"nonsense\r\n\r\n",
        HEAD + b": x\r\n\r\n",
        HEAD + b"A: b\r\n folded\r\n\r\n",
        HEAD + b"Content-Length : 5\r\n\r\nhello",
        HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\nhello",
        HEAD + b"Content-Length: \xb2\r\n\r\n",
        HEAD + b"Content-Length:\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        HEAD + b"A: " + b"x" * 70_000,
    ],
)
def test_what_does_not_speak_http(raw: bytes) -> None:
    with pytest.raises(Broken) as caught:
        read(raw)
    assert caught.value.garbled


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n123456789\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 70_000,
    ],
)
def test_a_body_that_is_none(raw: bytes) -> None:
    with pytest.raises(Broken) as caught:
        read(raw)
    assert not caught.value.garbled


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Content-Length: 11\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n5\r\n12345\r\n",
        HEAD + b"\r\n12345678901",
    ],
    ids=["length", "chunks", "until the end"],
)
def test_an_endless_body_is_given_up(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(answers_module, "BODY_LIMIT", 10)
    with pytest.raises(Broken, match="too long"):
        read(raw)


def test_a_long_body_in_many_parts_is_read_once() -> None:
    """And not from its beginning with each part."""
    body = json.dumps({"x": "y" * 4_000_000}).encode()
    raw = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    (reply,) = read(raw, cuts=tuple(range(64, len(raw), 64)))
    assert reply.body == body
