"""One client's connection in the soak: writes requests as bytes, and reads answers by hand, strictly."""

import asyncio
import json
import random
import socket
import struct
import time
from typing import NamedTuple, Self

import msgspec

from tests.soak.content import Ask, answer_body, answer_status
from tests.soak.ledger import End

PATIENCE = 40.0
"""Seconds after which a request hangs; all limits of the proxy are far below."""

_GONE = (asyncio.IncompleteReadError, ConnectionError)


class Wrong(Exception):
    """What must not happen, whatever fails."""


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    headers: dict[str, list[str]]

    def one(self, name: str) -> str | None:
        values = self.headers.get(name, [])
        if len(values) > 1:
            raise Wrong(f"{name} is there {len(values)} times: {values}")
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        return self.one("connection") == "close"


class Result(NamedTuple):
    """How a request ended; ``goes_on`` says whether its connection takes another."""

    end: End
    code: str = ""
    goes_on: bool = False


class Link:
    """A connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.served = 0
        """Final answers that began here."""
        self.last = 0.0
        """When the last of them began."""

    @classmethod
    async def open(cls, port: int, *, window: int | None = None) -> Self:
        """Connect; ``window`` bounds the bytes that may wait here unread.

        :raises ConnectionError: if that fails.
        """
        sock = socket.socket()
        try:
            if window is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=window or 2**17)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer)

    def __str__(self) -> str:
        ago = time.monotonic() - self.last
        return f"{self.writer.get_extra_info('sockname')}, {self.served} answers, {ago:.3f} s ago"

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    def leave(self, chance: random.Random) -> None:
        """Close: properly, or with a reset."""
        if chance.random() < 0.5:
            linger = struct.pack("ii", 1, 0)
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def head(self) -> Head:
        """The head of the next final answer."""
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
            version, status = lines[0].split(" ", 2)[:2]
            if version != "HTTP/1.1":
                raise Wrong(f"an answer that begins with {lines[0]!r}")
            headers: dict[str, list[str]] = {}
            for line in lines[1:]:
                name, _, value = line.partition(": ")
                headers.setdefault(name.lower(), []).append(value)
            if int(status) >= 200:
                self.served += 1
                self.last = time.monotonic()
                return Head(int(status), headers)

    async def end(self) -> None:
        """The proxy closes, and says no more."""
        try:
            rest = await self.reader.read(2**16)
        except ConnectionError:
            return
        if rest:
            raise Wrong(f"bytes after the last answer: {rest[:100]!r}")

    async def answer(
        self,
        ask: Ask,
        *,
        old: bool = False,
        rest: float = 0.0,
        pace: float = 0.0,
        until: int | None = None,
    ) -> Result:
        """The answer to ``ask``, compared byte by byte.

        ``old`` is HTTP/1.0, ``rest`` is in seconds after the head, ``pace`` before each read,
        ``until`` the number of bytes of the body after which the client has enough.

        :raises Wrong: if any of it belongs to something else.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._answer(ask, old=old, rest=rest, pace=pace, until=until)
        except TimeoutError:
            raise Wrong(f"{ask} is neither answered nor ended after {PATIENCE:g} s") from None

    async def _answer(
        self, ask: Ask, *, old: bool, rest: float, pace: float, until: int | None
    ) -> Result:
        try:
            head = await self.head()
        except asyncio.IncompleteReadError as error:
            return Result(End.BROKEN if error.partial else End.UNANSWERED)
        except ConnectionError:
            return Result(End.UNANSWERED)
        code = head.one("x-smg-error-code")
        expected = answer_body(ask)
        if code is None:
            if head.one("x-nonce") != ask.nonce:
                raise Wrong(f"{ask} got the answer of {head}")
            if head.status != answer_status(ask):
                raise Wrong(f"{ask} got {head}")
        elif head.one("x-nonce") is not None:
            raise Wrong(f"an error with an engine's header: {head}")
        await asyncio.sleep(rest)
        body = _Body(self.reader, None if code else expected, str(ask))
        whole = await self._body(body, head, old=old, pace=pace, until=until)
        if not whole:
            left = until is not None and body.size >= until
            return Result(End.LEFT_WITHIN if left else End.BROKEN)
        goes_on = not head.closes and (not old or head.one("connection") == "keep-alive")
        if code is not None:
            said = json.loads(b"".join(body.parts))["error"]["code"]
            if said != code or head.status < 400:
                raise Wrong(f"{ask}: {said} in the body of {head}")
            return Result(End.REFUSED, code, goes_on)
        if body.size != len(expected):
            raise Wrong(f"{ask} got {body.size} bytes of {len(expected)} as if that were all")
        return Result(End.WHOLE, goes_on=goes_on)

    async def _body(
        self, body: "_Body", head: Head, *, old: bool, pace: float, until: int | None
    ) -> bool:
        """Read it; whether it came to its proper end."""
        length, coding = head.one("content-length"), head.one("transfer-encoding")
        if head.status in (204, 304):
            return True
        if length is not None and coding is not None:
            raise Wrong(f"both framings in {head}")
        if coding == "chunked" and old:
            raise Wrong(f"chunks for HTTP/1.0 in {head}")
        try:
            if length is not None:
                return await body.read(int(length), pace=pace, until=until)
            if coding == "chunked":
                while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                    if not await body.read(size, pace=pace, until=until):
                        return False
                    if await self.reader.readexactly(2) != b"\r\n":
                        raise Wrong(f"a chunk without an end in the answer to {body.of}")
                return await self.reader.readexactly(2) == b"\r\n"
            if not old:
                raise Wrong(f"no framing in {head}")
            await body.read(2**40, pace=pace, until=until)
            return False
        except asyncio.IncompleteReadError as error:
            # The end of an HTTP/1.0 answer without a length; only a reset would say otherwise.
            return length is None and coding is None and error.expected is None
        except ConnectionError:
            return False

    async def own(self, method: str, target: str) -> Head:
        """The answer to a question that the proxy answers itself; its body is JSON or empty."""
        await self.send(f"{method} {target} HTTP/1.1\r\nHost: rollout\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            head = await self.head()
            if head.one("x-nonce") is not None:
                raise Wrong(f"{method} {target} got an engine's answer: {head}")
            body = await self.reader.readexactly(int(head.one("content-length") or 0))
        if body:
            json.loads(body)
        return head


class _Body:
    """What has come of a body, which must be the beginning of the expected one, if that is known."""

    def __init__(self, reader: asyncio.StreamReader, expected: bytes | None, of: str) -> None:
        self._reader = reader
        self._expected = expected
        self.of = of
        self.size = 0
        self.parts: list[bytes] = []

    async def read(self, size: int, *, pace: float, until: int | None) -> bool:
        """Read so many bytes; false if ``until`` was reached before.

        :raises asyncio.IncompleteReadError: at the end of the connection.
        """
        while size:
            if pace:
                await asyncio.sleep(pace)
            part = await self._reader.read(min(size, 2**16))
            if not part:
                raise asyncio.IncompleteReadError(b"", None)
            if self._expected is None:
                self.parts.append(part)
            elif self._expected[self.size : self.size + len(part)] != part:
                raise Wrong(f"{self.of} got foreign bytes at {self.size}: {part[:200]!r}")
            self.size += len(part)
            size -= len(part)
            if until is not None and self.size >= until:
                return False
        return True


class Form(NamedTuple):
    """How a request is written."""

    route: str = "/generate"
    version: str = "1.1"
    chunked: bool = False
    connection: str = ""
    expect: bool = False
    fault: str = ""
    """Also told in the head, for an engine that does not read the body."""


def request(ask: Ask, form: Form, chance: random.Random) -> tuple[bytes, bytes]:
    """Head and body of a request, the body in its framing."""
    body = msgspec.json.encode(ask)
    lines = [f"POST {form.route} HTTP/{form.version}", "Host: rollout", f"X-Nonce: {ask.nonce}"]
    lines += ["Content-Type: application/json"]
    lines += ["Transfer-Encoding: chunked" if form.chunked else f"Content-Length: {len(body)}"]
    if form.connection:
        lines.append(f"Connection: {form.connection}")
    if form.expect:
        lines.append("Expect: 100-continue")
    if form.fault:
        lines.append(f"X-Fault: {form.fault}")
    head = "\r\n".join((*lines, "", "")).encode()
    return head, in_chunks(body, chance) if form.chunked else body


def in_chunks(body: bytes, chance: random.Random) -> bytes:
    """A body as chunks of any size, some with an extension, sometimes with a trailer."""
    parts, at = [], 0
    while at < len(body):
        part = body[at : at + chance.choice((1, 16, 500, 5000, 70_000))]
        extension = b";a=b" if chance.random() < 0.1 else b""
        parts.append(b"%x%b\r\n%b\r\n" % (len(part), extension, part))
        at += len(part)
    parts.append(b"0\r\nX-Sum: 1\r\n\r\n" if chance.random() < 0.2 else b"0\r\n\r\n")
    return b"".join(parts)
