"""A change of weights within a stream: seen at each place, whatever the cuts, and told exactly."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steersman.versions import VersionOrder
from steersman_proxy.stamping.reports import Report
from steersman_proxy.stamping.stamps import Stamper

DONE = b"data: [DONE]\n\n"
TOKENS = 6


def stamper(version: str | None = "7") -> Stamper:
    return Stamper(url="http://e:1", version=version, order=VersionOrder())


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def spans(made_by: str) -> list[dict[str, Any]]:
    """The spans of tokens, each with its version: ``778`` is two of 7 and one of 8."""
    found, start = [], 0
    for version, tokens in itertools.groupby(made_by):
        end = start + len(list(tokens))
        found.append({"version": version, "start": start, "end": end})
        start = end
    return found


def sglang(labels: str, made_by: str | None, **more: Any) -> list[bytes]:
    """A stream of ``/generate``: what the engine is called at each event, and the spans at the end
    (``None``: an engine without spans).
    """
    events = []
    for place, label in enumerate(labels):
        meta: dict[str, Any] = {"id": "r", "weight_version": label, "finish_reason": None}
        if place == len(labels) - 1:
            meta["finish_reason"] = {"type": "length"}
            if made_by is not None:
                meta |= {"weight_versions": spans(made_by), "weight_version": made_by[-1]}
        events.append(event({"text": "x" * place, "meta_info": meta} | more))
    return events


def vllm(made_by: str, *, index: int = 0) -> list[bytes]:
    """A stream of ``/inference/v1/generate``: nothing before the end."""
    events = []
    for place in range(len(made_by)):
        last = place == len(made_by) - 1
        choice = {
            "index": index,
            "token_ids": [place],
            "weight_versions": spans(made_by) if last else None,
        }
        events.append(event({"request_id": "r", "choices": [choice]}))
    return events


def relay(
    stamp: Stamper, chunks: list[bytes], *, narrate: bool = True
) -> tuple[bytes, list[Report]]:
    """What the client reads, and what was news of the engine."""
    out, news = b"", []
    for chunk in chunks:
        parts, reports = stamp.read_stream(chunk, narrate=narrate)
        out += b"".join(parts)
        news += reports
    return out, news


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place for place in places if place < len(stream))})
    return [stream[begin:end] for begin, end in itertools.pairwise(edges)]


def last_word(told: bytes) -> str | None:
    """What the last comment says of mixing."""
    lines = [line for line in told.split(b"\n") if line.startswith(b": x-smg-mixed-version: ")]
    return lines[-1].removeprefix(b": x-smg-mixed-version: ").decode() if lines else None


# --- each position ----------------------------------------------------------------------------------

AT = range(TOKENS + 1)
"""Tokens before the change; none is a change before the first, all one after the last."""


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("step", [1, 3, 7, 10_000])
def test_sglang_names_the_change_with_the_next_event_and_spans_at_the_end(
    at: int, step: int
) -> None:
    made_by = "7" * at + "8" * (TOKENS - at)
    stream = b"".join(sglang(made_by, made_by)) + DONE
    stamp = stamper()

    told, _ = relay(stamp, [stream[i : i + step] for i in range(0, len(stream), step)])

    assert (stamp.version, stamp.mixed) == (made_by[-1], 0 < at < TOKENS)
    notes = told.replace(b": x-smg-weight-version: 8\n\n", b"").replace(
        b": x-smg-weight-version: 8\n: x-smg-mixed-version: true\n\n", b""
    )
    assert notes == stream, "the comments, whole, and nothing else"
    place = told.find(b": x-smg")
    if at == TOKENS:
        assert place == -1
    else:
        assert told[:place].count(b"data: ") == at + 1, "right after the event that shows it"
    assert last_word(told) == ("true" if 0 < at < TOKENS else None)


@pytest.mark.parametrize("at", AT)
def test_an_engine_without_spans_shows_a_change_by_its_name_alone(at: int) -> None:
    stamp = stamper()

    relay(stamp, sglang("7" * at + "8" * (TOKENS - at), None))

    assert (stamp.version, stamp.mixed) == ("7" if at == TOKENS else "8", 0 < at < TOKENS)


@pytest.mark.parametrize("at", AT)
def test_vllm_shows_it_with_the_last_event(at: int) -> None:
    made_by = "7" * at + "8" * (TOKENS - at)
    stamp = stamper()

    told, _ = relay(stamp, vllm(made_by), narrate=False)

    assert told == b"".join(vllm(made_by))
    assert (stamp.version, stamp.mixed) == (made_by[-1], 0 < at < TOKENS)


def test_a_change_there_and_back_is_one() -> None:
    for made_by in (None, "778877"):
        stamp = stamper()
        relay(stamp, sglang("778877", made_by))
        assert (stamp.version, stamp.mixed) == ("7", True)


# --- spans against names ----------------------------------------------------------------------------


def test_spans_show_a_change_that_the_name_did_not() -> None:
    """A flush that was refused: the scheduler has the new version, the tokenizer the old name."""
    stamp = stamper()

    told, news = relay(stamp, sglang("777777", "777888"))

    assert (stamp.version, stamp.mixed) == ("8", True)
    assert last_word(told) == "true"
    assert [report.current for report in news] == ["7", "8"]


def test_a_name_that_was_behind_all_along_mixes_nothing() -> None:
    stamp = stamper()

    told, _ = relay(stamp, sglang("777777", "888888"))

    assert (stamp.version, stamp.mixed) == ("8", False)
    assert last_word(told) is None
    assert told.endswith(b": x-smg-weight-version: 8\n\n")


def test_spans_take_back_what_the_name_had_let_suspect() -> None:
    """The engine was given another name after its last token of this answer was made."""
    stamp = stamper()

    told, news = relay(stamp, sglang("777788", "777777"))

    assert (stamp.version, stamp.mixed) == ("7", False)
    assert told.endswith(b": x-smg-weight-version: 7\n: x-smg-mixed-version: false\n\n")
    # What made the last token is not what the engine has now.
    assert [report.current for report in news] == ["7", "8"]


def test_the_end_of_several_items_does_not_take_the_engine_back() -> None:
    first, second = sglang("777", "777", index=0), sglang("788", "777", index=1)
    stamp = stamper()

    _, news = relay(stamp, [first[0], second[0], second[1], first[2], second[2]])

    assert [report.current for report in news] == ["7", "8"]
    assert (stamp.version, stamp.mixed) == ("7", False)


@pytest.mark.parametrize(("one", "two", "mixed"), [("777", "788", True), ("777", "777", False)])
def test_a_batch_is_mixed_if_one_of_its_items_is(one: str, two: str, mixed: bool) -> None:
    for first, second in ((one, two), (two, one)):
        stamp = stamper()
        relay(stamp, [*vllm(first), *vllm(second, index=1)])
        assert stamp.mixed is mixed


def test_items_made_by_different_versions_are_mixed() -> None:
    stamp = stamper()

    relay(stamp, [*vllm("777"), *vllm("888", index=1)])

    assert stamp.mixed


def test_what_an_item_that_runs_on_names_counts_also_after_the_end_of_another() -> None:
    first, second = sglang("77", "77", index=0), sglang("78888", None, index=1)
    stamp = stamper()

    relay(stamp, [second[0], first[0], second[1], first[1]])
    assert not stamp.mixed, "so far spans explain everything"
    relay(stamp, second[2:4])  # and there it breaks off

    assert stamp.mixed


@pytest.mark.parametrize("spelling", ["007", " 7 "])
def test_another_spelling_is_no_change(spelling: str) -> None:
    stamp = stamper()

    relay(stamp, [*sglang("77", None)[:1], event({"meta_info": {"weight_version": spelling}})])

    assert not stamp.mixed


# --- any run ----------------------------------------------------------------------------------------

timelines = st.lists(st.sampled_from("7778"), min_size=1, max_size=8).map("".join)


@given(
    made_by=timelines,
    late=st.integers(0, 3),
    spanned=st.booleans(),
    cuts=st.lists(st.integers(1, 1200), max_size=8),
)
@example(made_by="778", late=0, spanned=True, cuts=[101])
@example(made_by="8", late=1, spanned=False, cuts=[])
def test_any_timeline_in_any_cuts(made_by: str, late: int, spanned: bool, cuts: list[int]) -> None:
    """``late`` is by how many tokens the name is behind the weights."""
    labels = ("7" * late + made_by)[: len(made_by)]
    if spanned:
        labels = labels[:-1] + made_by[-1]
    events = sglang(labels, made_by if spanned else None)
    stream = b"".join(events) + DONE
    stamp = stamper()

    told, _ = relay(stamp, cut(stream, cuts))

    shown = made_by if spanned else labels
    assert stamp.mixed == (len(set(shown)) > 1)
    assert stamp.version == shown[-1]
    whole, _ = relay(stamper(), [stream])
    assert told == whole
    kept = b"".join(
        line for line in told.splitlines(keepends=True) if not line.startswith(b": x-smg-")
    )
    assert kept.replace(b"\n\n\n", b"\n\n") == stream
    assert last_word(told) in ((None, "false") if not stamp.mixed else ("true",))
