"""The parts that do no I/O, by Hypothesis; atheris runs the same checks."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.answers import answer
from tests.fuzz.corpus import entries
from tests.fuzz.oracles import CHECKS, check_answer, check_events, check_gate, check_head
from tests.fuzz.requests import mutated, request
from tests.fuzz.source import Source, of_seed, sources

ENTRIES = entries()


@pytest.mark.parametrize("check", CHECKS)
def test_the_corpus(check: Callable[[bytes], None]) -> None:
    for entry in ENTRIES:
        for data in (entry.example.sent, *(one.data for one in entry.example.answers)):
            for first in (b"\0\0", b"\1\2", b"\3\7", b"\x40\x11", b"\xff\xf0"):
                check(first + data)
                check(first + b"\1" + data)


def made(source: Source) -> tuple[bytes, bytes]:
    """Bytes of a client and of an engine, with what chooses the cuts before them."""
    first = bytes([source.below(256), source.below(256)])
    client = b"".join(request(source) for _ in range(1 + source.below(2)))
    engine = bytes([source.below(256)]) + answer(source).data
    if source.chance(50):
        client = mutated(source, client)
        engine = engine[:1] + mutated(source, engine[1:])
    return first + client, first + engine


def check_made(source: Source) -> None:
    client, engine = made(source)
    check_head(client)
    check_gate(client)
    check_answer(engine)
    check_events(engine)


def test_examples_of_seeds() -> None:
    for seed in range(1500):
        check_made(of_seed(seed))


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(sources())
def test_examples_of_hypothesis(source: Source) -> None:
    check_made(source)


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from(b"\n\r:da t".decode()), max_size=60), st.binary(min_size=2, max_size=2)
)
def test_events_of_line_ends(text: list[str], first: bytes) -> None:
    check_events(first + "".join(text).replace("d", "data").encode())
