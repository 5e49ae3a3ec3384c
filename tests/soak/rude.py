"""Clients that leave at every stage, take nothing, send too much, or speak no HTTP at all."""

import asyncio
import contextlib
import random
import time

from tests.soak.content import POISON, Ask, filler
from tests.soak.ledger import End
from tests.soak.link import PATIENCE, Form, Link, Result, Wrong, in_chunks, request
from tests.soak.malformed import MALFORMED
from tests.soak.world import ROUTES, Scenario, World, at_once

MODEL = "rude"
LIMIT = 4 * 2**20
"""Bytes that a body may have."""
STALL = 2.0
"""Seconds that a client may take nothing, or send nothing of its body."""

_ERRORS = (asyncio.IncompleteReadError, ConnectionError)


def _form(chance: random.Random) -> Form:
    return Form(route=chance.choice(ROUTES), chunked=chance.random() < 0.15)


def _note(world: World, ask: Ask, result: Result, *, since: float) -> None:
    """Count an end. Its engine is well: if the client stays, it gets an answer."""
    world.ledger.note(MODEL, result.end, code=result.code)
    if result.end not in (End.WHOLE, End.LEFT_WITHIN):
        world.fail(f"{ask.nonce} ({ask.kind}, {ask.size}): {result}", since=since)


async def leaves(world: World, chance: random.Random) -> None:
    """Goes away, at any moment that a request has."""
    since = time.monotonic()
    ask = world.ask(MODEL, chance, size=chance.choice((100, 10_000, 1_000_000)))
    head, body = request(ask, _form(chance), chance)
    async with world.link() as link:
        match chance.randrange(7):
            case 0:
                pass
            case 1:
                await link.send(head[: chance.randrange(1, len(head))])
            case 2:
                world.ledger.note(MODEL, End.LEFT_BEFORE)
                await link.send(head, body[: chance.randrange(len(body))])
            case 3:
                world.ledger.note(MODEL, End.LEFT_BEFORE)
                await link.send(head + body)
                await asyncio.sleep(chance.choice((0, 0.001, 0.02)))
            case 4:
                world.ledger.note(MODEL, End.LEFT_BEFORE)
                await link.send(head + body)
                with contextlib.suppress(OSError):
                    link.writer.write_eof()  # says no more, and would take the answer
                await link.answer(ask)  # anything that is its own
            case _:
                with contextlib.suppress(ConnectionError):
                    await link.send(head + body)
                result = await link.answer(ask, until=chance.choice((1, 50, 5000, 500_000)))
                _note(world, ask, result, since=since)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.1)
        link.leave(chance)


async def leaves_a_pipeline(world: World, chance: random.Random) -> None:
    """Goes away while requests wait behind the first."""
    since = time.monotonic()
    batch = [(world.ask(MODEL, chance, size=100), _form(chance)) for _ in range(4)]
    read = chance.randrange(3)
    async with world.link() as link:
        await link.send(b"".join(b"".join(request(ask, form, chance)) for ask, form in batch))
        for number, (ask, _) in enumerate(batch):
            if number < read:
                result = await link.answer(ask)
                _note(world, ask, result, since=since)
                read = read if result.goes_on else 0
            else:
                world.ledger.note(MODEL, End.LEFT_BEFORE)
        link.leave(chance)


async def takes_nothing(world: World, chance: random.Random) -> None:
    """Asks for much, does not read, and must be cut off."""
    since = time.monotonic()
    kind = chance.choice(("text", "text-chunked", "eof"))
    ask = world.ask(MODEL, chance, kind=kind, size=16_000_000, pause=0.0)
    async with world.link(window=2**13) as link:
        await link.send(b"".join(request(ask, Form(), chance)))
        result = await link.answer(ask, rest=2.5 * STALL)
        world.ledger.note(MODEL, result.end, code=result.code)
        if result.end is End.WHOLE:
            world.fail(f"{ask.nonce}: {result}, though it took nothing for a while", since=since)


