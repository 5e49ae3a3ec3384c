"""Our counters and histograms say what the library's own would say of the same events."""

import random
from itertools import product

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder

from steersman.errors import NoAvailableEngine
from steersman_proxy.exchange.messages import Outcome
from steersman_proxy.metrics import ProxyMetrics
from steersman_proxy.metrics.instruments import BUCKETS
from steersman_proxy.metrics.labels import error_label
from steersman_proxy.metrics.tallies import CounterFamily, HistogramFamily
from tests.observation.support import engine_of, fleet_of, pool_row, record, row, table

FORMATS = ("text/plain", "application/openmetrics-text; version=1.0.0")

OBSERVED = (
    *BUCKETS,
    *(0.0, -1.0, 1e-300, 1e300, float("inf")),
    *(bound * factor for bound in BUCKETS for factor in (1 - 1e-9, 1 + 1e-9)),
)
"""On the bounds, right beside them, and where no bound is near."""


def text(registry: CollectorRegistry, accept: str) -> str:
    encode, _ = choose_encoder(accept)
    return encode(registry).decode()


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """For instruments of the library, without the series that say when a counter began."""
    monkeypatch.setattr("prometheus_client.metrics._use_created", False)
    return CollectorRegistry()


@pytest.mark.parametrize("accept", FORMATS)
@pytest.mark.parametrize("seed", range(5))
def test_histograms_are_the_library_s_line_by_line(
    theirs: CollectorRegistry, seed: int, accept: str
) -> None:
    ours, source = CollectorRegistry(), random.Random(seed)
    names = ("pool", "kind")
    theirs_requests = Counter("requests", "Of a \\ and\na line.", names, registry=theirs)
    theirs_seconds = Histogram("wait_seconds", "A wait.", names, registry=theirs, buckets=BUCKETS)
    our_seconds = HistogramFamily("wait_seconds", "A wait.", names, buckets=BUCKETS)
    ours.register(our_seconds.counter("requests", "Of a \\ and\na line."))
    ours.register(our_seconds)
    assert text(ours, accept) == text(theirs, accept), "no series yet"
    for _ in range(2000):
        labels = (source.choice(("a", 'quo"ted', "back\\slash", "äö")), source.choice("xy"))
        amount = source.choice((source.choice(OBSERVED), source.expovariate(1)))
        theirs_requests.labels(*labels).inc()
        theirs_seconds.labels(*labels).observe(amount)
        our_seconds.series(*labels).observe(amount)
    assert text(ours, accept) == text(theirs, accept)


@pytest.mark.parametrize("accept", FORMATS)
def test_counters_are_the_library_s_line_by_line(theirs: CollectorRegistry, accept: str) -> None:
    ours, source = CollectorRegistry(), random.Random(1)
    their_plain = Counter("plain", "Without labels.", registry=theirs)
    their_own = Counter("own", "With labels.", ("b", "a"), registry=theirs)
    our_plain = CounterFamily("plain", "Without labels.")
    our_own = CounterFamily("own", "With labels.", ("b", "a"))
    ours.register(our_plain)
    ours.register(our_own)
    assert text(ours, accept) == text(theirs, accept), "one without labels is there at once"
    for _ in range(300):
        labels = (source.choice("rst"), source.choice("uv"))
        by = source.choice((0, 1, 5, 10**6, 10**12))
        their_plain.inc(by)
        their_own.labels(*labels).inc(by)
        our_plain.series().value += by
        our_own.series(*labels).value += by
    assert text(ours, accept) == text(theirs, accept)


def test_a_series_that_was_taken_out_counts_from_zero_if_it_comes_back() -> None:
    registry = CollectorRegistry()
    family = CounterFamily("seen", "Seen.", ("url", "how"))
    registry.register(family)
    old = family.series("a", "x")
    old.value += 3
    family.series("b", "x").value += 4
    family.keep(lambda labels: labels[0] == "b")
    old.value += 1
    assert registry.get_sample_value("seen_total", {"url": "a", "how": "x"}) is None
    assert registry.get_sample_value("seen_total", {"url": "b", "how": "x"}) == 4
    family.series("a", "x").value += 1
    assert registry.get_sample_value("seen_total", {"url": "a", "how": "x"}) == 1


def test_mistakes_are_refused() -> None:
    registry = CollectorRegistry()
    waits = HistogramFamily("wait_seconds", "A wait.", ("pool",), buckets=BUCKETS)
    registry.register(waits)
    registry.register(waits.counter("waits", "Waits."))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(HistogramFamily("wait_seconds", "Another.", buckets=BUCKETS))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(CounterFamily("waits", "Another."))
    for labels in ((), ("a", "b")):
        with pytest.raises(ValueError, match="has the labels"):
            waits.series(*labels)


# --- what uses them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", FORMATS)
def test_no_series_says_when_a_counter_began(accept: str) -> None:
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    metrics.selected(engine_of(fleet, "e1"), {})
    metrics.first_byte(engine_of(fleet, "e1"), 0.1)
    metrics.finished(record(held=1.0, mixed=True, status=500))
    assert "_created" not in metrics.exposition(accept)[0].decode()


def test_what_is_not_asked_for_a_request_that_went_well_is_missed_for_no_other() -> None:
    """The short way round the error labels is taken by those only that have none."""
    statuses = (None, 200, 201, 204, 206, 302, 399, 400, 404, 499, 500, 503)
    errors = (None, NoAvailableEngine("x"))
    for outcome, status, error in product(Outcome, statuses, errors):
        metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
        done = record(outcome=outcome, status=status, error=error)
        metrics.finished(done)
        counted = {
            sample.labels["error_type"]: sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "smg_router_request_errors_total"
        }
        label = error_label(done)
        assert counted == ({} if label is None else {label: 1}), done


def test_first_bytes_count_for_the_model_that_the_engine_has_then() -> None:
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    engine = engine_of(fleet, "e1")

    def counts() -> dict[str, float]:
        return {
            sample.labels["model"]: sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "smg_router_ttft_seconds_count"
        }

    metrics.first_byte(engine, 0.1)
    metrics.first_byte(engine, 0.1)
    assert counts() == {"main-model": 2}
    fleet.apply(table(row("e1"), seq=2, pools=[pool_row("main", "renamed")]))
    metrics.first_byte(engine, 0.1)
    assert counts() == {"main-model": 2, "renamed": 1}
    # Its engine has left, and the stream goes on: the pool and its model are still there.
    fleet.apply(table(seq=3, pools=[pool_row("main", "renamed")]))
    metrics.first_byte(engine, 0.1)
    assert counts() == {"main-model": 2, "renamed": 2}
