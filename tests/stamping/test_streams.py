"""Reading along in a stream: nothing is lost or garbled, whatever the cuts."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.versions import VersionOrder
from steersman_proxy.stamping.sse import EventReader
from steersman_proxy.stamping.stamps import Stamper

# Comments, fields without a space, CR LF, and a letter of two bytes (vLLM and SGLang proxies were
# reported to trip over each).
AWKWARD = (
    b'data: {"meta_info":{"weight_version":"7"}}\r\n\r\n: ping\n\n'
    + 'data:{"t":"\u00e9"}\n\n'.encode()
    + b"data: [DONE]\n\n"
)
EVENTS = [b'{"meta_info":{"weight_version":"7"}}', '{"t":"\u00e9"}'.encode(), b"[DONE]"]


def stamper(version: str | None = "7") -> Stamper:
    return Stamper(url="http://e:1", version=version, order=VersionOrder())


def relay(stamp: Stamper, chunks: list[bytes], *, narrate: bool = True) -> bytes:
    return b"".join(
        part for chunk in chunks for part in stamp.read_stream(chunk, narrate=narrate)[0]
    )


def event(version: str, **more: object) -> bytes:
    meta = {"weight_version": version, **more}
    return b"data: " + json.dumps({"text": "x", "meta_info": meta}).encode() + b"\n\n"


@pytest.mark.parametrize("cut", range(len(AWKWARD) + 1))
def test_each_cut_gives_the_same_events_and_bytes(cut: int) -> None:
    seen: list[bytes] = []
    reader = EventReader(lambda payload: seen.append(payload))

    out = reader.feed(AWKWARD[:cut]) + reader.feed(AWKWARD[cut:])

    assert b"".join(out) == AWKWARD
    assert seen == EVENTS


def test_single_bytes_give_the_same_events() -> None:
    seen: list[bytes] = []
    reader = EventReader(lambda payload: seen.append(payload))

    out = b"".join(b"".join(reader.feed(bytes([byte]))) for byte in AWKWARD)

    assert (out, seen) == (AWKWARD, EVENTS)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_pass_unchanged(stream: bytes, cuts: list[int]) -> None:
    reader = EventReader(lambda payload: None)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    out = [
        part for begin, end in itertools.pairwise(edges) for part in reader.feed(stream[begin:end])
    ]

    assert b"".join(out) == stream


def test_an_event_over_the_cap_passes_and_the_next_is_read() -> None:
    seen: list[bytes] = []
    reader = EventReader(lambda payload: seen.append(payload), cap=1000)
    stream = b"data: " + b"a" * 5000 + b"\n\ndata: ok\n\n"

    out = [part for i in range(0, len(stream), 300) for part in reader.feed(stream[i : i + 300])]

    assert b"".join(out) == stream
    assert seen == [b"ok"]


def test_many_lines_over_the_cap_are_skipped_too() -> None:
    seen: list[bytes] = []
    reader = EventReader(lambda payload: seen.append(payload), cap=1000)

    reader.feed(b"data: aaaaaaaaaa\n" * 200 + b"\ndata: ok\n\n")

    assert seen == [b"ok"]


def test_an_unchanged_version_tells_nothing() -> None:
    stamp = stamper()
    stream = event("7") * 3 + b"data: [DONE]\n\n"

    assert relay(stamp, [stream]) == stream
    assert (stamp.version, stamp.mixed) == ("7", False)


@pytest.mark.parametrize("narrate", [True, False])
def test_a_change_is_told_in_a_comment_between_two_events(narrate: bool) -> None:
    stamp = stamper()
    done = b"data: [DONE]\n\n"
    note = b": x-smg-weight-version: 8\n: x-smg-mixed-version: true\n\n" if narrate else b""

    out = relay(stamp, [event("7") + event("8") + event("8") + done], narrate=narrate)

    assert out == event("7") + event("8") + note + event("8") + done
    assert (stamp.version, stamp.mixed) == ("8", True)


def test_a_table_behind_the_engine_is_corrected_but_mixes_nothing() -> None:
    stamp = stamper("7")

    out = relay(stamp, [event("8"), event("8")])

    assert out == event("8") + b": x-smg-weight-version: 8\n\n" + event("8")
    assert not stamp.mixed


def test_spans_in_the_last_event_are_believed() -> None:
    stamp = stamper("7")
    spans = [{"version": "7", "start": 0, "end": 5}, {"version": "8", "start": 5, "end": 9}]

    relay(stamp, [event("7"), event("8", weight_versions=spans)])

    assert (stamp.version, stamp.mixed) == ("8", True)


def test_a_version_within_generated_text_is_not_a_report() -> None:
    stamp = stamper("7")
    text = json.dumps({"text": '{"meta_info":{"weight_version":"9"}}', "meta_info": {}}).encode()

    relay(stamp, [event("7"), b"data: " + text + b"\n\n"])

    assert (stamp.version, stamp.mixed) == ("7", False)


@given(st.lists(st.integers(1, 400), max_size=8))
def test_the_comment_stands_at_the_same_place_for_all_cuts(cuts: list[int]) -> None:
    stream = event("7") + event("8") + b"data: [DONE]\n\n"
    whole = relay(stamper(), [stream])
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[begin:end] for begin, end in itertools.pairwise(edges)]

    assert relay(stamper(), chunks) == whole
