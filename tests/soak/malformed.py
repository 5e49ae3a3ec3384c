"""What is no HTTP/1.1 request, or one that two readers could see differently (RFC 9112, 11.2)."""

_HOST = b"Host: rollout\r\nX-Nonce: NONCE\r\n"
_POST = b"POST /generate HTTP/1.1\r\n" + _HOST
_INNER = b"POST /generate HTTP/1.1\r\n" + _HOST + b"Content-Length: 2\r\n\r\n{}"
"""A request that one of two readers could find within the body of another."""


def _with(*lines: bytes, body: bytes = b"{}") -> bytes:
    return _POST + b"\r\n".join((*lines, b"", body))


MALFORMED: tuple[tuple[str, bytes], ...] = (
    ("two lengths", _with(b"Content-Length: 2", b"Content-Length: 3")),
    ("two lengths in one", _with(b"Content-Length: 2, 3")),
    ("a negative length", _with(b"Content-Length: -2")),
    ("a length with a sign", _with(b"Content-Length: +2")),
    ("a length in hexadecimal", _with(b"Content-Length: 0x2")),
    ("a length in two words", _with(b"Content-Length: 2 2")),
    ("an empty length", _with(b"Content-Length: ")),
    ("a huge length", _with(b"Content-Length: " + b"9" * 40)),
    (
        "both framings",
        _with(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _INNER),
    ),
    (
        "both framings, the other way round",
        _with(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + _INNER),
    ),
    ("an unknown coding", _with(b"Transfer-Encoding: xchunked", body=_INNER)),
    ("chunked not last", _with(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n")),
    ("chunked twice", _with(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n")),
    ("a coding under chunks", _with(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    ("a coding after a tab", _with(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n")),
    ("a folded line", _with(b"X-Long: a", b" Content-Length: 30", b"Content-Length: 2")),
    ("a space before the colon", _with(b"Content-Length : 2")),
    ("a space before a name", _with(b" X-First: 1", b"Content-Length: 2")),
    ("no colon", _with(b"Content-Length 2")),
    ("no name", _with(b": 2", b"Content-Length: 2")),
    ("NUL in a value", _with(b"X-Zero: a\0b", b"Content-Length: 2")),
    ("a bare CR in a value", _with(b"X-Return: a\rContent-Length: 30", b"Content-Length: 2")),
    ("bare line feeds", _with(b"Content-Length: 2").replace(b"\r\n", b"\n")),
    ("one bare line feed", _with(b"X-Feed: a\nX-More: b", b"Content-Length: 2")),
    ("a name with a slash", _with(b"X/Y: a", b"Content-Length: 2")),
    ("two hosts", _with(b"Host: another", b"Content-Length: 2")),
    ("a head of 100 KB", _with(b"X-Long: " + b"a" * 100_000, b"Content-Length: 2")),
    ("a thousand headers", _with(*(b"X-%d: a" % n for n in range(1000)), b"Content-Length: 2")),
    ("no version", b"POST /generate\r\n" + _HOST + b"\r\n"),
    ("another version", _with(b"Content-Length: 2").replace(b"HTTP/1.1", b"HTTP/9.9")),
    ("a version in small letters", _with(b"Content-Length: 2").replace(b"HTTP/1.1", b"http/1.1")),
    ("two spaces", _with(b"Content-Length: 2").replace(b"POST ", b"POST  ")),
    ("a tab", _with(b"Content-Length: 2").replace(b"POST ", b"POST\t")),
    ("a method of punctuation", _with(b"Content-Length: 2").replace(b"POST", b"(POST)")),
    ("no target", _with(b"Content-Length: 2").replace(b"/generate ", b"")),
    ("the hello of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100)),
    ("noise", bytes(range(255, 0, -1)) * 4 + b"\r\n\r\n"),
)
