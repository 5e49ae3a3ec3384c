"""RL switched off: the proxy is a plain relay, compared byte for byte with asking the engine."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from steersman.policy import LatestOnly
from steersman.settings import PoolSettings
from steersman_sim.engine import EngineConfig
from tests.proxy.support import Rig, rig, running

pytestmark = pytest.mark.usefixtures("adapter")

Header = tuple[bytes, bytes]

HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
FRAMING = {b"content-length"}


class Message(NamedTuple):
    """One HTTP message, with its body out of its framing."""

    first_line: bytes
    headers: list[Header]
    body: bytes

    def end_to_end(self, *, without: set[bytes] = FRAMING) -> list[Header]:
        """The headers that pass a proxy, in order."""
        listed = {
            token.strip().lower()
            for name, value in self.headers
            if name.lower() == b"connection"
            for token in value.split(b",")
        }
        drop = HOP_BY_HOP | listed | without
        return [header for header in self.headers if header[0].lower() not in drop]

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


async def read_message(reader: asyncio.StreamReader) -> Message:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name, value.strip()))
    message = Message(first, headers, b"")
    if b" 204 " in first:
        return message
    if message.all(b"transfer-encoding"):
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        while (await reader.readline()).strip():
            pass
    elif lengths := message.all(b"content-length"):
        body = await reader.readexactly(int(lengths[0]))
    elif first.startswith(b"HTTP/"):
        body = await reader.read()
    else:
        body = b""
    return message._replace(body=body)


class ScriptedEngine:
    """Answers every request with the same bytes and keeps what it received."""

    def __init__(self, answer: list[bytes]) -> None:
        self.answer = answer
        self.received: list[Message] = []
        self.url = ""

    async def __aenter__(self) -> "ScriptedEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.append(await read_message(reader))
        for part in self.answer:
            writer.write(part)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def relay(
    tmp_path: Path, answer: list[bytes]
) -> AsyncIterator[tuple[ScriptedEngine, str, Rig]]:
    async with ScriptedEngine(answer) as engine:
        rows = [{"id": "e0", "url": engine.url, "weightVersion": "7"}]
        async with running(tmp_path, rows, rl_enabled=False) as world:
            yield engine, engine.url, world


async def exchange(url: str, request: bytes) -> Message:
    """Send bytes and read one answer; ``%HOST%`` becomes the address.

    The connection stays open from this side: an answer without an end of its own would hang.
    """
    authority = url.removeprefix("http://")
    host, port = authority.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.replace(b"%HOST%", authority.encode()))
        async with asyncio.timeout(20):
            return await read_message(reader)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


POST = (
    b"POST /generate HTTP/1.1\r\n"
    b"Host: %HOST%\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: 14\r\n"
    b"\r\n"
    b'{"text": "hi"}'
)

REPORT = json.dumps({"text": "a", "meta_info": {"weight_version": "9"}}).encode()
SSE = [b'data: {"meta_info": {"weight_version": "%d"}}\n\n' % i for i in (7, 8, 9)] + [
    b"data: [DONE]\n\n"
]
PACKED = gzip.compress(REPORT, mtime=0)


def head(*lines: bytes) -> bytes:
    return b"\r\n".join((*lines, b"", b""))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWERS: dict[str, list[bytes]] = {
    "json with a length": [
        head(
            b"HTTP/1.1 200 OK",
            b"date: Mon, 30 Nov 2026 00:00:00 GMT",
            b"server: uvicorn",
            b"content-length: %d" % len(REPORT),
            b"content-type: application/json",
        ),
        REPORT,
    ],
    "names in odd cases, repeated, empty and not ASCII": [
        head(
            b"HTTP/1.1 200 OK",
            b"X-oDd-CaSe: 1",
            b"x-twice: a",
            b"X-Between: b",
            b"X-Twice: c",
            b"x-empty:",
            b"x-bytes: caf\xe9 \xc3\xa9",
            b"x-padded:    spaces inside  stay   ",
            b"CONTENT-LENGTH: 2",
        ),
        b"ok",
    ],
    "two cookies": [
        head(
            b"HTTP/1.1 200 OK",
            b"Set-Cookie: a=1; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
            b"Set-Cookie: b=2",
            b"Content-Length: 0",
        )
    ],
    "chunks": [
        head(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"Content-Type: text/plain"),
        chunk(b"a" * 70_000),
        chunk(b"\x00\r\n\xff"),
        b"0\r\n\r\n",
    ],
    "a stream of events": [
        head(
            b"HTTP/1.1 200 OK",
            b"content-type: text/event-stream; charset=utf-8",
            b"cache-control: no-cache",
            b"transfer-encoding: chunked",
        ),
        *map(chunk, SSE),
        b"0\r\n\r\n",
    ],
    "until the connection closes": [
        head(b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Connection: close"),
        REPORT,
    ],
    "gzip": [
        head(
            b"HTTP/1.1 200 OK",
            b"Content-Encoding: gzip",
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(PACKED),
        ),
        PACKED,
    ],
    "an error of the engine": [
        head(
            b"HTTP/1.1 400 Bad Request",
            b"content-type: application/json",
            b"content-length: 31",
            b"x-request-id: of the engine",
        ),
        b'{"error": {"message": "no, no"}}'[:31],
    ],
    "overload with a date to come back": [
        head(b"HTTP/1.1 503 Service Unavailable", b"Retry-After: 17", b"content-length: 4"),
        b"busy",
    ],
    "a crash": [
        head(b"HTTP/1.1 500 Internal Server Error", b"Content-Length: 21"),
        b"Internal Server Error",
    ],
    "a redirect": [
        head(b"HTTP/1.1 307 Temporary Redirect", b"Location: /generate/", b"Content-Length: 0")
    ],
    "an empty body": [head(b"HTTP/1.1 200 OK", b"content-length: 0", b"x-a: b")],
    "no content": [head(b"HTTP/1.1 204 No Content", b"x-a: b")],
    "words of its own": [head(b"HTTP/1.1 299 Quite Fine, really", b"content-length: 1"), b"."],
    "no words": [head(b"HTTP/1.1 200 ", b"content-length: 1"), b"."],
    "hop-by-hop headers": [
        head(
            b"HTTP/1.1 200 OK",
            b"Connection: keep-alive, X-Private",
            b"Keep-Alive: timeout=5",
            b"X-Private: 1",
            b"X-Public: 2",
            b"content-length: 1",
        ),
        b".",
    ],
    "stamps and cross-origin rules of its own": [
        head(
            b"HTTP/1.1 200 OK",
            b"x-smg-weight-version: forged",
            b"x-smg-mixed-version: true",
            b"Access-Control-Allow-Origin: *",
            b"content-length: %d" % len(REPORT),
            b"content-type: application/json",
        ),
        REPORT,
    ],
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_comes_through_as_the_engine_gave_it(tmp_path: Path, name: str) -> None:
    async with relay(tmp_path, ANSWERS[name]) as (engine, url, world):
        direct = await exchange(url, POST)
        relayed = await exchange(world.url, POST)

        assert relayed.first_line == direct.first_line
        worker = (b"x-smg-routed-worker-id", url.encode())
        assert relayed.end_to_end() == [*direct.end_to_end(), worker]
        assert relayed.body == direct.body
        # Who gave a length gets it through; who gave none has none put on.
        assert relayed.all(b"content-length") == direct.all(b"content-length")
        assert len(engine.received) == 2


async def test_an_engine_cannot_forge_who_served(tmp_path: Path) -> None:
    forged = head(
        b"HTTP/1.1 200 OK", b"X-SMG-Routed-Worker-Id: http://elsewhere", b"content-length: 0"
    )
    async with relay(tmp_path, [forged]) as (_, url, world):
        relayed = await exchange(world.url, POST)

        assert relayed.all(b"x-smg-routed-worker-id") == [url.encode()]


REQUESTS: dict[str, bytes] = {
    "a json body": POST,
    "names in odd cases, repeated, empty and not ASCII": (
        b"POST /v1/chat/completions HTTP/1.1\r\n"
        b"uSeR-aGeNt: me\r\n"
        b"X-Twice: a\r\n"
        b"Host: %HOST%\r\n"
        b"x-between: b\r\n"
        b"x-twice: c\r\n"
        b"x-empty:\r\n"
        b"x-bytes: caf\xe9 \xc3\xa9\r\n"
        b"Cookie: a=1; b=2\r\n"
        b"content-length: 5\r\n"
        b"X-After: the length\r\n"
        b"\r\n"
        b"\x00\xff\r\nz"
    ),
    "a query": (
        b"POST /generate?a=%2F&b=c%20d&&e=+;f HTTP/1.1\r\n"
        b"Host: %HOST%\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "chunks": (
        b"POST /generate HTTP/1.1\r\nHost: %HOST%\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n'
    ),
    "an empty body": b"POST /generate HTTP/1.1\r\nHost: %HOST%\r\nContent-Length: 0\r\n\r\n",
    "neither length nor body": b"POST /generate HTTP/1.1\r\nHost: %HOST%\r\n\r\n",
    "another method": b"PUT /generate HTTP/1.1\r\nHost: %HOST%\r\nContent-Length: 2\r\n\r\n{}",
    "hop-by-hop headers": (
        b"POST /generate HTTP/1.1\r\nHost: %HOST%\r\n"
        b"Connection: keep-alive, X-Private\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\n"
        b"X-Private: 1\r\nX-Public: 2\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "what RL would understand": (
        b"POST /generate HTTP/1.1\r\nHost: %HOST%\r\n"
        b"x-smg-version-policy: nonsense\r\nx-smg-routing-key: k\r\nx-request-id: mine\r\n"
        b"Authorization: Bearer of the engine\r\nAccept-Encoding: gzip, br\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_comes_through_as_the_client_sent_it(tmp_path: Path, name: str) -> None:
    answer = head(b"HTTP/1.1 200 OK", b"content-length: 2") + b"ok"
    async with relay(tmp_path, [answer]) as (engine, url, world):
        await exchange(url, REQUESTS[name])
        relayed = await exchange(world.url, REQUESTS[name])
        direct, through = engine.received

        assert relayed.body == b"ok"
        assert through.first_line == direct.first_line
        ours = FRAMING | {b"host"}
        assert through.end_to_end(without=ours) == direct.end_to_end(without=ours)
        assert through.body == direct.body
        assert through.all(b"host") == direct.all(b"host") == [url.removeprefix("http://").encode()]
        assert through.all(b"content-length") == [b"%d" % len(direct.body)]
        assert through.all(b"transfer-encoding") == []


async def test_versions_states_and_gates_are_not_looked_at(tmp_path: Path) -> None:
    routing = PoolSettings(version_policy=LatestOnly(), max_in_flight_per_engine=1)
    versions = {"open": "9", "closed": "9", "paused": "9", "old": "1", "asleep": "9", "none": None}
    async with rig(
        tmp_path,
        versions,
        config=EngineConfig(speed=0),
        routing=routing,
        rl_enabled=False,
    ) as world:
        world.file.set("closed", gate="closed")
        world.file.set("paused", control="paused")
        world.file.set("asleep", control="asleep")
        await world.applied()
        answers = []
        for policy in ("latest-only", "nonsense"):
            answers += await asyncio.gather(
                *(world.generate(1, x_smg_version_policy=policy) for _ in range(60))
            )

        assert {status for status, _, _ in answers} == {200}
        assert all(world.received(name) for name in versions)
        for _, headers, _ in answers:
            assert "x-smg-routed-worker-id" in headers
            assert "x-smg-weight-version" not in headers
            assert "x-request-id" not in headers


async def test_nothing_of_rl_is_shown(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "9"}, rl_enabled=False) as world:
        status, _, _ = await world.generate()
        assert status == 200
        for method, path in (
            ("GET", "/v1/rl/state"),
            ("POST", "/v1/rl/version"),
            ("GET", "/v1/rl"),
        ):
            async with world.client.request(method, world.url + path, json={}) as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["code"] == "unknown_url"

        text = await world.metrics()
        assert "smg_router_requests_total" in text
        assert "smg_rl_" not in text
        assert world.received("e0") == 1


async def test_nobody_waits(tmp_path: Path) -> None:
    """An engine that cannot be reached is 502; once it counts as down the answer is 503."""
    async with rig(tmp_path, {"e0": "9"}, rl_enabled=False) as world:
        await world.engines["e0"].stop()
        await world.edit("e0", gate="closed")

        seen = []
        for _ in range(4):
            status, _, body = await world.generate()
            seen.append((status, body["error"]["code"]))
            assert "version" not in body["error"]["message"]

        assert seen[0] == (502, "upstream_unreachable")
        assert seen[-1] == (503, "no_available_workers")
        assert world.app.hold.depth("pool") == 0
