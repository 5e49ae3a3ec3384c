"""Whole examples: one to four requests, mutated or not, cut up, and what the engine does."""

from tests.fuzz.answers import answer
from tests.fuzz.example import Answer, Example, Leave, Setup
from tests.fuzz.requests import mutated, request
from tests.fuzz.source import Source

SETUPS: tuple[Setup, ...] = ("rl", "rl", "rl", "relay", "keys")
GAPS = (3, 0, 1, 6)
LEAVES: tuple[Leave, ...] = ("fin", "rst", "rst", "fin early", "rst early")
TAKES = (1000, 20_000, 50)


def example(source: Source) -> Example:
    """One example."""
    count = source.choice((1, 1, 1, 2, 2, 3, 4, 4))
    requests = [request(source) for _ in range(count)]
    data = b"".join(requests)
    if source.chance(30):
        data = mutated(source, data)
    if source.chance(5):
        data = data[: source.below(len(data) + 1)]
    if source.chance(2):
        data = b"\r\n" * (1 + source.below(2)) + data
    answers = [answer(source) for _ in range(source.below(count + 2))]
    if source.chance(4) and answers:
        first = answers[0]
        answers[0] = Answer((mutated(source, first.data),), first.end)
    gap = source.choice(GAPS)
    return Example(
        client=source.cuts(data, 4) if source.chance(60) else (data,),
        answers=tuple(answers),
        gap=gap,
        leave=source.choice(LEAVES) if source.chance(20) else "fin",
        setup=source.choice(SETUPS),
        take=source.choice(TAKES) if source.chance(10) else 0,
    )
