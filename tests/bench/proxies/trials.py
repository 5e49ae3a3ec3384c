"""What each proxy does beside passing requests on, found out by trying.

    python -m tests.bench.proxies.trials [--peers DIR] [NAME ...]

A cheap request says little about a proxy that leaves out what another does. So the benchmark tries
each, with the settings that it is measured with, on two engines that misbehave on demand. Nothing
here is timed.
"""

import argparse
import asyncio
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.proxies.peers import DIRECT, KEY, SUBJECTS, Found, Place, Subject
from tests.bench.proxies.processes import Group, free_ports

MODEL, VERSION = "bench-model", "7"
START = 60.0
PATIENCE = 3.0
"""Seconds within which an engine must learn that the client has left."""
LIMIT = 20.0
"""Seconds that an answer may take, with all attempts."""
BREAKING = 16
"""Broken requests in a row after which the engines are taken out, or never will be."""

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1},
        "metadata": {"weight_version": VERSION},
    }
).encode()
CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench-model",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)
MODEL_INFO = {"model_path": MODEL, "is_generation": True, "weight_version": VERSION}
SERVER_INFO = {"model_path": MODEL, "served_model_name": MODEL, "tp_size": 1, "dp_size": 1}
KNOWN: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]},
    "/model_info": MODEL_INFO,
    "/get_model_info": MODEL_INFO,
    "/server_info": SERVER_INFO,
    "/get_server_info": SERVER_INFO,
}


@dataclass(eq=False)
class Attempt:
    """One request as an engine received it."""

    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the proxy closes the connection before the answer's end."""


class OddEngines:
    """They do what the prompt says, and note what they got."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.ports: list[int] = []
        self.news = asyncio.Event()
        """Set at each attempt."""
        self._servers: list[asyncio.Server] = []
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, count: int) -> None:
        for _ in range(count):
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._talks.values():
            writer.transport.abort()
        await asyncio.gather(*self._talks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.ensure_future(self._talk(reader, writer))
        self._talks[talk] = writer
        talk.add_done_callback(self._talks.pop)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A ValueError is what is no HTTP/1.1, such as the question whether we speak HTTP/2.
        with suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        method, path, *_ = head.split(" ", 2)
        if method != "POST":
            known = KNOWN.get(path.partition("?")[0])
            _answer(writer, 200 if known else 404, json.dumps(known or {}).encode())
            return True
        attempt = Attempt(body)
        self.attempts.append(attempt)
        self.news.set()
        word = str(json.loads(body)["messages"][0]["content"])
        match word:
            case "fine":
                _answer(writer, 200, ANSWER)
            case "broken":
                return False
            case "wait" | "stream":
                await _never_end(reader, writer, attempt, streamed=word == "stream")
                return False
            case status:
                _answer(writer, int(status), b'{"error":{"message":"as you wish"}}')
        return True


def _answer(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)


async def _never_end(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, attempt: Attempt, *, streamed: bool
) -> None:
    """Wait, or stream, until the other side has gone."""
    if streamed:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
    try:
        while True:
            if streamed:
                writer.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
                await writer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    if not await reader.read(1):
                        return
    finally:
        attempt.gone.set()


@dataclass(frozen=True)
class Answer:
    """What the client got; status 0 is a connection that ended without an answer."""

    status: int
    headers: dict[str, str]


class Trials:
    """One proxy over the two odd engines."""

    def __init__(self, port: int, engines: OddEngines) -> None:
        self._port = port
        self._engines = engines
        self._attempts = engines.attempts

    async def all(self) -> dict[str, Any]:
        """Every trial, those that take engines out last."""
        fine, sent = await self._ask("fine")
        passed = self._attempts[-1].body == sent
        found: dict[str, Any] = {
            "body": "passed on as it came" if passed else "parsed and written anew",
            "stamp": fine.headers.get("x-smg-weight-version") == VERSION,
            "names_engine": "x-smg-routed-worker-id" in fine.headers,
        }
        newer, _ = await self._ask("fine", "x-smg-version-policy: min-version:99\r\n")
        found["version_policy"] = newer.status != 200
        two, _ = await self._ask("fine", "content-length: 3\r\n")
        found["two_lengths"] = two.status
        for word in ("wait", "stream"):
            found[f"leaving_{word}"] = await self._leave(word)
        for word in ("500", "503", "429", "broken"):
            before = len(self._attempts)
            answer, _ = await self._ask(word)
            found[f"attempts_{word}"] = len(self._attempts) - before
            found[f"status_{word}"] = answer.status
        found["takes_out"] = await self._break()
        return found

    async def until_it_serves(self) -> None:
        while True:
            with suppress(OSError):
                answer, _ = await self._ask("fine")
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)

    async def _break(self) -> bool:
        """Whether broken requests in a row end in one that no engine gets."""
        for _ in range(BREAKING):
            before = len(self._attempts)
            await self._ask("broken")
            if len(self._attempts) == before:
                return True
        return False

    async def _leave(self, word: str) -> bool:
        """Whether the engine learns of a client that leaves."""
        self._engines.news.clear()
        reader, writer, _ = await self._send(word)
        async with asyncio.timeout(LIMIT):
            await self._engines.news.wait()
            if word == "stream":
                await reader.readuntil(b"data: ")
        writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                return await self._attempts[-1].gone.wait()
        return False

    async def _send(
        self, word: str, more: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        message = {"role": "user", "content": word}
        body = json.dumps({"model": MODEL, "messages": [message], "stream": word == "stream"})
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: engine.example\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write((head + body).encode())
        return reader, writer, body.encode()

    async def _ask(self, word: str, more: str = "") -> tuple[Answer, bytes]:
        reader, writer, body = await self._send(word, more)
        try:
            async with asyncio.timeout(LIMIT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return Answer(0, {}), body
        finally:
            writer.close()
        first, *lines = head.split("\r\n")[:-2]
        return Answer(int(first.split()[1]), dict(x.lower().split(": ", 1) for x in lines)), body


async def _try(subject: Subject, found: Found) -> dict[str, Any]:
    engines = OddEngines()
    await engines.start(2)
    port, admin_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="bench-trials-") as name:
        folder = Path(name)
        place = Place(
            folder=folder,
            port=port,
            admin_port=admin_port,
            engines=engines.ports,
            model=MODEL,
            weight_version=VERSION,
        )
        command = subject.command(found.program, place)
        group = Group(command, core=None, log=folder / "log", folder=folder)
        try:
            trials = Trials(port, engines)
            async with asyncio.timeout(START):
                await trials.until_it_serves()
            return await trials.all()
        finally:
            group.kill()
            await engines.close()


def tried(subject: Subject, found: Found) -> dict[str, Any]:
    """What was found out about the proxy, or why nothing was."""
    try:
        return asyncio.run(_try(subject, found))
    except (OSError, TimeoutError) as why:
        return {"failed": f"{type(why).__name__}: {why}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", metavar="DIR", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    for subject in SUBJECTS:
        if subject.name == DIRECT or (args.names and subject.name not in args.names):
            continue
        found = subject.find(args.peers)
        print(subject.name, json.dumps(tried(subject, found)) if isinstance(found, Found) else "-")


if __name__ == "__main__":
    main()
