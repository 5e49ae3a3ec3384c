"""What the corpus holds, whole and cut at every offset, through both adapters."""

from collections.abc import Iterator

import pytest

from tests.fuzz.answering import State, read_reply
from tests.fuzz.checking import check
from tests.fuzz.corpus import Entry, entries
from tests.fuzz.example import Answer, Example
from tests.fuzz.expected import Tail, predict
from tests.fuzz.judge import compare, judge
from tests.fuzz.sockets import SocketWorld
from tests.fuzz.world import World
from tests.http.adapter import KINDS

ENTRIES = entries()
TAILS = {
    "clients": {Tail.OPEN, Tail.CLOSED},
    "regular": {Tail.OPEN, Tail.CLOSED},
    "refused": {Tail.REFUSED},
    "odd": set(Tail),
}
SHORT = 700
"""Bytes up to which an example is cut at every offset."""

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=map(str, ENTRIES))


@every_entry
def test_the_model_knows_what_must_come_of_it(entry: Entry) -> None:
    prediction = predict(entry.example)
    assert prediction.tail in TAILS[entry.folder], prediction.why


@every_entry
def test_what_comes_of_it(entry: Entry, world: World, socket_world: SocketWorld) -> None:
    example = entry.example
    for gap in (0, 1, 3, 6):
        for setup in {"rl", "relay", "keys", example.setup}:
            varied = example._replace(gap=gap, setup=setup)  # type: ignore[arg-type]
            assert check(world, varied, cuts=True) == [], varied
    for kind in KINDS:
        assert judge(example, socket_world.run(example, kind)) == []


def cuts_of_the_client(example: Example) -> Iterator[Example]:
    sent = example.sent
    if len(sent) <= SHORT:
        for at in range(1, len(sent)):
            yield example._replace(client=(sent[:at], sent[at:]))


def cuts_of_the_engine(example: Example) -> Iterator[Example]:
    for index, answer in enumerate(example.answers):
        data = answer.data
        for at in range(1, len(data)):
            if read_reply(data[:at], method=b"POST", end="keep").state is State.WHOLE:
                # What comes after the end of an answer, in a read of its own, is the beginning of
                # the next one for every reader.
                break
            cut = Answer((data[:at], data[at:]), answer.end)
            yield example._replace(
                answers=(*example.answers[:index], cut, *example.answers[index + 1 :])
            )


@every_entry
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_what_the_client_sends(entry: Entry, kind: str, world: World) -> None:
    """Row 27 of the field failures, for requests: also within CR LF and within a character."""
    whole = entry.example.whole()
    run = world.run(whole, kind)
    for example in cuts_of_the_client(whole):
        cut = world.run(example, kind)
        assert judge(example, cut) == [], example
        if not predict(whole).timed:
            assert compare(whole, run, cut) == [], example


@every_entry
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_what_the_engine_sends(entry: Entry, kind: str, world: World) -> None:
    """Row 27 of the field failures: output, stamps and versions are the same for every cut."""
    whole = entry.example.whole()
    run = world.run(whole, kind)
    for example in cuts_of_the_engine(whole):
        cut = world.run(example, kind)
        assert judge(example, cut) == [], example
        assert compare(whole, run, cut) == [], example
