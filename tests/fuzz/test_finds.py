"""The fuzz can fail: each of these faults, put into the proxy, is found within a few examples."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.splice import front
from steersman_proxy.http.splice.head import RegularHead, regular_head
from steersman_proxy.load.inflight import Guard
from steersman_proxy.stamping.sse import EventReader
from steersman_proxy.stamping.stamps import Stamper
from tests.fuzz.bulk import Found, run_seeds
from tests.fuzz.checking import check
from tests.fuzz.example import Answer, Example, dump, load
from tests.fuzz.examples import example
from tests.fuzz.shrink import shrink
from tests.fuzz.source import of_seed
from tests.fuzz.world import World

Patch = pytest.MonkeyPatch


def bodies_are_requests(patch: Patch) -> None:
    """What follows a head is read as the next request."""

    def without_length(data: bytes, end: int) -> RegularHead | None:
        head = regular_head(data, end)
        if head is not None:
            head.body_length = 0
        return head

    patch.setattr(front, "regular_head", without_length)


def one_adapter_writes_heads_otherwise(patch: Patch) -> None:
    spliced = RegularHead.spliced

    def in_small_letters(self: RegularHead, **more: Any) -> bytes:
        return spliced(self, **more).replace(b"Content-Length: ", b"content-length: ")

    patch.setattr(RegularHead, "spliced", in_small_letters)


def every_end_is_a_proper_one(patch: Patch) -> None:
    def eof(self: AnswerFraming) -> bool:
        self.complete = True
        return True

    patch.setattr(AnswerFraming, "eof", eof)


def events_lose_a_byte_at_a_cut(patch: Patch) -> None:
    feed = EventReader.feed

    def careless(self: EventReader, chunk: bytes) -> list[bytes]:
        parts = feed(self, chunk)
        return parts if chunk.endswith(b"\n") else [b"".join(parts)[:-1]]

    patch.setattr(EventReader, "feed", careless)


def stamps_of_the_engine_stay(patch: Patch) -> None:
    edit = Stamper.edit

    def timid(self: Stamper) -> Any:
        made = edit(self)
        return type(made)(remove=frozenset(), add=made.add)

    patch.setattr(Stamper, "edit", timid)


def engines_stay_counted(patch: Patch) -> None:
    patch.setattr(Guard, "release", lambda self: None)


FAULTS = (
    bodies_are_requests,
    one_adapter_writes_heads_otherwise,
    every_end_is_a_proper_one,
    events_lose_a_byte_at_a_cut,
    stamps_of_the_engine_stay,
    engines_stay_counted,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: Callable[[Patch], None], world: World, monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(Found, match="As a file of tests/fuzz/corpus"):
        run_seeds(world, range(2000), seconds=0)


def test_a_failing_example_is_made_small(world: World, monkeypatch: Patch) -> None:
    engines_stay_counted(monkeypatch)
    seed = next(seed for seed in range(2000) if check(world, example(of_seed(seed))))
    small = shrink(example(of_seed(seed)), lambda made: bool(check(world, made)), seconds=10)
    assert len(small.sent) < 100
    assert check(world, load(dump(small))) != []


pieces = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=3).map(tuple)
ends = st.sampled_from(["keep", "fin", "rst"])


@given(
    client=pieces,
    answers=st.lists(st.builds(Answer, pieces, ends), max_size=3).map(tuple),
    gap=st.integers(0, 6),
    leave=st.sampled_from(["fin", "rst", "rst early"]),
    take=st.integers(0, 99),
    setup=st.sampled_from(["rl", "relay", "keys"]),
)
def test_an_example_is_its_text(client, answers, gap, leave, setup, take) -> None:
    made = Example(client, answers, gap, leave, setup, take)
    assert load(dump(made)) == made


def test_long_runs_are_short_text() -> None:
    made = Example((b"a" * 70_000 + b"\r\n" + b"b" * 64,), (Answer((), "rst"),))
    assert len(dump(made)) < 100
    assert load(dump(made)) == made


@pytest.mark.parametrize(
    "text", ["client: 'text'", "client: b'a' + b'b'", "size: 3", "piece: b'a'", "end: never"]
)
def test_text_that_is_no_example_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        load(f"# a comment\n{text}\n")
