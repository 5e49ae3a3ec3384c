"""Requests as bytes: those that clients send, rare but proper ones, and attempts at smuggling."""

from tests.fuzz.example import KEY
from tests.fuzz.source import Source

PATHS = (
    b"/generate",
    b"/v1/chat/completions",
    b"/v1/completions",
    b"/inference/v1/generate",
    b"/v1/embeddings",
    b"/tokenize",
    b"/generate?stream=1&x=%2F%20//",
    b"/v1/chat/completions?",
)
OTHER_PATHS = (
    b"/health",
    b"/v1/models",
    b"/v1/models/a%2Fb",
    b"/liveness",
    b"/nowhere",
    b"/generate/",
    b"//generate",
    b"/%67enerate",
    b"/",
    b"*",
    b"/get_loads?a=b",
    b"/abort_request",
)
METHODS = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"POST", b"DELETE", b"PATCH")

HEADERS = (
    b"Content-Type: application/json",
    b"Accept: */*",
    b"User-Agent: OpenAI/Python 1.99.0",
    b"Accept-Encoding: gzip, deflate",
    b"authorization: Bearer " + KEY.encode(),
    b"Authorization: Bearer other",
    b"X-Api-Key: " + KEY.encode(),
    b"X-Stainless-Lang: python",
    b"x-request-id: mine-1",
    b"X-Request-ID:",
    b"x-smg-routing-key: t1",
    b"X-Session-ID: t2",
    b"x-smg-version-policy: latest-only",
    b"X-SMG-Version-Policy: any",
    b"x-smg-version-policy: newest",
    b'Cookie: a=1; b="2"',
    b"cookie: c=3",
    b"X-Empty:",
    b"X-Spaces:   a  b\t ",
    b"X-Tight:x",
    b"X-Latin: caf\xe9 \xff",
    b"X-Utf: caf\xc3\xa9",
    b"X!#$%&'*+-.^_`|~9: token",
    b"X-Colon: a:b: c",
    b"Forwarded: for=1.2.3.4",
    b"x-smg-routed-worker-id: http://evil",
    b"Origin: http://page",
    b"Content-Encoding: gzip",
    b"x_under: score",
    b"X-Long: " + b"l" * 900,
    b"Content-Lengths: 7",
    b"Content_Length: 9",
    b"X-Content-Length: 9",
    b"Close: the door",
)
HOP_BY_HOP = (
    b"Connection: keep-alive",
    b"connection: close",
    b"Connection: X-Spaces, cookie",
    b"Connection: , x-tight ,,",
    b"Keep-Alive: timeout=5, max=100",
    b"TE: trailers",
    b"Upgrade: h2c",
    b"Trailer: X-T",
    b"Proxy-Authorization: Basic eHg=",
    b"Proxy-Connection: keep-alive",
    b"proxy-authenticate: Basic",
    b"Expect: 100-continue",
    b"Connection: Keep-Alive, Close",
    b"Connection: te",
)
SMUGGLING = (
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"content-length : 5",
    b"Content-Length:\t2",
    b"Content-Length: +2",
    b"Content-Length: 2, 2",
    b"Content-Length: 0x2",
    b"Content-Length: -1",
    b"Content-Length:",
    b"Content-Length: 2\r\n 2",
    b"Content-Length: 00000000000000000000000000000002",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding:\r\n chunked",
    b" Transfer-Encoding: chunked",
    b"X: a\r\nTransfer-Encoding: chunked",
    b"X: a\nTransfer-Encoding: chunked",
    b"X: a\rTransfer-Encoding: chunked",
    b"Transfer_Encoding: chunked",
    b"Host: other",
    b"host : proxy",
    b"Host: proxy, other",
    b"Host: a@b",
    b"X-Nul: a\0b",
    b"X-Bell: a\x07b",
    b"X-Del: a\x7f",
    b"No colon",
    b": empty name",
    b"X(y): no token",
    b"X\xe9: no token",
    b"X-Fold: a\r\n\tb",
    b"\t",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Connection: content-length",
    b"Connection: host",
    b"Connection: transfer-encoding",
    b"Expect: nothing",
    b"HTTP2-Settings: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
)
BODIES = (b"{}", b"", b"{", b'{"stream": true}', b'{"model":"model-p","x":"\xc3\xa9"}')
FILLER = b"".join(bytes([letter]) * 4000 for letter in range(ord("A"), ord("z")))
"""In runs, which print short; two places of it are hardly ever the same."""
SIZES = (0, 1, 2, 255, 4096, 65_535, 65_536, 70_000, 131_073, 199_999, 200_000, 200_001)


def request(source: Source) -> bytes:
    """One request, mostly a proper one."""
    if source.chance(30):
        return usual_one(source)
    usual = source.below(100)
    path = source.choice(PATHS) if usual < 75 else source.choice(OTHER_PATHS)
    if usual >= 75:
        method = source.choice(METHODS)
    else:
        method = b"POST" if usual < 70 else source.choice(METHODS)
    return rendered(source, method=method, target=path)


