"""Every family moves, labels stay bounded, and series go with their engine."""

import random

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from steersman.clock import FakeClock
from steersman.errors import Fault, HeadTooLarge, InvalidRequest, NoAvailableEngine, RequestStale
from steersman.settings import BreakerSettings, PoolSettings
from steersman_proxy.exchange.messages import Failure, Outcome
from steersman_proxy.load.breaker import Judgement
from steersman_proxy.metrics import ProxyMetrics, TableStatus
from steersman_proxy.metrics.labels import MAX_MODELS
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.routing.request import RouteRequest, Selected, Wait
from tests.observation.support import (
    CLOSED,
    engine_of,
    fleet_of,
    new_fleet,
    pool_row,
    record,
    row,
    table,
)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(metrics: ProxyMetrics) -> Series:
    """All samples by name and labels, each of which must be there once."""
    text, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    found: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(metrics: ProxyMetrics, name: str, **labels: str) -> float | None:
    return read(metrics).get((name, tuple(sorted(labels.items()))))


def total(series: Series, name: str) -> float:
    return sum(v for (n, _), v in series.items() if n == name)


E1 = "http://e1.test:30000"
ROUTER = {
    "router_type": "http",
    "backend_type": "regular",
    "connection_mode": "http",
    "model": "main-model",
    "endpoint": "/generate",
    "streaming": "false",
}


def test_requests_their_duration_and_their_errors():
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    metrics.finished(record(duration=0.5))
    metrics.finished(record(duration=40.0))
    assert value(metrics, "smg_router_requests_total", **ROUTER) == 2
    name = "smg_router_request_duration_seconds"
    assert value(metrics, f"{name}_count", **ROUTER) == 2
    assert value(metrics, f"{name}_sum", **ROUTER) == 40.5
    assert value(metrics, f"{name}_bucket", le="0.5", **ROUTER) == 1
    assert value(metrics, f"{name}_bucket", le="60.0", **ROUTER) == 2
    assert value(metrics, f"{name}_bucket", le="0.001", **ROUTER) == 0
    assert value(metrics, f"{name}_bucket", le="3600.0", **ROUTER) == 2
    assert total(read(metrics), "smg_router_request_errors_total") == 0


@pytest.mark.parametrize(
    ("changes", "error_type"),
    [
        ({"outcome": Outcome.REJECTED, "error": NoAvailableEngine("x")}, "no_available_workers"),
        ({"outcome": Outcome.CLIENT_GONE, "status": None}, "client_gone"),
        ({"outcome": Outcome.UPSTREAM_FAILED}, "incomplete"),
        ({"status": 404}, "engine_4xx"),
        ({"status": 500}, "engine_5xx"),
        ({"status": 503, "engine_id": None}, "router_5xx"),
    ],
)
def test_what_is_no_success_is_an_error_of_a_known_type(changes, error_type):
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    metrics.finished(record(**changes))
    assert value(metrics, "smg_router_request_errors_total", error_type=error_type, **ROUTER) == 1
    assert total(read(metrics), "smg_router_request_errors_total") == 1


def test_time_to_first_token_of_streams():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    metrics.first_byte(engine_of(fleet, "e1"), 0.2)
    kind = {name: ROUTER[name] for name in ("router_type", "backend_type", "connection_mode")}
    labels = {**kind, "model": "main-model"}
    assert value(metrics, "smg_router_ttft_seconds_sum", **labels) == 0.2


def test_each_engine_s_requests_in_flight_and_ever():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    selected = fleet.select(RouteRequest(pool="main"))
    assert isinstance(selected, Selected)
    metrics.selected(selected.engine, {})
    assert value(metrics, "smg_worker_requests_active", worker=E1) == 1
    assert value(metrics, "smg_worker_requests_total", worker=E1, model="main-model") == 1
    selected.guard.release()
    assert value(metrics, "smg_worker_requests_active", worker=E1) == 0
    assert value(metrics, "smg_worker_requests_total", worker=E1, model="main-model") == 1


def test_health_and_failed_attempts():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    engine = engine_of(fleet, "e1")
    assert value(metrics, "smg_worker_health", worker=E1) == 1
    fleet.set_health(engine, False)
    assert value(metrics, "smg_worker_health", worker=E1) == 0
    metrics.attempt_failed(engine, Failure.CONNECT_REFUSED)
    metrics.attempt_failed(engine, Failure.CONNECT_REFUSED)
    name = "steersman_upstream_failures_total"
    assert value(metrics, name, worker=E1, failure="connect_refused") == 2


