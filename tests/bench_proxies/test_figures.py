"""Medians, ratios, goals and the tables that are made of them."""

from typing import Any

import pytest

from tests.bench.proxies import report
from tests.bench.proxies.figures import Goal, judge, middle, ratio, ratios, spread
from tests.bench.proxies.loads import LOADS, UNITS
from tests.bench.proxies.peers import GATEWAYS, SUBJECTS, Found, Missing
from tests.bench.proxies.rounds import Measured, Series


def cpu(*rounds: float | None) -> list[dict[str, float] | None]:
    return [None if x is None else {"cpu_us": x} for x in rounds]


# ---------------------------------------------------------------------------------- arithmetic


def test_a_spread_is_the_median_and_the_extremes() -> None:
    assert spread([5.0, 1.0, 30.0]).document() == {"median": 5.0, "lowest": 1.0, "highest": 30.0}


def test_the_median_leaves_out_rounds_without_the_figure() -> None:
    samples = {"buffered": {"smg": [*cpu(10, None, 30), {}]}}
    assert middle(samples, "buffered", "smg", "cpu_us") == 20
    assert middle(samples, "buffered", "nginx", "cpu_us") is None


def test_a_ratio_is_of_medians_and_of_the_rounds_that_both_have() -> None:
    # Twice as slow in the second round, both of them: only the rounds' own ratios show that.
    assert ratio([10, 20, 11, None], [20, 40, 30, 50]) == {
        "of_medians": 0.3667,
        "of_pairs": 0.5,
        "lowest": 0.3667,
        "highest": 0.5,
    }
    assert ratio([None, 1], [1, None]) is None
    assert ratio([1], [0.0]) is None  # the direct way costs nothing


def test_ratios_are_those_of_steersman_to_each_other() -> None:
    samples = {"large": {"steersman": cpu(30, 30), "nginx": cpu(60, 40), "direct": cpu(0, 0)}}
    (one,) = ratios(samples)
    assert (one["load"], one["to"], one["of_medians"]) == ("large", "nginx", 0.6)


# --------------------------------------------------------------------------------------- goals


@pytest.mark.parametrize(("ours", "met"), [(50.0, True), (50.1, False)])
def test_a_goal_against_a_peer_is_a_ratio(ours: float, met: bool) -> None:
    goal = Goal(what="x", load="l", figure="cpu_us", against=("vllm-router",), factor=0.5)
    verdict = goal.judge(ours, {"vllm-router": 100.0})
    assert verdict["met"] is met
    assert verdict["allowed"] == 0.5
    assert verdict["ratio"] == pytest.approx(ours / 100)


def test_against_several_the_cheapest_counts() -> None:
    goal = Goal(what="x", load="l", figure="cpu_us", against=GATEWAYS)
    others = {"smg": 40.0, "sglang-router": 25.0, "vllm-router": 30.0}
    assert goal.judge(25.0, others)["met"] is True
    assert goal.judge(25.1, others)["met"] is False


def test_a_margin_is_added() -> None:
    goal = Goal(what="x", load="l", figure="ttft_added_us", against=("smg",), plus=200.0)
    assert goal.judge(650.0, {"smg": 450.0})["met"] is True
    assert goal.judge(651.0, {"smg": 450.0})["met"] is False


@pytest.mark.parametrize(("value", "met"), [(0.99, True), (0.98, False)])
def test_a_goal_can_be_a_lower_limit(value: float, met: bool) -> None:
    goal = Goal(what="x", load="l", figure="carried", plus=0.99, at_least=True)
    assert goal.judge(value, {})["met"] is met


@pytest.mark.parametrize("ours", [10.0, None])
def test_a_goal_without_its_peer_or_its_figure_is_not_judged(ours: float | None) -> None:
    goal = Goal(what="x", load="l", figure="cpu_us", against=("smg", "vllm-router"))
    verdict = goal.judge(ours, {"smg": 40.0, "vllm-router": None})
    assert verdict["met"] is None
    assert "vllm-router" in verdict["why"]
    assert ("steersman" in verdict["why"]) is (ours is None)


def test_all_targets_are_judged_by_a_whole_run() -> None:
    whole = {"cpu_us": 20.0, "carried": 1.0, "rss_kb_per_stream": 10.0, "ttft_added_us": 100.0}
    others = {"cpu_us": 100.0, "carried": 1.0, "rss_kb_per_stream": 1.0, "ttft_added_us": 100.0}
    samples: dict[str, dict[str, list[Any]]] = {
        load.name: {"steersman": [whole], **{name: [others] for name in GATEWAYS}} for load in LOADS
    }
    samples["idle"] = {"steersman": [{"rss_mb": 55.0}]}
    assert [verdict["met"] for verdict in judge(samples)] == [True] * 12
    samples["sse-1000"]["steersman"] = [{**whole, "carried": 0.9}]
    samples["idle"]["steersman"] = [{"rss_mb": 55.1}]
    assert sum(verdict["met"] is False for verdict in judge(samples)) == 2


