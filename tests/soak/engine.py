"""An engine of the soak, as a process: answers what it is asked, with the fault that it is asked for.

``python -m tests.soak.engine --address HOST:PORT --model NAME --keep SECONDS --wrong FILE``. It is as
strict a reader as an engine can be, and writes a line into ``FILE`` for whatever it should not have
got. ``GET /_stats`` on its own port says what it holds.
"""

import argparse
import asyncio
import json
import random
import socket
import struct
from pathlib import Path

import msgspec
import uvloop

from tests.soak.content import CONTENT_TYPES, POISON, Ask, answer_body, answer_status, filler

ROUTES = frozenset({b"/generate", b"/v1/chat/completions", b"/v1/completions", b"/encode"})
NEVER = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    )
)
"""Headers that a proxy does not pass on."""

_ask = msgspec.json.Decoder(Ask)


class Peer:
    """The proxy's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def sleep(self, seconds: float | None) -> bytes:
        """Wait, at most until the peer says something; raises when it has left."""
        try:
            async with asyncio.timeout(seconds):
                said = await self.reader.read(2**16)
        except TimeoutError:
            return b""
        if not said:
            raise ConnectionResetError("the peer has left")
        return said

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Engine:
    """Serves; counts; notes what is wrong."""

    def __init__(self, *, authority: str, model: str, keep: float, wrong: Path) -> None:
        self._authority = authority.encode()
        self._model = model
        self._keep = keep
        self._wrong = wrong
        self._random = random.Random(authority)
        self._seen: set[str] = set()
        self._open = 0
        self._busy = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            await self._serve(Peer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except RuntimeError as error:
            # uvloop's word for a transport that the peer has closed.
            if "the handler is closed" not in str(error):
                self._note(f"{error!r}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the soak has to show it
            self._note(f"{type(error).__name__}: {error}")
        finally:
            self._open -= 1
            writer.transport.abort()

    def _note(self, what: str) -> None:
        with self._wrong.open("a") as file:
            file.write(f"{self._authority.decode()} ({self._model}): {what}\n")

    async def _serve(self, peer: Peer) -> None:
        keep = 30.0
        while True:
            try:
                async with asyncio.timeout(keep):
                    head = await peer.reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                await peer.close()
                return
            # Sometimes shorter than the proxy keeps an idle connection: then a request meets the
            # closing of its connection, and must be sent again.
            keep = self._keep * (self._random.random() if self._keep < 1 else 1)
            if head.startswith(b"GET /_stats "):
                await self._stats(peer)
                return
            self._busy += 1
            try:
                if not await self._exchange(peer, head):
                    return
            finally:
                self._busy -= 1

    async def _stats(self, peer: Peer) -> None:
        stats = {"open": self._open - 1, "busy": self._busy, "whole": len(self._seen)}
        body = json.dumps(stats).encode()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await peer.close()

    async def _exchange(self, peer: Peer, head: bytes) -> bool:
        """One question and its answer; whether the connection goes on."""
        line, *lines = head[:-4].split(b"\r\n")
        headers: dict[bytes, list[bytes]] = {}
        for one in lines:
            name, _, value = one.partition(b": ")
            headers.setdefault(name.lower(), []).append(value)
        (nonce,) = headers.get(b"x-nonce", [b"none"])
        if nonce.decode().startswith(POISON):
            self._note(f"got what no proxy may pass on: {head[:200]!r}")
        method, target, version = line.split(b" ")
        if (method, version) != (b"POST", b"HTTP/1.1") or target not in ROUTES:
            self._note(f"a strange request line: {line!r}")
        if headers.get(b"host") != [self._authority]:
            self._note(f"the host of another: {headers.get(b'host')}")
        if hops := NEVER & set(headers):
            self._note(f"headers of one hop: {hops}")
        (fault,) = headers.get(b"x-fault", [b""])
        if fault:
            early = fault == b"early"
            ask = Ask(model=self._model, nonce=nonce.decode(), kind="error")
            await peer.send(_head(ask, close=early) + answer_body(ask))
            if early:
                await peer.close()
                return False
        (length,) = headers[b"content-length"]
        body = await peer.reader.readexactly(int(length))
        ask = _ask.decode(body)
        self._judge(ask, nonce.decode(), peer, answered=bool(fault))
        if fault:
            return True
        return await self._answer(peer, ask)

    def _judge(self, ask: Ask, nonce: str, peer: Peer, *, answered: bool) -> None:
        if ask.nonce != nonce:
            self._note(f"the head of {nonce} with the body of {ask.nonce}")
        if ask.pad.encode() != filler(nonce, len(ask.pad)):
            self._note(f"another padding than that of {nonce}")
        if ask.model != self._model:
            self._note(f"a request for {ask.model}")
        # What closes without a word on a connection that was used before cannot be told from one
        # that was closed for its idleness: it is asked again, once.
        silent = ask.fault in ("rst", "fin") and ask.at < 0
        if nonce in self._seen and not silent:
            self._note(f"{nonce} a second time")
        buffered: bytearray = peer.reader._buffer  # type: ignore[attr-defined]
        if buffered and not answered:
            self._note(f"bytes after the body of {nonce}: {bytes(buffered[:100])!r}")
        self._seen.add(nonce)

    async def _answer(self, peer: Peer, ask: Ask) -> bool:
        chance = random.Random(ask.nonce)
        if ask.pause and await peer.sleep(ask.pause):
            self._note(f"bytes while {ask.nonce} was thought about")
        if ask.fault and ask.at < 0:
            await self._fail(peer, ask)
            return False
        close = ask.kind == "eof" or chance.random() < 0.1
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        head = (interim if chance.random() < 0.05 else b"") + _head(ask, close=close)
        if not await self._body(peer, ask, head, chance):
            return False
        if ask.fault == "surplus" and await peer.sleep(None):
            self._note(f"used again after a surplus to {ask.nonce}")
            return False
        if close:
            await peer.close()
        return not close

    async def _body(self, peer: Peer, ask: Ask, head: bytes, chance: random.Random) -> bool:
        """The body, in parts of any size; whether it came to its end."""
        body, chunked = answer_body(ask), _chunked(ask)
        sent, waiting = 0, head
        while sent < len(body):
            size = min(len(body) - sent, chance.choice((1, 10, 100, 1000, 10_000, 100_000)))
            fails = ask.fault not in ("", "surplus") and sent + size > ask.at
            if fails:
                size = ask.at - sent
            part = body[sent : sent + size]
            if part:
                waiting += b"%x\r\n%b\r\n" % (size, part) if chunked else part
            sent += size
            if fails:
                await peer.send(waiting)
                await self._fail(peer, ask, rest=body[sent:], chunked=chunked)
                return False
            # A surplus goes out with the end: later it could as well be the answer to the next.
            if ask.fault != "surplus" and (len(waiting) > 2**18 or chance.random() < 0.5):
                await peer.send(waiting)
                waiting = b""
                unfinished = chunked or sent < len(body)
                if ask.pause and unfinished and await peer.sleep(ask.pause):
                    self._note(f"bytes while {ask.nonce} was answered")
        if chunked:
            waiting += b"0\r\nX-Sum: 1\r\n\r\n" if chance.random() < 0.2 else b"0\r\n\r\n"
        if ask.fault == "surplus":
            other = Ask(model=ask.model, nonce=POISON)
            waiting += _head(other, close=False) + answer_body(other)
        await peer.send(waiting)
        return True

    async def _fail(
        self, peer: Peer, ask: Ask, *, rest: bytes = b"", chunked: bool = False
    ) -> None:
        match ask.fault:
            case "rst":
                peer.reset()
            case "fin":
                await peer.close()
            case "garbage":
                await peer.send(b"zz not a chunk\r\n" if chunked else b"SSH-2.0-OpenSSH_9.2\r\n")
                await peer.close()
            case "trickle" if ask.at >= 0:
                for at in range(len(rest)):
                    part = rest[at : at + 1]
                    await peer.send(b"1\r\n%b\r\n" % part if chunked else part)
                    await peer.sleep(0.2)
            case _:
                await peer.sleep(None)


def _chunked(ask: Ask) -> bool:
    return ask.kind in ("json-chunked", "text-chunked", "sse")


def _head(ask: Ask, *, close: bool) -> bytes:
    lines = [b"HTTP/1.1 %d Fine" % answer_status(ask), b"X-Nonce: " + ask.nonce.encode()]
    if ask.kind != "empty":
        lines.append(b"Content-Type: " + CONTENT_TYPES.get(ask.kind, b"text/plain"))
    if _chunked(ask):
        lines.append(b"Transfer-Encoding: chunked")
    elif ask.kind not in ("eof", "empty"):
        lines.append(b"Content-Length: %d" % len(answer_body(ask)))
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join((*lines, b"", b""))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--keep", type=float, required=True)
    parser.add_argument("--wrong", type=Path, required=True)
    given = parser.parse_args()
    host, _, port = given.address.partition(":")
    listening = socket.create_server((host, int(port)), backlog=1024)
    authority = f"{host}:{listening.getsockname()[1]}"
    engine = Engine(authority=authority, model=given.model, keep=given.keep, wrong=given.wrong)
    server = await asyncio.start_server(engine.connection, sock=listening, limit=2**17)
    print(authority, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
