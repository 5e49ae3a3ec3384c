"""Engines' answers as bytes: proper ones, rare ones, and broken ones."""

from tests.fuzz.example import Answer, End
from tests.fuzz.source import Source

STATUSES = (
    b"200 OK", b"200 OK", b"200 OK", b"200 ", b"201 Created", b"299 Very  well", b"204 No Content",
    b"304 Not Modified", b"400 Bad Request", b"404 Not Found", b"429 Too Many Requests",
    b"500 Internal Server Error", b"503 Service Unavailable", b"302 Found", b"418 caf\xe9",
)  # fmt: skip
HEADERS = (
    b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
    b"server: uvicorn",
    b"Set-Cookie: a=1",
    b"set-cookie: b=2",
    b"X-Empty: ",
    b"X-Tight:x",
    b"X-Latin: \xe9\xff",
    b"X-Spaces:  a  b ",
    b"x-smg-weight-version: 99",
    b"X-SMG-Mixed-Version: true",
    b"x-smg-routed-worker-id: http://evil",
    b"X-Request-Id: theirs",
    b"Access-Control-Allow-Origin: *",
    b"Location: /elsewhere",
    b"Connection: keep-alive",
    b"Connection: close",
    b"connection: x-tight, Set-Cookie",
    b"Keep-Alive: timeout=5",
    b"Trailer: X-T",
    b"Upgrade: h2c",
    b"Proxy-Authenticate: Basic",
    b"Content-Encoding: identity",
    b"Content-Encoding: gzip",
    b"close: 1",
)
BAD_HEADERS = (
    b"Content-Length: 3",
    b"Content-Length: 3\r\nContent-Length: 4",
    b"Content-Length: x",
    b"Content-Length: -1",
    b"Content-Length : 2",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"X: a\r\n b",
    b"X: a\nY: b",
    b"X: a\0",
    b"X: \x07",
    b"no colon",
    b" X: a",
    b"X\xe9: a",
    b"Connection: content-length",
    b"X-Long: " + b"x" * 66_000,
)
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\nhi",
)
JSON = (
    b'{"text": "hi", "meta_info": {"weight_version": "7"}}',
    b'{"text": "hi", "meta_info": {"weight_version": "8"}}',
    b'{"metadata":{"weight_version":"9"},"choices":[]}',
    b'{"meta_info": {"weight_version": "default"}}',
    b'{"meta_info": {"weight_version": 8}}',
    b'[{"meta_info": {"weight_version": "7"}}, {"meta_info": {"weight_version": "8"}}]',
    b'{"text": "\xc3\xa9"}',
    b'{"broken',
    b"",
)
EVENTS = (
    b'data: {"text": "a", "meta_info": {"weight_version": "7"}}\n\n',
    b'data: {"text": "a", "meta_info": {"weight_version": "8"}}\r\n\r\n',
    b'data:{"text":"\xc3\xa9","meta_info":{"weight_version":"9"}}\n\n',
    b'data: {"choices":[{"delta":{"content":"\xe2\x82\xac"}}]}\n\n',
    b": ping\n\n",
    b'event: x\ndata: {"a":\ndata: 1}\n\n',
    b"\n",
    b"data: [DONE]\n\n",
)
KINDS = (
    b"Content-Type: application/json",
    b"content-type: application/json; charset=utf-8",
    b"Content-Type: text/event-stream; charset=utf-8",
    b"content-type: text/event-stream",
    b"Content-Type: text/plain",
    b"",
)


def answer(source: Source) -> Answer:
    """What an engine does with one request."""
    if source.chance(30):
        return usual(source)
    if source.chance(4):
        return Answer((), source.choice(("fin", "rst", "keep")))
    data, ends = head_and_body(source)
    end: End = "fin" if ends else "keep"
    surplus = b""
    if source.chance(12):
        match source.below(5):
            case 0 | 1:
                data = data[: source.below(len(data) + 1)]
                end = source.choice(("fin", "rst", "rst", "keep"))
            case 2:
                surplus = source.choice(
                    (
                        b"\r\n",
                        b"x",
                        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother",
                        b"0\r\n\r\n",
                    )
                )
            case 3:
                end = source.choice(("fin", "rst"))
            case _:
                end = "keep" if ends else source.choice(("rst", "fin"))
    if source.chance(25):
        data = source.choice(INTERIM[:3] if source.chance(80) else INTERIM) + data
    whole = WHOLE in data
    data = data.replace(WHOLE, b"")
    pieces = source.cuts(data, 4) if source.chance(50) and not whole else (data,)
    # Surplus that came later could only be taken for the next answer, by anybody.
    return Answer((*pieces[:-1], pieces[-1] + surplus), end)


