"""What the engines' own answers say of the weights that made them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.versions import VersionOrder
from steersman_proxy.stamping import reports
from steersman_proxy.stamping.reports import read_report

ORDER = VersionOrder()


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def test_generate_names_one_version() -> None:
    report = read_report(body({"text": "a", "meta_info": {"weight_version": "7"}}))

    assert (report.current, report.mixed("7", order=ORDER)) == ("7", False)


def test_without_spans_another_version_than_at_dispatch_is_mixed() -> None:
    report = read_report(body({"meta_info": {"weight_version": "8"}}))

    assert report.mixed("7", order=ORDER)


def test_spans_are_exact_even_if_the_table_was_behind() -> None:
    spans = [{"version": "8", "start": 0, "end": 5}]
    report = read_report(body({"meta_info": {"weight_version": "8", "weight_versions": spans}}))

    assert not report.mixed("7", order=ORDER)
    assert report.current == "8"


def test_two_spans_are_mixed_and_the_last_one_is_current() -> None:
    spans = [{"version": "7", "start": 0, "end": 5}, {"version": "8", "start": 5, "end": 9}]
    report = read_report(body({"meta_info": {"weight_versions": spans, "weight_version": "8"}}))

    assert (report.current, report.mixed("7", order=ORDER)) == ("8", True)


def test_a_rollback_within_an_answer_ends_at_the_older_version() -> None:
    spans = [
        {"version": "7", "start": 0, "end": 5},
        {"version": "8", "start": 5, "end": 9},
        {"version": "7", "start": 9, "end": 12},
    ]
    report = read_report(body({"meta_info": {"weight_versions": spans}}))

    assert (report.current, report.mixed("7", order=ORDER)) == ("7", True)


def test_an_empty_span_made_no_token() -> None:
    spans = [{"version": "7", "start": 0, "end": 0}, {"version": "8", "start": 0, "end": 9}]
    report = read_report(body({"meta_info": {"weight_versions": spans}}))

    assert (report.current, report.mixed("8", order=ORDER)) == ("8", False)


def test_items_of_a_batch_that_differ_are_mixed() -> None:
    items = [{"meta_info": {"weight_version": "7"}}, {"meta_info": {"weight_version": "8"}}]

    assert read_report(body(items)).mixed("7", order=ORDER)


def test_spellings_of_one_number_are_one_version() -> None:
    report = read_report(body({"meta_info": {"weight_version": "042"}}))

    assert not report.mixed("42", order=ORDER)


def test_a_number_counts_as_its_text() -> None:
    assert read_report(body({"meta_info": {"weight_version": 7}})).current == "7"


def test_chat_reports_in_metadata() -> None:
    answer = {"choices": [{"message": {"content": "x"}}], "metadata": {"weight_version": "7"}}

    assert read_report(body(answer)).current == "7"


def test_vllm_reports_in_its_choices() -> None:
    spans = [{"version": "7", "start": 0, "end": 5}, {"version": "8", "start": 5, "end": 9}]
    report = read_report(body({"choices": [{"index": 0, "weight_versions": spans}]}))

    assert (report.current, report.mixed("7", order=ORDER)) == ("8", True)


def test_default_is_no_version_and_mixes_nothing() -> None:
    report = read_report(body({"meta_info": {"weight_version": "default"}}))

    assert (report.current, report.unversioned) == (None, True)
    assert not report.mixed("7", order=ORDER)


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"null",
        b"[]",
        b"17",
        b'"text"',
        b"{",
        b'{"meta_info": 3}',
        b'{"meta_info": {"weight_version": {"a": 1}}}',
        b'{"meta_info": {"weight_version": true}}',
        b'{"meta_info": {"weight_version": ""}}',
        b'{"meta_info": {"weight_versions": "7"}}',
        b'{"meta_info": {"weight_versions": [1, null, {"version": null}]}}',
        b'{"choices": [{"weight_versions": null}]}',
        b'{"choices": 3, "x": "\\"weight_versions\\""}',
        b"[" * 5000,
        b"\xff\xfe",
    ],
)
def test_an_odd_answer_reports_nothing(odd: bytes) -> None:
    assert read_report(odd).versions == ()


def test_a_report_that_is_no_valid_version_stamps_nothing() -> None:
    report = read_report(body({"meta_info": {"weight_version": "a b"}}))

    assert report.current is None


LABELS = st.one_of(st.sampled_from(["7", "8", "default", "", " 7 ", 'a"b', "é", 7, None, True]))
METAS = st.dictionaries(
    st.sampled_from(["weight_version", "id", "finish_reason"]),
    st.one_of(LABELS, st.dictionaries(st.sampled_from(["weight_version"]), LABELS)),
)
TEXTS = st.sampled_from(
    ["", "hello", '"metadata":{"weight_version":"9"}}', '{"metadata":{"weight_version":"9"}}', "\\"]
)
ANSWERS = st.dictionaries(
    st.sampled_from(["meta_info", "metadata", "text", "choices", 'x"metadata']),
    st.one_of(METAS, TEXTS, st.lists(METAS, max_size=2), st.lists(TEXTS, max_size=2), LABELS),
)


@given(st.one_of(ANSWERS, st.lists(ANSWERS, max_size=3)), st.sampled_from([None, 1]))
def test_what_is_found_at_a_glance_is_what_is_found_by_decoding(
    answer: object, indent: int | None
) -> None:
    raw = json.dumps(answer, indent=indent, ensure_ascii=False).encode()
    assert read_report(raw) == reports._read_all(raw)
