"""Clients that deserve their answers: whatever they do is allowed, and their engines are well."""

import asyncio
import random
import time

from tests.soak.ledger import End
from tests.soak.link import Form
from tests.soak.world import ROUTES, Batch, Scenario, World, anywhere

MODEL = "steady"


def _batch(world: World, chance: random.Random, most: int, *, small: bool = False) -> Batch:
    """Requests for one connection, most of them regular."""
    given = {"size": 100, "pad": ""} if small else {}
    return [
        (
            world.ask(MODEL, chance, **given),
            Form(route=chance.choice(ROUTES), chunked=chance.random() < 0.1),
        )
        for _ in range(chance.randint(1, most))
    ]


async def one_after_the_other(world: World, chance: random.Random) -> None:
    """A connection that is kept, with questions to the proxy itself in between."""
    async with world.link() as link:
        for _ in range(chance.randint(1, 12)):
            since = time.monotonic()
            if chance.random() < 0.2:
                method, target, status = chance.choice(
                    (
                        ("GET", "/v1/models", 200),
                        ("HEAD", "/v1/models", 200),
                        ("GET", "/nowhere", 404),
                        ("GET", "/generate", 405),
                        ("OPTIONS", "/generate", 405),
                    )
                )
                if method == "HEAD":
                    await link.send(b"HEAD /v1/models HTTP/1.1\r\nHost: rollout\r\n\r\n")
                    head = await link.head()
                else:
                    head = await link.own(method, target)
                world.ledger.note("own", End.WHOLE)
                if head.status != status:
                    world.fail(f"{method} {target}: {head}", since=since)
                if head.closes:
                    return
                continue
            batch = _batch(world, chance, 1)
            results = await world.exchange(link, batch, chance)
            await world.judge(batch, results, chance, since=since)
            if not results[-1].goes_on:
                return


async def pipelined(world: World, chance: random.Random) -> None:
    """Several requests in one write, small ones in one read."""
    async with world.link() as link:
        for _ in range(chance.randint(1, 3)):
            since = time.monotonic()
            batch = _batch(world, chance, 6, small=chance.random() < 0.7)
            results = await world.exchange(link, batch, chance)
            await world.judge(batch, results, chance, since=since)
            if not results[-1].goes_on:
                return


async def in_pieces(world: World, chance: random.Random) -> None:
    """Pipelined, cut anywhere; also slow heads."""
    since = time.monotonic()
    async with world.link() as link:
        batch = _batch(world, chance, 3, small=chance.random() < 0.5)
        cut = anywhere(
            chance, cuts=chance.choice((1, 5, 30)), pause=chance.choice((0, 0.002, 0.05))
        )
        results = await world.exchange(link, batch, chance, cut=cut)
        await world.judge(batch, results, chance, since=since)


async def slow_writer(world: World, chance: random.Random) -> None:
    since = time.monotonic()
    async with world.link() as link:
        ask = world.ask(MODEL, chance)
        batch = [(ask, Form(chunked=chance.random() < 0.5))]
        cut = anywhere(chance, cuts=4, pause=0.3)
        results = await world.exchange(link, batch, chance, cut=cut)
        await world.judge(batch, results, chance, since=since)


async def slow_reader(world: World, chance: random.Random) -> None:
    since = time.monotonic()
    async with world.link(window=2**14) as link:
        kind = chance.choice(("json", "text", "text-chunked", "eof"))
        batch = [(world.ask(MODEL, chance, kind=kind, size=2_000_000, pause=0.0), Form())]
        results = await world.exchange(link, batch, chance, pace=0.005)
        await world.judge(batch, results, chance, since=since)


async def reads_late(world: World, chance: random.Random) -> None:
    """Many requests at once, whose answers fill all that lies between before any is read."""
    since = time.monotonic()
    async with world.link(window=2**14) as link:
        batch = [
            (world.ask(MODEL, chance, size=chance.choice((1000, 300_000))), Form())
            for _ in range(chance.randint(5, 20))
        ]
        await asyncio.sleep(0.2)
        results = await world.exchange(link, batch, chance, pace=0.002)
        await world.judge(batch, results, chance, since=since)


async def large_upload(world: World, chance: random.Random) -> None:
    since = time.monotonic()
    async with world.link() as link:
        ask = world.ask(MODEL, chance)
        ask.pad = "".join(f"{ask.nonce}." * (2_000_000 // (len(ask.nonce) + 1)))
        batch = [(ask, Form(chunked=chance.random() < 0.5, expect=chance.random() < 0.3))]
        results = await world.exchange(link, batch, chance)
        await world.judge(batch, results, chance, since=since)


async def old_client(world: World, chance: random.Random) -> None:
    """HTTP/1.0, with and without a connection that is kept."""
    async with world.link() as link:
        for _ in range(chance.randint(1, 3)):
            since = time.monotonic()
            connection = chance.choice(("", "keep-alive"))
            batch = [(world.ask(MODEL, chance), Form(version="1.0", connection=connection))]
            results = await world.exchange(link, batch, chance)
            await world.judge(batch, results, chance, since=since)
            if not results[-1].goes_on:
                await link.end()
                return


async def waits_for_100(world: World, chance: random.Random) -> None:
    since = time.monotonic()
    async with world.link() as link:
        batch = [(world.ask(MODEL, chance), Form(expect=True))]
        results = await world.exchange(link, batch, chance)
        await world.judge(batch, results, chance, since=since)


async def says_close(world: World, chance: random.Random) -> None:
    since = time.monotonic()
    async with world.link() as link:
        batch = [(world.ask(MODEL, chance), Form(connection="close"))]
        results = await world.exchange(link, batch, chance)
        await world.judge(batch, results, chance, since=since)
        await link.end()


SCENARIOS: dict[Scenario, int] = {
    one_after_the_other: 8,
    pipelined: 8,
    in_pieces: 6,
    slow_writer: 2,
    slow_reader: 2,
    reads_late: 2,
    large_upload: 2,
    old_client: 3,
    waits_for_100: 1,
    says_close: 2,
}
