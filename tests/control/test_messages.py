"""What comes from the wire: the messages of this and older releases, and nothing else."""

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.control import (
    MAX_PROXY_FRAME,
    MAX_ROWS,
    MAX_TABLE_FRAME,
    Ack,
    ControlProtocolError,
    Hello,
    InFlight,
    Snapshot,
    UnusableTable,
    Watch,
    check_table,
    decode_from_operator,
    decode_from_proxy,
    decode_table,
    encode,
    encode_snapshot,
    encode_table,
)
from steersman.engine import EngineRow
from steersman.table import Epoch, PoolRow, Table
from tests.control.golden import FROM_OPERATOR, FROM_PROXY, TABLE, as_of
from tests.control.support import row, table

FRAMES: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "golden_frames.json").read_text()
)
RELEASED = [(release, name) for release, frames in FRAMES.items() for name in frames]


@pytest.mark.parametrize(("release", "name"), RELEASED)
def test_the_frames_of_every_release_are_understood(release: str, name: str) -> None:
    frame = bytes.fromhex(FRAMES[release][name])

    if name in FROM_PROXY:
        assert decode_from_proxy(frame) == as_of(release, FROM_PROXY[name])
    else:
        assert decode_from_operator(frame) == as_of(release, FROM_OPERATOR[name])


def test_this_release_writes_the_frames_of_the_newest_one() -> None:
    newest = list(FRAMES)[-1]

    written = {name: encode(m).hex() for name, m in (FROM_PROXY | FROM_OPERATOR).items()}

    assert written == FRAMES[newest]


def raw(message: Any) -> list[Any]:
    content: list[Any] = msgspec.msgpack.decode(encode(message))
    return content


def frame(content: Any) -> bytes:
    return msgspec.msgpack.encode(content)


@pytest.mark.parametrize("name", FROM_PROXY)
def test_fields_of_a_later_release_are_ignored(name: str) -> None:
    message = FROM_PROXY[name]

    assert decode_from_proxy(frame([*raw(message), {"new": 1}, 2])) == message


def test_columns_of_a_later_release_are_ignored() -> None:
    content = raw(FROM_OPERATOR["snapshot"])
    content[2][2][0].append("a new column")
    content[2].append("a new list of rows")

    assert decode_from_operator(frame(content)) == FROM_OPERATOR["snapshot"]


@pytest.mark.parametrize(
    "content",
    [
        [99, 1, 2],  # an unknown tag
        [5, 1, 2],  # a tag that is reserved for deltas
        [],
        {},
        None,
        7,
        "hello",
        [1],  # a hello without fields
        [1, 1, 1, "", "boot"],  # an empty uid
        [1, 1, 1, "u" * 513, "boot"],
        [1, 1, 1, "pod", "b" * 65],
        [1, -1, 1, "pod", "boot"],
        [1, 2**63, 1, "pod", "boot"],
        [1, "1", 1, "pod", "boot"],
        [1, True, 1, "pod", "boot"],
        [1, 1, 1, "pod", "boot", "build", [], [2**63, 1]],
        [1, 1, 1, "pod", "boot", "build", ["cap"] * 65],
        [6, 1, [-1, 1], "digest"],
        [6, 1, [1], 7],
        [6, 1, [1, 1], "d" * 65],
        [9, 1, [1, 1], {"e": -1}],
        [9, 1, [1, 1], {"e": 1.5}],
        [9, 1, [1, 1], {"e" * 513: 1}],
        [9, 1, [1, 1], {str(n): 0 for n in range(MAX_ROWS + 1)}],
        [15, 1, None, "", -1.0],
        [15, 1, None, "", 1e30],
        [15, 1, None, "", float("nan")],
        [3, "no_such_code"],
        [2, 1, 1, 1, 2.0, 10.0, "", ""],  # a welcome is not for proxies to say
        [4, 1, [[1, 1]], "d"],  # nor is a table
    ],
)
def test_what_is_no_message_of_a_proxy_is_refused(content: Any) -> None:
    with pytest.raises(ControlProtocolError):
        decode_from_proxy(frame(content))


@pytest.mark.parametrize(
    "content",
    [
        [99],
        [1, 1, 1, "pod", "boot"],  # a hello is not for operators to say
        [2, 1, 1, 1, -2.0, 10.0, "", ""],
        [8, ["e"] * (MAX_ROWS + 1)],
        [8, [1]],
        [10, "e", "r" * 3000],
        [11, 1, [-1, 1]],
        [4, 1, [[1, 2**63], [], []], "d"],
        [4, 1, "no table", "d"],
        [4, 1, [], "d"],
    ],
)
def test_what_is_no_message_of_an_operator_is_refused(content: Any) -> None:
    with pytest.raises(ControlProtocolError) as caught:
        decode_from_operator(frame(content))
    assert not isinstance(caught.value, UnusableTable)


