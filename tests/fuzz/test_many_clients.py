"""Many clients of one proxy at once: each reads the answers to its own requests, byte for byte.

Connections to engines are shared, and so is the buffer that they are read into.
"""

import asyncio
import random
import re

import pytest

from steersman_proxy.settings import AdapterKind
from tests.fuzz.example import Answer, Example
from tests.fuzz.memory import URL, MemoryTransport, Network
from tests.fuzz.strict import Received, read_answers
from tests.fuzz.world import AUTHORITY, Client, Engine, World, close, rig_of, settle, turns
from tests.http.adapter import KINDS

CLIENTS = 12
REQUESTS = 8


class Echo(Engine):
    """Answers each request with a body made of its token, framed and cut by chance."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        super().__init__(loop, Example((), gap=chance.choice((0, 1, 2))), AUTHORITY)
        self.chance = chance

    def answer_to(self, received: Received) -> Answer:
        found = re.fullmatch(rb'\{"token": "([a-z0-9-]+)"[ ]*\}', received.body)
        assert found is not None, received
        answer = answer_of(found[1], self.chance.choice(("length", "chunked", "eof")))
        cuts = sorted(
            self.chance.randrange(1, len(answer)) for _ in range(self.chance.randrange(5))
        )
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        end = "fin" if b"Content-Length" not in answer and b"chunked" not in answer else "keep"
        return Answer(tuple(piece for piece in pieces if piece), end)  # type: ignore[arg-type]


def body_of(token: bytes) -> bytes:
    """An answer's body: as long as the token's hash says, and like no other's."""
    size = sum(token) % 7
    return token * (1, 3, 40, 900, 3000, 9000, 30_000)[size] + b"."


def answer_of(token: bytes, framing: str) -> bytes:
    body = body_of(token)
    head = b"HTTP/1.1 200 OK\r\nX-Token: %b\r\n" % token
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if framing == "chunked":
        middle = len(body) // 2
        parts = [part for part in (body[:middle], body[middle:]) if part]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head + b"\r\n" + body


def request_of(token: bytes, chance: random.Random) -> bytes:
    body = b'{"token": "%b"%b}' % (token, b" " * chance.choice((0, 5, 3000)))
    path = chance.choice((b"/generate", b"/v1/completions", b"/v1/embeddings"))
    lines = [b"POST %b HTTP/1.1" % path, b"Host: p"]
    if chance.random() < 0.2:  # irregular for the splice adapter
        lines.append(b"X-Tight:a")
    if chance.random() < 0.2:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))


async def _client(
    network: Network, engine: Engine, make: object, name: int, chance: random.Random
) -> tuple[MemoryTransport, Client, list[bytes]]:
    """One that sends all its requests, pipelined or not, cut by chance."""
    client = Client()
    transport = MemoryTransport(asyncio.get_running_loop(), network, make())  # type: ignore[operator]
    transport.peer = client
    transport.begin()
    tokens = [b"client-%d-request-%d" % (name, number) for number in range(REQUESTS)]
    for token in tokens:
        data = request_of(token, chance)
        at = chance.randrange(len(data) + 1)
        for piece in (data[:at], data[at:]):
            transport.deliver(piece)
            await turns(chance.choice((0, 0, 1, 5)))
        if chance.random() < 0.5:
            await settle(network, engine)
    return transport, client, tokens


async def _run(world: World, kind: AdapterKind, seed: int) -> None:
    chance = random.Random(seed)
    network = world.loop.network = Network()
    engine = Echo(world.loop, chance)
    network.accept = engine.accept
    rig = rig_of(Example(()), kind, URL)
    made = await asyncio.gather(
        *(_client(network, engine, rig.adapter.protocol, n, chance) for n in range(CLIENTS))
    )
    await settle(network, engine)
    for transport, client, tokens in made:
        answers = read_answers(bytes(client.read), methods=[], ended=client.ending)
        seen = [(dict(answer.headers)[b"X-Token"], answer.body) for answer in answers]
        assert seen == [(token, body_of(token)) for token in tokens]
        transport.deliver_eof()
    await settle(network, engine)
    assert engine.faults == []
    assert len(engine.received) == CLIENTS * REQUESTS
    assert await close(rig) == []
    engine.leave()
    await settle(network, engine)
    assert world.complaints.found == []


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_reads_what_is_another_clients(kind: AdapterKind, world: World) -> None:
    for seed in range(12):
        world.loop.run_until_complete(_run(world, kind, seed))