async def stops_sending(world: World, chance: random.Random) -> None:
    """Sends half a body and waits for the end of it all."""
    ask = world.ask(MODEL, chance, pad="")
    head, body = request(ask, _form(chance), chance)
    async with world.link() as link:
        world.ledger.note(MODEL, End.LEFT_BEFORE)
        await link.send(head + body[: len(body) // 2])
        async with asyncio.timeout(PATIENCE):
            await link.end()


async def half_a_head(world: World, chance: random.Random) -> None:
    """Holds a connection with the beginning of a head for a while."""
    head, _ = request(world.ask(MODEL, chance), _form(chance), chance)
    async with world.link() as link:
        for at in range(0, min(len(head) - 1, 60), 10):
            await link.send(head[at : at + 10])
            await asyncio.sleep(0.1)
        link.leave(chance)


async def too_much(world: World, chance: random.Random) -> None:
    """A body over the limit: 413 before its end, if the client cares to look."""
    since = time.monotonic()
    ask = world.ask(MODEL, chance)
    nonce = f"{POISON}-{ask.nonce}"
    ask.nonce, ask.pad = nonce, filler(nonce, LIMIT).decode()
    form = _form(chance)
    async with world.link() as link:
        world.ledger.note(MODEL, End.LEFT_BEFORE)  # a reset may overtake the 413
        writing = asyncio.ensure_future(link.send(*request(ask, form, chance)))
        try:
            async with asyncio.timeout(PATIENCE):
                head = await link.head()
            if head.one("x-smg-error-code") != "body_too_large" or not head.closes:
                world.fail(f"{form}, too much: {head}", since=since)
        except _ERRORS:
            pass
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def malformed(world: World, chance: random.Random) -> None:
    """What is no request ends its connection, and reaches no engine.

    Half of the time a good request goes before it in the same write, which is answered.
    """
    since = time.monotonic()
    words, made = chance.choice(MALFORMED)
    nonce = f"{POISON}-{chance.randrange(10**9)}".encode()
    data = made.replace(b"NONCE", nonce)
    batch = [(world.ask(MODEL, chance, size=100), Form()) for _ in range(chance.randrange(2))]
    world.ledger.malformed += 1
    async with world.link() as link:
        good = b"".join(b"".join(request(ask, form, chance)) for ask, form in batch)
        parts = at_once(good + data) if chance.random() < 0.7 else [(good, 0.0), (data, 0.0)]
        try:
            for part, _ in parts:
                await link.send(part)
            for ask, _ in batch:
                result = await link.answer(ask)
                _note(world, ask, result, since=since)
                if result.end is not End.WHOLE:
                    return
        except ConnectionError:
            return
        await _refused(link, words)


async def _refused(link: Link, words: str) -> None:
    """A 400, or nothing, and the end."""
    try:
        async with asyncio.timeout(PATIENCE):
            head = await link.head()
            if head.status not in (400, 413, 431, 505) or not head.closes:
                raise Wrong(f"{words}: {head}")
            if head.one("x-nonce") is not None:
                raise Wrong(f"{words} was answered by an engine: {head}")
            await link.reader.readexactly(int(head.one("content-length") or 0))
            await link.end()
    except TimeoutError:
        raise Wrong(f"{words}: the connection goes on") from None
    except _ERRORS:
        pass


async def bad_chunks(world: World, chance: random.Random) -> None:
    """A good head, chunks that are none."""
    nonce = f"{POISON}-{chance.randrange(10**9)}"
    ask = world.ask(MODEL, chance, nonce=nonce, pad="")
    head, _ = request(ask, Form(chunked=True), chance)
    body = in_chunks(filler(nonce, 200), chance)
    at = body.index(b"\r\n")
    bad = chance.choice(
        (
            b"zz" + body[at:],
            b"-1" + body[at:],
            b"0x10" + body[at:],
            b"f" * 20 + body[at:],
            b"" + body[at:],
            b"5\r\nabcdefg\r\n0\r\n\r\n",
            b"5\nabcde\r\n0\r\n\r\n",
            b"5\r\nabcde\n0\r\n\r\n",
        )
    )
    world.ledger.malformed += 1
    async with world.link() as link:
        try:
            await link.send(head + bad)
        except ConnectionError:
            return
        await _refused(link, f"chunks that begin with {bad[:30]!r}")


SCENARIOS: dict[Scenario, int] = {
    leaves: 20,
    leaves_a_pipeline: 6,
    takes_nothing: 1,
    stops_sending: 1,
    half_a_head: 2,
    too_much: 2,
    malformed: 10,
    bad_chunks: 4,
}