def usual_one(source: Source) -> bytes:
    """As a trainer sends it."""
    content = source.choice((b'{"text": "a"}', b'{"x": "%b"}' % (b"p" * 5000)))
    headers = [b"Host: proxy:30000", b"Accept: */*", b"Content-Type: application/json"]
    if source.chance(20):
        headers += source.sample(HEADERS, 2)
    path = source.choice(PATHS[:4])
    lines = [b"POST %b HTTP/1.1" % path, *headers, b"Content-Length: %d" % len(content)]
    return b"\r\n".join((*lines, b"", content))


def rendered(source: Source, *, method: bytes, target: bytes) -> bytes:
    """A request of this method for this target."""
    version = b"HTTP/1.0" if source.chance(6) else b"HTTP/1.1"
    if source.chance(3):
        target = source.choice((b"http://proxy", b"HTTP://proxy:1", b"https://p")) + target
    headers = source.sample(HEADERS, 5)
    if source.chance(25):
        headers += source.sample(HOP_BY_HOP, 3)
    if source.chance(10):
        headers.append(source.choice(SMUGGLING))
    headers = [recased(source, header) for header in headers]
    content, framing = body(source, none=method in (b"GET", b"HEAD", b"OPTIONS", b"DELETE"))
    host = b"Host: " + source.choice((b"proxy", b"proxy:30000", b"[::1]:1", b"a.b-c.d", b"p"))
    if source.chance(2):
        host = source.choice((b"", b"Host:", b"hOST: proxy", b"Host: proxy\r\nHost: proxy"))
    headers.insert(source.below(len(headers) + 1), framing)
    headers.insert(source.below(len(headers) + 1), host)
    lines = [b"%b %b %b" % (method, target, version), *(line for line in headers if line)]
    return b"\r\n".join((*lines, b"", content))


def recased(source: Source, header: bytes) -> bytes:
    """The header, its name perhaps in another case, the colon perhaps otherwise spaced."""
    if not source.chance(10):
        return header
    name, colon, value = header.partition(b":")
    name = source.choice((name.lower(), name.upper(), name.swapcase()))
    return name + colon + source.choice((b" ", b"", b"\t", b"  ")) + value.strip(b" \t")


def body(source: Source, *, none: bool) -> tuple[bytes, bytes]:
    """A body as it goes over the wire, and the header that frames it."""
    if none and not source.chance(10):
        return b"", b""
    content = FILLER[: source.choice(SIZES)] if source.chance(8) else source.choice(BODIES)
    if source.chance(15):
        name = source.choice((b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked"))
        return chunked(source, content), name
    return content, b"Content-Length: %d" % len(content)


def chunked(source: Source, content: bytes) -> bytes:
    """Chunks, mostly proper ones."""
    out = b""
    for piece in source.cuts(content, 3):
        if not piece:
            continue
        size = b"%x" % len(piece)
        if source.chance(20):
            size = source.choice(
                (size.upper(), b"0" + size, b"000" + size, size + b";a", size + b";a=b")
            )
        if source.chance(4):
            size = source.choice(
                (
                    b"0x" + size,
                    b"+" + size,
                    b"-" + size,
                    b" " + size,
                    size + b" ",
                    size + b"g",
                    b"",
                    b"f" * 17,
                    size + b"\n",
                    size + b";a\n",
                    size + b";\r",
                    b"1" + b"0" * 16,
                )
            )
        end = source.choice((b"\n", b"", b"\r", b"XX", b"\r\r\n")) if source.chance(3) else b"\r\n"
        out += size + b"\r\n" + piece + end
    last = source.choice((b"0", b"00", b"0;x", b"0;x=y")) if source.chance(10) else b"0"
    out += last + b"\r\n"
    if source.chance(10):
        out += source.choice(
            (
                b"X-T: 1\r\n",
                b"X-T: 1\r\nx-u:\r\n",
                b"Content-Length: 5\r\n",
                b" folded\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"bad trailer\r\n",
                b"x: a\n",
                b"Host: b\r\n",
            )
        )
    return out + b"\r\n"


# --- Mutations ------------------------------------------------------------------------------------

_SPECIAL = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n\r\n", b"\x80", b"\xff", b"0", b",",
    b"\r\n ", b"HTTP/1.1", b"\n\n", b"POST /generate HTTP/1.1\r\n", b";", b"%", b"/", b"\x0b",
)  # fmt: skip


def mutated(source: Source, data: bytes) -> bytes:
    """``data`` with one to three small changes."""
    for _ in range(1 + source.below(3)):
        if not data:
            return data
        near = source.below(len(data)) if source.chance(40) else source.below(min(len(data), 400))
        if source.chance(40):
            line = data.find(b"\r\n", near)
            near = near if line < 0 else line
        match source.below(8):
            case 0:
                data = data[:near] + bytes([data[near] ^ (1 << source.below(8))]) + data[near + 1 :]
            case 1 | 2:
                data = data[:near] + source.choice(_SPECIAL) + data[near:]
            case 3:
                data = data[:near] + data[near + 1 + source.below(4) :]
            case 4:
                size = 1 + source.below(20)
                data = data[: near + size] + data[near : near + size] + data[near + size :]
            case 5:
                data = data[:near] + data[near:].replace(b"\r\n", b"\n", 1 + source.below(2))
            case 6:
                line = data.find(b"\r\n", near)
                if line >= 0:
                    data = data[: line + 2] + source.choice(SMUGGLING) + data[line:]
            case _:
                data = data[:near] + bytes([source.below(256)]) + data[near + 1 :]
    return data
