"""The counters and histograms of the traffic: every family that is written to, defined once."""

from collections.abc import Iterable

from prometheus_client.registry import Collector, CollectorRegistry

from steersman.errors import Fault
from steersman_proxy.metrics.tallies import CounterFamily, HistogramFamily

BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
"""Upper bounds in seconds, as wide as a rollout's requests: from a cache hit to an hour."""

_KIND = ("router_type", "backend_type", "connection_mode")
KIND_VALUES = ("http", "regular", "http")
"""What this proxy is in SMG's terms."""

ROUTER_LABELS = (*_KIND, "model", "endpoint", "streaming")


class RouterInstruments:
    """What is counted of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = HistogramFamily(
            "smg_router_request_duration_seconds",
            "From the head of a request to the end of its answer, time in the hold included.",
            ROUTER_LABELS,
            buckets=BUCKETS,
        )
        requests = self.duration.counter(
            "smg_router_requests", "Requests that ended, whatever their outcome."
        )
        self.errors = CounterFamily(
            "smg_router_request_errors",
            "Requests that ended badly: the code of an error of ours, engine_4xx, engine_5xx, "
            "router_4xx, router_5xx, incomplete or client_gone.",
            (*ROUTER_LABELS, "error_type"),
        )
        self.ttft = HistogramFamily(
            "smg_router_ttft_seconds",
            "From the head of a request to the first byte of its streamed answer.",
            (*_KIND, "model"),
            buckets=BUCKETS,
        )
        self.stale = CounterFamily(
            "steersman_stale_requests",
            "Requests that were ended because they were in flight for longer than timeouts.stale.",
        )
        self.malformed = CounterFamily(
            "steersman_malformed_requests",
            "Requests that were refused because they are not HTTP/1.1 or have two readings, by what "
            "is wrong with them.",
            ("fault",),
        )
        for fault in Fault:
            self.malformed.series(fault.value)
        self.hold = HistogramFamily(
            "steersman_hold_seconds",
            "How long requests waited in the proxy; those that never waited are not counted.",
            ("pool",),
            buckets=BUCKETS,
        )
        _register(
            registry,
            (
                *(requests, self.errors, self.duration, self.ttft),
                *(self.stale, self.malformed, self.hold),
            ),
        )


class WorkerInstruments:
    """What is counted of engines; a series goes when its engine leaves the table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = CounterFamily(
            "smg_worker_requests",
            "Times an engine was chosen for a request.",
            ("worker", "model"),
        )
        self.failures = CounterFamily(
            "steersman_upstream_failures",
            "Attempts at an engine that failed, by how.",
            ("worker", "failure"),
        )
        _register(registry, (self.requests, self.failures))


class RlInstruments:
    """What is counted of versions and control states; absent when RL is off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.filtered = CounterFamily(
            "smg_rl_candidates_filtered",
            "Engines left out of a selection, by reason; each selection counts them anew.",
            ("reason",),
        )
        self.unroutable = CounterFamily(
            "smg_rl_requests_unroutable",
            "Selections that found no engine although the pool has some.",
        )
        self.mixed = CounterFamily(
            "smg_rl_mixed_version",
            "Answers that more than one weight version made.",
        )
        self.mixed_by_pool = CounterFamily(
            "steersman_mixed_version",
            "Answers that more than one weight version made, by pool and kind of answer.",
            ("pool", "streaming"),
        )
        self.changed_in_flight = CounterFamily(
            "smg_rl_version_change_with_inflight",
            "Times an engine's version changed while requests to it were in flight.",
        )
        _register(
            registry,
            (
                *(self.filtered, self.unroutable, self.mixed),
                *(self.mixed_by_pool, self.changed_in_flight),
            ),
        )


def _register(registry: CollectorRegistry, families: Iterable[Collector]) -> None:
    """Put families into every scrape, in this order."""
    for family in families:
        registry.register(family)
