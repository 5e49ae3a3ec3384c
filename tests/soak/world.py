"""What the clients of the soak share: where to connect, what to ask, and how to judge the end."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.soak.content import KINDS, Ask, filler
from tests.soak.ledger import End, Ledger
from tests.soak.link import Form, Link, Result, Wrong, request

ROUTES = ("/generate", "/v1/chat/completions", "/v1/completions", "/encode")
SIZES = (1, 100, 100, 1000, 1000, 10_000, 100_000, 1_000_000)

Batch = Sequence[tuple[Ask, Form]]
Scenario = Callable[["World", random.Random], Awaitable[None]]


class World:
    """One proxy, for so many seconds."""

    def __init__(self, *, port: int, ledger: Ledger, seconds: float, seed: int) -> None:
        self.port = port
        self.ledger = ledger
        self.seed = seed
        self.began = time.monotonic()
        self._until = self.began + seconds

    @property
    def running(self) -> bool:
        return time.monotonic() < self._until

    async def reaches(self, share: float) -> None:
        """Wait until that share of the time is over."""
        then = self.began + share * (self._until - self.began)
        await asyncio.sleep(max(0.0, then - time.monotonic()))

    def ask(self, model: str, chance: random.Random, **given: object) -> Ask:
        """A new question; what is not given is drawn."""
        drawn: dict[str, object] = {
            "nonce": f"{model}-{next(self.ledger.nonces)}",
            "kind": chance.choice(KINDS),
            "size": chance.choice(SIZES),
            "pause": chance.choice((0.0, 0.0, 0.0, 0.001, 0.01)),
        }
        upload = chance.choice((0, 0, 0, 100, 10_000, 300_000))
        drawn["pad"] = filler(str(drawn["nonce"]), upload).decode()
        if drawn["size"] == SIZES[-1]:
            drawn["pause"] = 0.0
        return Ask(model=model, **(drawn | given))  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def link(self, *, window: int | None = None) -> AsyncIterator[Link]:
        """A connection; closed at the end."""
        link = await Link.open(self.port, window=window)
        try:
            yield link
        finally:
            link.writer.transport.abort()

    async def exchange(
        self,
        link: Link,
        batch: Batch,
        chance: random.Random,
        *,
        cut: Callable[[bytes], Sequence[tuple[bytes, float]]] | None = None,
        pace: float = 0.0,
    ) -> list[Result]:
        """Write requests after one another, without waiting, and read the answers meanwhile.

        ``cut`` splits the bytes into parts, each with the seconds to wait after it. Results are
        counted, not judged.
        """
        data = b"".join(b"".join(request(ask, form, chance)) for ask, form in batch)
        writing = asyncio.ensure_future(_write(link, [(data, 0.0)] if cut is None else cut(data)))
        results: list[Result] = []
        try:
            for ask, form in batch:
                if results and not results[-1].goes_on:
                    results.append(Result(End.UNANSWERED))
                else:
                    served = link.served
                    results.append(await link.answer(ask, old=form.version == "1.0", pace=pace))
                    if results[-1].end is End.UNANSWERED and served:
                        # Out of files or not: whom the proxy has once served, it owes an answer.
                        raise Wrong(f"no answer on a good connection ({link}): {ask.nonce}, {form}")
                self.ledger.note(ask.model, results[-1].end, code=results[-1].code)
            if results[-1].goes_on:
                await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return results

    async def judge(
        self, batch: Batch, results: list[Result], chance: random.Random, *, since: float
    ) -> None:
        """All of them must have got their whole answer.

        Those behind an answer that ended the connection were not heard, and are asked again; engines
        tell if they were.
        """
        closed = False
        for pair, result in zip(batch, results, strict=True):
            end = result
            if closed and result.end is End.UNANSWERED:
                async with self.link() as link:
                    (end,) = await self.exchange(link, [pair], chance)
            closed = closed or (result.end in (End.WHOLE, End.REFUSED) and not result.goes_on)
            if end.end is not End.WHOLE:
                ask = pair[0]
                self.fail(f"{ask.nonce} ({ask.kind}, {ask.size}): {end}", since=since)

    def fail(self, what: str, *, since: float) -> None:
        """Something that began at ``since`` failed that should not have."""
        if self.ledger.may_fail(since):
            self.ledger.excused += 1
        else:
            self.ledger.wrong.append(f"{time.monotonic() - self.began:.1f} s: {what}")

    async def work(self, name: str, scenarios: dict[Scenario, int]) -> None:
        """One client after the other, until the time is up. The numbers are weights."""
        chance = random.Random(f"{self.seed} {name}")
        while self.running:
            (scenario,) = chance.choices([*scenarios], [*scenarios.values()])
            since, excused = time.monotonic(), self.ledger.excused
            words = f"{name}, {getattr(scenario, '__name__', scenario)}"
            self.ledger.scenarios[words.partition(", ")[2]] += 1
            try:
                await scenario(self, chance)
            except Wrong as error:
                # Not excused by anything.
                self.ledger.wrong.append(f"{time.monotonic() - self.began:.1f} s: {words}: {error}")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.fail(f"{words}: {error!r}", since=since)
            if self.ledger.excused > excused:
                # Or nothing but failing would happen while the proxy can serve nobody.
                await asyncio.sleep(0.05)


async def _write(link: Link, parts: Sequence[tuple[bytes, float]]) -> None:
    for part, pause in parts:
        await link.send(part)
        if pause >= 0:
            await asyncio.sleep(pause)


def at_once(data: bytes) -> list[tuple[bytes, float]]:
    return [(data, -1)]


def anywhere(chance: random.Random, *, cuts: int, pause: float) -> Callable[..., object]:
    """Cuts at random places, so that one read of the proxy's ends within anything."""

    def cut(data: bytes) -> list[tuple[bytes, float]]:
        # Most of them near the start, where the heads are.
        ends = [chance.randrange(1, min(len(data), 700)) for _ in range(cuts)]
        ends += [chance.randrange(1, len(data)) for _ in range(cuts)]
        places = sorted({0, *ends, len(data)})
        return [
            (data[begin:end], pause * chance.random()) for begin, end in itertools.pairwise(places)
        ]

    return cut