WHOLE = b"\0whole\0"
"""Put at the end of an answer that must not be cut; taken out again."""


def usual(source: Source) -> Answer:
    """What nearly all engines do with nearly all requests: JSON with a length, mostly in one read."""
    version = source.choice((b"7", b"7", b"7", b"7", b"8", b"07", b"default", b""))
    content = b'{"text": "%b"' % source.choice((b"hi", b"", b"x" * 300, b"y" * 9000, b"\xc3\xa9"))
    if version:
        content += b', "meta_info": {"weight_version": "%b"}' % version
    content += b"}"
    headers = [b"date: today", b"server: uvicorn", b"content-length: %d" % len(content)]
    headers += source.sample(HEADERS, 2) if source.chance(30) else []
    headers.append(b"content-type: application/json")
    status = source.choice((b"200 OK", b"200 OK", b"400 Bad Request", b"503 Service Unavailable"))
    data = b"\r\n".join((b"HTTP/1.1 " + status, *headers, b"", content))
    pieces = source.cuts(data, 3) if source.chance(20) else (data,)
    return Answer(pieces, "fin" if source.chance(3) else "keep")


def head_and_body(source: Source) -> tuple[bytes, bool]:
    """A whole answer, and whether its end is the end of the connection."""
    version = b"HTTP/1.0" if source.chance(5) else b"HTTP/1.1"
    status = source.choice(STATUSES) if source.chance(30) else b"200 OK"
    kind = source.choice(KINDS)
    headers = source.sample(HEADERS, 4)
    content = body(source, kind)
    framing, ends = b"", False
    match source.below(6):
        case 0 | 1 | 2:
            framing = b"Content-Length: %d" % len(content)
            if status[:3] in (b"204", b"304"):
                content = b""
                framing = framing if source.chance(50) else b""
        case 3 | 4:
            if version == b"HTTP/1.1" and status[:3] not in (b"204", b"304"):
                framing = source.choice(
                    (b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked")
                )
                content = chunked(source, content)
            else:
                framing = b"Content-Length: %d" % len(content)
                content = b"" if status[:3] in (b"204", b"304") else content
        case _:
            ends = True
            content = b"" if status[:3] in (b"204", b"304") else content
    if source.chance(4):
        headers.append(source.choice(BAD_HEADERS))
        # In one piece: what comes after an early end could only be taken for the next answer.
        content += WHOLE
    headers.insert(source.below(len(headers) + 1), kind)
    headers.insert(source.below(len(headers) + 1), framing)
    lines = [version + b" " + status, *(header for header in headers if header)]
    return b"\r\n".join((*lines, b"", content)), ends


def body(source: Source, kind: bytes) -> bytes:
    if b"event-stream" in kind:
        return b"".join(source.sample(EVENTS, 5))
    if source.chance(6):
        return b'{"pad": "' + b"p" * source.choice((1, 4096, 65_536, 300_000)) + b'"}'
    return source.choice(JSON) if b"json" in kind else source.choice((b"ok", b"", b"x" * 100))


def chunked(source: Source, content: bytes) -> bytes:
    out = b""
    for piece in source.cuts(content, 4):
        if piece:
            size = b"%x" % len(piece)
            if source.chance(15):
                size = source.choice((size.upper(), b"0" + size, size + b";a=b"))
            if source.chance(2):
                size = source.choice((b"z", size + b" ", b"-1", size + b"\n", b"0x" + size))
            out += size + b"\r\n" + piece + (b"XX" if source.chance(1) else b"\r\n")
    if source.chance(10):
        return (
            out
            + b"0\r\n"
            + source.choice((b"X-T: 1\r\n", b"bad\r\n", b"x: y\r\nz: 1\r\n"))
            + b"\r\n"
        )
    return out + b"0\r\n\r\n"