# -------------------------------------------------------------------------------------- samples


def counted(**more: Any) -> dict[str, Any]:
    return {
        "seconds": 2.0,
        "answers": 100,
        "chunks": 0,
        "cpu_us": {"proxy": 1000.0, "engine": 500.0, "load": 400.0},
        "rss_kb": 1000,
        "starved": 3,
        "errors": {},
        "latency_us": {"p50": 70.0, "p99": 90.0},
        **more,
    }


def load(name: str):
    return next(one for one in LOADS if one.name == name)


def test_an_answer_in_one_piece_is_the_unit() -> None:
    sample = load("buffered").sample(counted())
    assert sample["cpu_us"] == 10.0
    assert sample["per_second"] == 50.0
    assert sample["busy"] == 0.0005
    assert sample["rss_mb"] == 1.024
    assert sample["p50_us"] == 70.0
    assert set(sample) <= set(UNITS)


def test_of_a_stream_it_is_the_chunk() -> None:
    delays = {"p50": 30.0, "p99": 300.0}
    stream = counted(chunks=18_000, chunk_delay_us=delays, ttft_us={"p50": 99.0, "p99": 1.0})
    sample = load("sse-200").sample(stream)
    assert sample["cpu_us"] == pytest.approx(1000 / 18_000)
    assert sample["carried"] == 0.9  # 9,000 of 200 × 50 a second
    assert sample["ttft_us"] == 99.0
    assert set(sample) <= set(UNITS)


# --------------------------------------------------------------------------------------- report


@pytest.fixture
def document() -> dict[str, Any]:
    found = {
        "direct": Found("-", ""),
        "steersman": Found("0.1.0 (Python 3.11)", ""),
        "nginx": Found("1.22.1", ""),
        "vllm-router": Found("0.1.17", ""),
    }
    subjects = [(one, found.get(one.name, Missing("apt-get it"))) for one in SUBJECTS]
    buffered = {
        "direct": Series(cpu(0, 0), [{}, {}]),
        "steersman": Series(cpu(30, 32), [{}, {}]),
        "nginx": Series(cpu(15, 17), [{}, {"status": 2}]),
        "vllm-router": Series([None, None], [{"failed": 1}] * 2, ["it ended"] * 2),
    }
    streams = {"steersman": Series([{"cpu_us": 20.0, "carried": 0.8, "rss_kb_per_stream": 12.0}])}
    measured = Measured(
        {"buffered": buffered, "sse-1000": streams}, {"direct": [0.0], "steersman": [50.0, 54.0]}
    )
    return report.results(subjects, LOADS, measured)


def row_of(table: str, name: str) -> list[str]:
    (line,) = [x for x in table.splitlines() if x.startswith((f"| {name}", f"| **{name}"))]
    return [cell.strip(" *") for cell in line.split("|")[1:-1]]


def test_the_table_has_a_row_for_each_proxy_and_says_what_is_not_there(document) -> None:
    table = report.main_table(document)
    assert len(table.splitlines()) == 2 + len(SUBJECTS) - 1  # without the direct way
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert row_of(table, "haproxy")[1] == "not installed"
    assert row_of(table, "vllm-router")[1] == "–"
    assert row_of(table, "nginx 1.22.1")[1] == "16.0 ⚠"
    ours = row_of(table, "steersman**")
    assert (ours[1], ours[5], ours[7], ours[8]) == ("31.0", "20.0 (80%)", "52 MB", "12 kB")


def test_wrong_answers_are_in_the_document_with_their_round(document) -> None:
    (row,) = [x for x in document["results"] if x["proxy"] == "nginx"]
    assert row["rounds_with_errors"] == {2: {"status": 2}}
    assert row["figures"]["cpu_us"]["rounds"] == [15, 17]


def test_missed_targets_are_told_as_sentences(document) -> None:
    assert report.missed(document) == ["1,000 streams × 50/s carried whole on one core: 80.0%"]
    table = report.target_table(document)
    assert "| memory at most 55 MB idle | 52 MB | met |" in table
    assert "| 1,000 streams × 50/s carried whole on one core | 80.0% | **missed** |" in table
    assert "not measured: vllm-router" in table


def test_wrong_answers_of_steersman_miss_the_goal(document) -> None:
    (row,) = [
        x for x in document["results"] if (x["proxy"], x["load"]) == ("steersman", "buffered")
    ]
    row["rounds_with_errors"] = {1: {"length": 3}}
    assert "wrong answers under buffered: {1: {'length': 3}}" in report.missed(document)


def test_the_summary_has_a_line_for_each_figure(document) -> None:
    lines = report.summary(document).splitlines()
    assert len(lines) == 4
    assert lines[3].split() == ["idle", "steersman", "52.0", "MB"]
    assert lines[1].startswith("buffered      nginx")
    assert "steersman to it: 1.938" in lines[1]
