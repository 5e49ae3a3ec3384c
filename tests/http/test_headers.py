"""Which headers pass, and in what shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_proxy.http.headers import (
    HOP_BY_HOP,
    InvalidHeader,
    check_headers,
    request_headers,
    response_headers,
)
from steersman_proxy.http.request import request_head

AUTHORITY = b"10.0.0.1:8000"


def test_row_31_of_a_clients_headers_only_the_end_to_end_ones_pass() -> None:
    """production-stack#201, vllm-router#158: Host is the engine's, hop-by-hop headers end here."""
    raw = [
        (b"Host", b"rollout.example"),
        (b"Connection", b"keep-alive, X-Hop"),
        (b"X-Hop", b"1"),
        (b"TE", b"trailers"),
        (b"Upgrade", b"h2c"),
        (b"Proxy-Authorization", b"z"),
        (b"Authorization", b"Bearer k"),
        (b"X-Session-ID", b"t1"),
        (b"x-smg-routing-key", b"t1"),
        (b"Accept-Encoding", b"identity"),
        (b"Keep-Alive", b"timeout=5"),
        (b"connection", b"x-other"),
        (b"X-OTHER", b"2"),
        (b"Proxy-Connection", b"keep-alive"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Trailer", b"X-T"),
        (b"Expect", b"100-continue"),
        (b"Cookie", b"a=1"),
        (b"X-data-parallel-rank", b"3"),
        (b"Cookie", b"b=2"),
        (b"Content-Length", b"999"),
        (b"X-Latin", b"caf\xe9 \x01\x7f  two spaces"),
    ]
    assert request_headers(raw, authority=AUTHORITY, method="POST", body_length=12) == [
        (b"Host", AUTHORITY),
        (b"Authorization", b"Bearer k"),
        (b"X-Session-ID", b"t1"),
        (b"x-smg-routing-key", b"t1"),
        (b"Accept-Encoding", b"identity"),
        (b"Cookie", b"a=1"),
        (b"X-data-parallel-rank", b"3"),
        (b"Cookie", b"b=2"),
        (b"X-Latin", b"caf\xe9 \x01\x7f  two spaces"),
        (b"Content-Length", b"12"),
    ]


def test_row_31_of_an_engines_headers_too() -> None:
    raw = [
        (b"Date", b"today"),
        (b"Server", b"uvicorn"),
        (b"Set-Cookie", b"a=1"),
        (b"Connection", b"X-Hop, close"),
        (b"Set-Cookie", b"b=2"),
        (b"x-hop", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Trailer", b"X-T"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Upgrade", b"h2c"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Length", b"5"),
        (b"content-type", b"text/plain"),
    ]
    kept = [
        (b"Date", b"today"),
        (b"Server", b"uvicorn"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Length", b"5"),
        (b"content-type", b"text/plain"),
    ]
    assert response_headers(raw) == kept
    added = (b"x-smg-weight-version", b"7")
    remove = frozenset({b"content-length", b"server"})
    assert response_headers(raw, remove=remove, add=[added]) == [
        header for header in kept if header[0] not in (b"Content-Length", b"Server")
    ] + [added]


def test_nothing_is_invented() -> None:
    assert request_headers([], authority=AUTHORITY, method="GET", body_length=0) == [
        (b"Host", AUTHORITY)
    ]
    assert response_headers([]) == []


@pytest.mark.parametrize(
    ("method", "length", "told"),
    [
        ("GET", 0, []),
        ("HEAD", 0, []),
        ("DELETE", 0, []),
        ("GET", 3, [b"3"]),
        ("POST", 0, [b"0"]),
        ("PUT", 0, [b"0"]),
        ("POST", 7, [b"7"]),
    ],
)
def test_the_length_is_the_real_one(method: str, length: int, told: list[bytes]) -> None:
    raw = [(b"content-length", b"5"), (b"Content-Length", b"6")]
    headers = request_headers(raw, authority=AUTHORITY, method=method, body_length=length)
    assert [value for name, value in headers if name == b"Content-Length"] == told


def test_a_connection_header_cannot_take_our_own_headers_out() -> None:
    raw = [(b"Connection", b"Host, Content-Length, x-request-id,, ,"), (b"x-request-id", b"theirs")]
    add = [(b"x-request-id", b"ours")]
    assert request_headers(raw, authority=AUTHORITY, method="POST", body_length=1, add=add) == [
        (b"Host", AUTHORITY),
        (b"x-request-id", b"ours"),
        (b"Content-Length", b"1"),
    ]


def test_what_is_asked_to_be_removed_is() -> None:
    raw = [(b"AUTHORIZATION", b"Bearer k0"), (b"X", b"1"), (b"Authorization", b"Bearer k0")]
    headers = request_headers(
        raw,
        authority=AUTHORITY,
        method="GET",
        body_length=0,
        remove=frozenset({b"authorization"}),
        add=[(b"Authorization", b"Bearer k1")],
    )
    assert headers == [(b"Host", AUTHORITY), (b"X", b"1"), (b"Authorization", b"Bearer k1")]


@pytest.mark.parametrize(
    "header",
    [
        (b"X", b"a\r\nY: b"),
        (b"X", b"a\r\n b"),
        (b"X", b"a\nb"),
        (b"X", b"a\rb"),
        (b"X", b"a\0b"),
        (b"X", b"a\n"),
        (b"X:", b"a"),
        (b"X ", b"a"),
        (b"X\n", b"a"),
        (b"", b"a"),
        (b"X\r\nY", b"a"),
        (b"caf\xe9", b"a"),
    ],
)
def test_no_header_can_end_its_line(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(InvalidHeader):
        check_headers([(b"Fine", b"yes"), header])


def test_the_error_does_not_show_the_value() -> None:
    with pytest.raises(InvalidHeader) as caught:
        check_headers([(b"Authorization", b"Bearer secret\n")])
    assert "secret" not in str(caught.value)
    assert "Authorization" in str(caught.value)


NAMES = st.sampled_from(
    [b"Host", b"X-A", b"x-a", b"Connection", b"TE", b"Cookie", b"Upgrade", b"X-Hop", b"Expect"]
)
VALUES = st.sampled_from([b"", b"x-a", b"X-Hop, close", b"1"])


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_what_passes_is_a_subsequence_and_never_hop_by_hop(raw: list[tuple[bytes, bytes]]) -> None:
    listed = {
        token.strip().lower()
        for name, value in raw
        if name == b"Connection"
        for token in value.split(b",")
    }
    kept = response_headers(raw)
    rest = iter(raw)
    assert all(header in rest for header in kept)
    dropped = HOP_BY_HOP | listed
    assert kept == [header for header in raw if header[0].lower() not in dropped]


@given(
    st.text(max_size=8),
    st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=3),
)
def test_no_input_makes_a_head_with_other_lines(
    target: str, headers: list[tuple[bytes, bytes]]
) -> None:
    try:
        head = request_head(method="GET", target="/" + target, headers=headers)
    except ValueError:
        return
    assert head.endswith(b"\r\n\r\n")
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert len(lines) == 1 + len(headers)
    assert lines[0].count(b" ") == 2
    assert not any(set(line) & set(b"\r\n\0") for line in lines)
