"""Which texts are weight versions, and which of two is newer (SMG's rules)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.errors import InvalidVersion
from steersman.versions import (
    Order,
    VersionOrder,
    numeric,
    parse_version,
    reported_version,
    version_of_label,
)

ORDER = VersionOrder()
visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)


@pytest.mark.parametrize("text", ["7", " 7 ", "step-120", "\t042\n", "x" * 128, "default"])
def test_visible_ascii_is_a_version_after_trimming(text: str) -> None:
    assert parse_version(text) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "  ", "a b", "a\x00b", "caf\u00e9", "x" * 129, "a\nb", "\x7f"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidVersion):
        parse_version(text)


def test_the_length_is_counted_after_trimming() -> None:
    assert parse_version(" " * 50 + "x" * 128) == "x" * 128


@pytest.mark.parametrize("label", [None, "", " ", "default", " default "])
def test_the_default_label_means_unversioned(label: str | None) -> None:
    assert version_of_label(label) is None


@pytest.mark.parametrize("odd", [None, True, 1.5, [], {}, "a b", "x" * 129])
def test_an_odd_report_is_no_version(odd: object) -> None:
    assert reported_version(odd) is None


def test_a_reported_number_is_its_text() -> None:
    assert reported_version(12) == "12"


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("10", "9", Order.NEWER),
        ("042", "42", Order.SAME),
        ("step-9", "step-10", Order.NEWER),
        ("7", "7", Order.SAME),
        ("ckpt-7", "10", Order.NEWER),
        (str(2**64 - 1), "1", Order.NEWER),
        # 2**64 is no 64-bit number, so that both are compared as texts.
        (str(2**64), "9", Order.OLDER),
    ],
)
def test_order_of_two_versions(left: str, right: str, order: Order) -> None:
    assert ORDER.compare(left, right) is order
    assert ORDER.compare(right, left) is Order(-order)


def test_a_stray_text_does_not_outrank_numbers_in_the_fleet_max() -> None:
    assert ORDER.newest(["9", "10", "ckpt-7"]) == "10"
    assert ORDER.newest(["step-9", "step-10"]) == "step-9"
    assert ORDER.newest([]) is None


@given(st.lists(visible, max_size=6), st.randoms())
def test_the_fleet_max_does_not_depend_on_the_order_of_the_rows(
    versions: list[str], random: object
) -> None:
    shuffled = list(versions)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert ORDER.newest(versions) == ORDER.newest(shuffled)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_the_fleet_max_of_numbers_is_their_maximum(values: list[int]) -> None:
    newest = ORDER.newest(map(str, values))

    assert newest is not None
    assert numeric(newest) == max(values)


@pytest.mark.parametrize(
    ("version", "newest", "steps"),
    [("7", "10", 3), ("10", "7", 0), ("042", "42", 0), ("a", "10", None), ("7", "b", None)],
)
def test_staleness_counts_steps_between_numbers_only(
    version: str, newest: str, steps: int | None
) -> None:
    assert ORDER.staleness(version, newest) == steps


def test_ordinals_alone_decide_where_there_are_any() -> None:
    order = VersionOrder({"blue": 2, "red": 1, "9": 3})

    assert order.compare("blue", "red") is Order.NEWER
    assert order.compare("100", "red") is Order.OLDER
    assert order.newest(["100", "blue", "red"]) == "blue"
    assert order.staleness("red", "9") == 2
    assert order.staleness("100", "9") is None