@pytest.mark.parametrize(
    ("pools", "engines"),
    [
        ([], [["e", "http://e:1", "p", "a role of a later release"]]),
        ([], [["e", "http://e:1"]]),
        ([], "none"),
        ([["p", [], False, None, {}, {"policy": "a later one"}]], []),
        ([], [["e", "http://e:1", "p"]] * 2),
        ([["p"], ["p"]], []),
        ([], [["", "http://e:1", "p"]]),
        ([], [["e", "file:///etc/passwd", "p"]]),
        ([], [["e", "http://" + "e" * 600, "p"]]),
        ([], [["e", "http://e:1", "p", "plain", "unknown", "z" * 600]]),
        ([[""]], []),
        ([["p" * 600]], []),
    ],
)
def test_a_table_that_cannot_be_used_says_which_it_is(pools: Any, engines: Any) -> None:
    with pytest.raises(UnusableTable) as caught:
        decode_from_operator(frame([4, 12, [[3, 41], pools, engines], "d"]))

    assert caught.value.session == 12
    assert caught.value.epoch == Epoch(3, 41)
    assert len(str(caught.value)) < 1000


def test_frames_that_are_too_long_are_not_even_looked_at() -> None:
    with pytest.raises(ControlProtocolError, match="too long"):
        decode_from_proxy(encode(Hello(1, 1, "p", "b")) + b"\0" * MAX_PROXY_FRAME)
    with pytest.raises(ControlProtocolError, match="too long"):
        decode_from_operator(bytes(MAX_TABLE_FRAME + 1))


def test_the_largest_report_fits() -> None:
    counts = {f"{'x' * 200}{n}": 2**40 for n in range(MAX_ROWS)}

    report = InFlight(1, Epoch(1, 1), counts)

    assert decode_from_proxy(encode(report)) == report


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ControlProtocolError):
        decode_from_proxy(b"\x91" * 100_000 + b"\x00")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(content: bytes) -> None:
    for decode in (decode_from_proxy, decode_from_operator):
        with contextlib.suppress(ControlProtocolError):
            decode(content)


messages = st.sampled_from([*FROM_PROXY.values(), *FROM_OPERATOR.values()])


@given(messages, st.data())
def test_damaged_messages_are_a_message_or_a_protocol_error(message: Any, data: Any) -> None:
    content = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for decode in (decode_from_proxy, decode_from_operator):
        with contextlib.suppress(ControlProtocolError):
            decode(cut)


@pytest.mark.parametrize("name", [*FROM_PROXY, *FROM_OPERATOR])
def test_a_truncated_message_is_refused_at_every_length(name: str) -> None:
    content = bytes.fromhex(FRAMES[list(FRAMES)[-1]][name])
    decode: Any = decode_from_proxy if name in FROM_PROXY else decode_from_operator
    for length in range(len(content)):
        with pytest.raises(ControlProtocolError):
            decode(content[:length])


def test_a_table_is_encoded_once_for_all_sessions() -> None:
    content = encode_table(TABLE)
    digest = TABLE.digest()

    frames = [
        encode_snapshot(content, session=n, digest=digest, peers=("a",), removed_ok=False, age=1.0)
        for n in (1, 2)
    ]

    for number, one in enumerate(frames, 1):
        assert decode_from_operator(one) == Snapshot(number, TABLE, digest, ("a",), False, 1.0)
        assert one == encode(Snapshot(number, TABLE, digest, ("a",), False, 1.0))
    assert decode_table(content) == TABLE


def test_a_table_that_proxies_would_refuse_is_not_encoded() -> None:
    with pytest.raises(ControlProtocolError, match="too large"):
        encode_table(table(*(row(f"e{n}") for n in range(MAX_ROWS + 1))))
    with pytest.raises(ControlProtocolError, match="twice"):
        encode_table(table(row("a"), row("a")))
    with pytest.raises(ControlProtocolError, match="out of range"):
        check_table(Table(epoch=Epoch(1, 2**70)))


def test_a_table_at_the_limit_is_good() -> None:
    rows = tuple(
        EngineRow(id=f"e{n}", url=f"http://10.0.0.1:{n}", pool="p") for n in range(MAX_ROWS)
    )
    pools = tuple(PoolRow(name=f"p{n}") for n in range(MAX_ROWS))

    made = Table(epoch=Epoch(1, 1), pools=pools, engines=rows)

    assert decode_table(encode_table(made)) == made


def test_messages_show_what_they_are() -> None:
    assert decode_from_operator(encode(Watch(()))) == Watch(())
    assert decode_from_proxy(encode(Ack(1, Epoch(1, 2), ""))) == Ack(1, Epoch(1, 2), "")
