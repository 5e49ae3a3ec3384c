"""Polite clients of engines that break, stall, lie and die."""

import asyncio
import random
import time

from tests.soak.content import FAULTS, KINDS, Ask
from tests.soak.ledger import End
from tests.soak.link import Form, Result
from tests.soak.world import ROUTES, Scenario, World

MODEL = "faulty"

_RIGHT_LENGTH = ("json", "json-chunked", "text", "text-chunked", "sse", "error")
_CHUNKED = ("json-chunked", "text-chunked", "sse")


def _ask(world: World, chance: random.Random) -> Ask:
    """A question for a fault, made so that the fault can be seen."""
    fault = chance.choice(("", "", "", *FAULTS))
    if not fault:
        # Not those whose end is the end of the connection: that of a killed engine looks the same.
        kind = chance.choice((*_RIGHT_LENGTH, "empty"))
        return world.ask(MODEL, chance, kind=kind, size=chance.choice((100, 10_000)))
    kind, size, at = chance.choice(_RIGHT_LENGTH), chance.choice((100, 10_000)), -1
    match fault:
        case "surplus":
            kind, size = chance.choice((*_RIGHT_LENGTH, "empty")), 100
        case "early" | "hasty":
            kind = "error"
        case "trickle":
            # Two bytes in a time that `stale` ends.
            kind, size, at = chance.choice(("json", "text", "text-chunked", "sse")), 3000, 1000
        case "garbage" if chance.random() < 0.5:
            kind, at = chance.choice(_CHUNKED), chance.randrange(20)
        case "garbage":
            pass
        case _:
            at = chance.choice((-1, 0, 1, 10, 29))
    return world.ask(MODEL, chance, fault=fault, kind=kind, size=size, at=at)


async def ask_on(world: World, chance: random.Random) -> None:
    """One request after the other for as long as the connection holds."""
    old = chance.random() < 0.1
    async with world.link() as link:
        for _ in range(chance.randint(1, 20)):
            since, ask = time.monotonic(), _ask(world, chance)
            form = Form(
                route=chance.choice(ROUTES),
                version="1.0" if old else "1.1",
                connection="keep-alive" if old else "",
                chunked=not old and chance.random() < 0.1,
                fault=ask.fault if ask.fault in ("early", "hasty") else "",
            )
            (result,) = await world.exchange(link, [(ask, form)], chance)
            if not _may_be(ask, result, old=old):
                world.fail(f"{ask}: {result}", since=since)
            if not result.goes_on:
                return
            if result.code == "no_available_workers":
                await asyncio.sleep(0.02)


def _may_be(ask: Ask, result: Result, *, old: bool) -> bool:
    match result.end:
        case End.WHOLE:
            return ask.fault in ("", "surplus", "early", "hasty")
        case End.UNANSWERED:
            # A reset is the only way to say "broken" to such a client, and it may overtake the head.
            return old
        case _:
            return True


SCENARIOS: dict[Scenario, int] = {ask_on: 1}

assert set(_RIGHT_LENGTH) < set(KINDS)