def test_filtered_candidates_by_reason_and_unroutable_requests():
    fleet = fleet_of(row("e1"), row("e2", paused=True), row("e3", version="5"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    engine = engine_of(fleet, "e1")
    filtered = {Reason.PAUSED: 1, Reason.STALE: 2, Reason.UNSYNCED: 3}
    metrics.selected(engine, filtered)
    metrics.selected(engine, filtered)
    name = "smg_rl_candidates_filtered_total"
    assert value(metrics, name, reason="paused") == 2
    assert value(metrics, name, reason="stale") == 4
    assert value(metrics, name, reason="unsynced") == 6
    for always_there in ("asleep", "unversioned"):
        assert value(metrics, name, reason=always_there) == 0
    assert value(metrics, "smg_rl_requests_unroutable_total") == 0
    # The reasons of an error's body are texts.
    metrics.unroutable({"asleep": 4})
    assert value(metrics, "smg_rl_requests_unroutable_total") == 1
    assert value(metrics, name, reason="asleep") == 4


def test_mixed_answers():
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    metrics.finished(record())
    assert value(metrics, "smg_rl_mixed_version_total") == 0
    metrics.finished(record(mixed=True, streaming=True))
    assert value(metrics, "smg_rl_mixed_version_total") == 1
    assert value(metrics, "steersman_mixed_version_total", pool="main", streaming="true") == 1


def test_a_version_that_changes_under_requests_in_flight():
    fleet = fleet_of(row("e1"), row("e2"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    name = "smg_rl_version_change_with_inflight_total"
    guard = engine_of(fleet, "e1").load.take()
    fleet.apply(table(row("e1", version="8"), row("e2", version="8"), seq=2))
    assert value(metrics, name) == 1, "e2 had nothing in flight"
    fleet.observe(engine_of(fleet, "e1"), "9")
    assert value(metrics, name) == 2, "an engine's own report counts as well"
    fleet.set_health(engine_of(fleet, "e1"), False)
    fleet.apply(table(row("e1", version="9"), row("e2", version="8"), seq=3))
    assert value(metrics, name) == 2
    guard.release()
    fleet.apply(table(row("e1", version="10"), row("e2", version="8"), seq=4))
    assert value(metrics, name) == 2


def test_the_version_gauge_is_there_for_numbers_only():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    name = "smg_rl_worker_weight_version"
    for seq, (version, shown) in enumerate(
        [("7", 7), ("step-8", None), ("042", 42), (None, None), ("9", 9)], start=2
    ):
        fleet.apply(table(row("e1", version=version), seq=seq))
        assert value(metrics, name, worker=E1) == shown
    fleet.apply(table(seq=9))
    assert value(metrics, name, worker=E1) is None


def test_the_control_state_is_explicit_and_follows_the_table():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    name = "smg_rl_worker_control_state"
    assert value(metrics, name, worker=E1) == 0
    fleet.apply(table(row("e1", paused=True, gate=CLOSED), seq=2))
    assert value(metrics, name, worker=E1) == 1
    assert value(metrics, "steersman_worker_gate_open", worker=E1) == 0
    fleet.apply(table(row("e1", paused=True, released=("weights",)), seq=3))
    assert value(metrics, name, worker=E1) == 2
    fleet.apply(table(seq=4))
    assert value(metrics, name, worker=E1) is None


def test_what_waits_and_how_long_it_waited():
    clock = FakeClock()
    fleet = fleet_of(row("e1", gate=CLOSED), clock=clock)
    hold = HoldQueue(fleet, clock=clock)
    metrics = ProxyMetrics(fleet, rl_enabled=True, hold=hold)
    request = RouteRequest(pool="main", body_bytes=100)
    for _ in range(3):
        wait = fleet.select(request)
        assert isinstance(wait, Wait)
        hold.enter(request, wait.lane, on_release=lambda _: None, on_fail=lambda _: None)
    assert value(metrics, "steersman_hold_depth", pool="main") == 3
    assert value(metrics, "steersman_hold_bytes", pool="main") == 300
    assert value(metrics, "steersman_pool_eligible_engines", pool="main") == 0
    metrics.finished(record(held=3.0))
    metrics.finished(record(held=0.0))
    assert value(metrics, "steersman_hold_seconds_count", pool="main") == 1
    assert value(metrics, "steersman_hold_seconds_sum", pool="main") == 3


def test_the_table_and_its_source():
    fleet = new_fleet()
    status = TableStatus(source="t.yaml", age=12.0, failures=3)
    metrics = ProxyMetrics(fleet, rl_enabled=True, table=lambda: status, dropped=lambda: 5)
    assert value(metrics, "steersman_table_epoch", part="seq") is None
    fleet.apply(table(row("e1"), seq=4))
    assert value(metrics, "steersman_table_epoch", part="seq") == 4
    assert value(metrics, "steersman_table_epoch", part="term") == 0
    assert value(metrics, "steersman_table_age_seconds") == 12
    assert value(metrics, "steersman_table_reload_failures_total") == 3
    assert value(metrics, "steersman_log_records_dropped_total") == 5


def test_without_rl_there_is_no_series_of_it():
    fleet = fleet_of(row("e1"), rl_enabled=False)
    metrics = ProxyMetrics(fleet, rl_enabled=False)
    engine = engine_of(fleet, "e1")
    metrics.selected(engine, {Reason.UNHEALTHY: 1})
    metrics.unroutable({Reason.UNHEALTHY: 1})
    metrics.finished(record(mixed=True))
    fleet.observe(engine, "8")
    text = metrics.exposition()[0].decode()
    assert "smg_rl_" not in text
    assert "smg_router_requests_total" in text
    assert "smg_worker_health" in text


def test_rows_with_the_same_url_share_one_series():
    """Otherwise a scrape would carry it twice, and Prometheus would refuse the whole scrape."""
    pools = (pool_row("main"), pool_row("other"))
    url = "http://same.test:1"
    first = row("e1", url=url, version="7")
    second = row("e2", url=url, version="6", pool="other", paused=True)
    fleet = fleet_of(first, second, pools=pools)
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    guards = [engine.load.take() for engine in fleet.engines()]
    assert value(metrics, "smg_worker_requests_active", worker=url) == len(guards)
    assert value(metrics, "smg_rl_worker_control_state", worker=url) == 1
    assert value(metrics, "smg_rl_worker_weight_version", worker=url) == 6
    fleet.set_health(engine_of(fleet, "e2"), False)
    assert value(metrics, "smg_worker_health", worker=url) == 0


def test_row_50_series_are_bounded_and_counters_never_go_down():
    """smg#2093: thousands of clients' texts, and a hundred replacements of all engines."""
    fleet = new_fleet()
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    source = random.Random(50)
    before: Series = {}
    sizes = []
    for generation in range(100):
        names = [f"g{generation}-{i}" for i in range(4)]
        fleet.apply(table(*(row(name) for name in names), seq=generation + 1))
        engines = list(fleet.engines())
        guards = [engine.load.take() for engine in engines]
        for _ in range(50):
            engine = source.choice(engines)
            metrics.selected(engine, {Reason.STALE: 1})
            metrics.attempt_failed(engine, source.choice(list(Failure)))
            text = source.randbytes(8).hex()
            unknown = record(
                route="unknown",
                path=f"/x/{text}",
                request_id=text,
                pool=None,
                model=None,
                engine_id=None,
                engine_url=None,
                status=404,
            )
            metrics.finished(source.choice([unknown, record(request_id=text), record(held=1.0)]))
        series = read(metrics)
        workers = {dict(labels)["worker"] for _, labels in series if "worker" in dict(labels)}
        assert workers == {engine.url for engine in engines}
        for (name, labels), count in before.items():
            if name.endswith(("_total", "_count", "_bucket")) and "worker" not in dict(labels):
                assert series[name, labels] >= count
        before = series
        sizes.append(len(series))
        # Requests that end after their engine has left count nowhere and do no harm.
        gone = engines[0]
        fleet.apply(table(seq=1000 + generation))
        metrics.selected(gone, {})
        metrics.attempt_failed(gone, Failure.INCOMPLETE)
        for guard in guards:
            guard.release()
        assert not any("worker" in dict(labels) for _, labels in read(metrics))
    assert max(sizes[50:]) <= max(sizes[:50]) + 4 * len(Failure)
    assert value(metrics, "smg_rl_candidates_filtered_total", reason="stale") == 5000


def test_an_engine_that_comes_back_under_a_new_id_goes_on_counting():
    fleet = fleet_of(row("old", url=E1))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    metrics.selected(engine_of(fleet, "old"), {})
    fleet.apply(table(row("new", url=E1), seq=2))
    metrics.selected(engine_of(fleet, "new"), {})
    assert value(metrics, "smg_worker_requests_total", worker=E1, model="main-model") == 2


def test_a_renamed_model_gets_a_series_and_the_old_one_goes():
    fleet = fleet_of(row("e1"))
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    metrics.selected(engine_of(fleet, "e1"), {})
    fleet.apply(table(row("e1"), seq=2, pools=[pool_row("main", "renamed")]))
    metrics.selected(engine_of(fleet, "e1"), {})
    name = "smg_worker_requests_total"
    assert value(metrics, name, worker=E1, model="renamed") == 1
    assert value(metrics, name, worker=E1, model="main-model") is None


def test_model_names_are_bounded_even_if_the_table_renames_them_for_ever():
    fleet = new_fleet(settings=PoolSettings())
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    for number in range(MAX_MODELS + 50):
        metrics.finished(record(model=f"model-{number}"))
    models = {
        dict(labels)["model"]
        for name, labels in read(metrics)
        if name == "smg_router_requests_total"
    }
    assert len(models) == MAX_MODELS + 1
    assert "other" in models


def test_pools_that_left_take_their_series_along():
    fleet = fleet_of(row("e1", pool="a"), pools=[pool_row("a")])
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    metrics.finished(record(pool="a", held=1.0))
    assert value(metrics, "steersman_hold_seconds_count", pool="a") == 1
    fleet.apply(table(row("e2", pool="b"), seq=2, pools=[pool_row("b")]))
    metrics.finished(record(pool="a", held=1.0))
    assert value(metrics, "steersman_hold_seconds_count", pool="a") is None
    assert value(metrics, "steersman_hold_seconds_count", pool="other") == 1


def test_openmetrics_is_offered_to_those_who_ask():
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    text, content_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.rstrip().endswith(b"# EOF")


def end(fleet, engine: str, judgement: Judgement) -> None:
    selected = fleet.select(RouteRequest(pool="main", target=engine))
    assert isinstance(selected, Selected)
    selected.guard.judge(judgement)
    selected.guard.release()


def test_the_breaker_s_state_transitions_and_outcomes_under_smg_s_names():
    clock = FakeClock()
    fleet = fleet_of(row("e1"), clock=clock)
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    name = "smg_worker_cb"
    assert value(metrics, f"{name}_state", worker=E1) == 0
    moved = {"worker": E1, "from": "closed", "to": "open"}
    assert value(metrics, f"{name}_transitions_total", **moved) == 0
    end(fleet, "e1", Judgement.SUCCESS)
    assert value(metrics, f"{name}_consecutive_successes", worker=E1) == 1
    end(fleet, "e1", Judgement.NEUTRAL)
    for _ in range(5):
        end(fleet, "e1", Judgement.FAILURE)

    assert value(metrics, f"{name}_state", worker=E1) == 1
    assert value(metrics, f"{name}_transitions_total", **moved) == 1
    assert value(metrics, f"{name}_consecutive_failures", worker=E1) == 5
    assert value(metrics, f"{name}_consecutive_successes", worker=E1) == 0
    for outcome, count in (("success", 1), ("failure", 5), ("neutral", 1)):
        assert value(metrics, f"{name}_outcomes_total", worker=E1, outcome=outcome) == count

    clock.advance(30)
    assert value(metrics, f"{name}_state", worker=E1) == 2, "by time alone"
    end(fleet, "e1", Judgement.SUCCESS)
    assert value(metrics, f"{name}_state", worker=E1) == 0
    for before, after in (("open", "half_open"), ("half_open", "closed")):
        labels = {"worker": E1, "from": before, "to": after}
        assert value(metrics, f"{name}_transitions_total", **labels) == 1


def test_of_rows_that_share_a_url_the_worse_breaker_is_shown():
    twin = msgspec.structs.replace(row("e2"), url=E1)
    fleet = fleet_of(row("e1"), twin)
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    for _ in range(5):
        end(fleet, "e2", Judgement.FAILURE)
    end(fleet, "e1", Judgement.FAILURE)
    assert value(metrics, "smg_worker_cb_state", worker=E1) == 1
    assert value(metrics, "smg_worker_cb_outcomes_total", worker=E1, outcome="failure") == 6


def test_a_pool_without_breaker_has_no_series_of_it():
    off = PoolSettings(breaker=BreakerSettings(enabled=False))
    fleet = fleet_of(row("e1"), settings=off)
    metrics = ProxyMetrics(fleet, rl_enabled=True)
    end(fleet, "e1", Judgement.FAILURE)
    assert not [name for name, _ in read(metrics) if name.startswith("smg_worker_cb")]


def test_malformed_requests_are_counted_by_what_is_wrong():
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    name = "steersman_malformed_requests_total"
    for error in (
        InvalidRequest("x", fault=Fault.HOST),
        HeadTooLarge("x", fault=Fault.SIZE),
        InvalidRequest("that is HTTP, and still not understood"),
    ):
        metrics.finished(record(outcome=Outcome.REJECTED, error=error, status=error.status))
    # All of them from the start, so that `increase()` sees the first one.
    counted = {fault: value(metrics, name, fault=fault.value) for fault in Fault}
    assert counted == dict.fromkeys(Fault, 0) | {Fault.HOST: 1, Fault.SIZE: 1}


def test_stale_requests_are_counted():
    metrics = ProxyMetrics(fleet_of(row("e1")), rl_enabled=True)
    assert value(metrics, "steersman_stale_requests_total") == 0
    metrics.finished(record(outcome=Outcome.UPSTREAM_FAILED, error=RequestStale("x"), status=504))
    assert value(metrics, "steersman_stale_requests_total") == 1
