"""The grammar of version policies, and what each says of each engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.errors import InvalidVersionPolicy
from steersman.policy import MaxStaleness, MinVersion, Verdict, judge, parse_policy
from steersman.versions import VersionOrder

ORDER = VersionOrder()
OK, STALE, UNVERSIONED = Verdict.ELIGIBLE, Verdict.STALE, Verdict.UNVERSIONED


@pytest.mark.parametrize(
    "text", ["any", "latest-only", "min-version:7", "min-version:a:b", "max-staleness:0"]
)
def test_a_policy_prints_as_it_is_written(text: str) -> None:
    assert str(parse_policy(f" {text} ")) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Any",
        "any:",
        "any:1",
        "latest",
        "latest-only:7",
        "min-version",
        "min-version:",
        "min-version:a b",
        "min-version: 7",
        "min-version:caf\u00e9",
        "min-version:" + "x" * 129,
        "max-staleness:",
        "max-staleness:-1",
        "max-staleness:x",
        "max-staleness:1.5",
        f"max-staleness:{2**64}",
        "max-staleness: 1",
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(InvalidVersionPolicy, match="latest-only, min-version:<v>"):
        parse_policy(text)


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_a_clear_error(text: str) -> None:
    try:
        policy = parse_policy(text)
    except InvalidVersionPolicy:
        return
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("policy", "version", "fleet_max", "verdict"),
    [
        ("any", "7", "9", OK),
        ("any", None, "9", OK),
        ("any", None, None, OK),
        ("latest-only", "9", "9", OK),
        ("latest-only", "7", "9", STALE),
        ("latest-only", "09", "9", OK),
        ("latest-only", None, "9", UNVERSIONED),
        ("latest-only", None, None, OK),
        # Seen ahead of the table: not stale.
        ("latest-only", "10", "9", OK),
        # A text beside a numeric max is not the newest, although it is greater as text.
        ("latest-only", "ckpt-7", "9", STALE),
        ("max-staleness:2", "7", "9", OK),
        ("max-staleness:1", "7", "9", STALE),
        ("max-staleness:0", "9", "9", OK),
        ("max-staleness:5", "ckpt-7", "9", STALE),
        ("max-staleness:5", "ckpt-7", "ckpt-7", STALE),
        ("max-staleness:5", None, "9", UNVERSIONED),
        ("max-staleness:5", None, None, OK),
        ("min-version:7", "7", "9", OK),
        ("min-version:7", "10", "10", OK),
        ("min-version:7", "6", "9", STALE),
        ("min-version:7", None, "9", UNVERSIONED),
        ("min-version:7", None, None, UNVERSIONED),
    ],
)
def test_the_matrix_of_the_contract(
    policy: str, version: str | None, fleet_max: str | None, verdict: Verdict
) -> None:
    found = judge(parse_policy(policy), version=version, fleet_max=fleet_max, order=ORDER)

    assert found is verdict


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_max_staleness_is_a_window_below_the_newest(version: int, newest: int, steps: int) -> None:
    verdict = judge(MaxStaleness(steps), version=str(version), fleet_max=str(newest), order=ORDER)

    assert (verdict is OK) == (newest - version <= steps)


def test_min_version_of_an_unknown_text_with_ordinals_is_below_all() -> None:
    order = VersionOrder({"red": 1})

    assert judge(MinVersion("blue"), version="red", fleet_max="red", order=order) is OK
