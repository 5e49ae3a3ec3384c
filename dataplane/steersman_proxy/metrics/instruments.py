"""The counters and histograms of the traffic: every family that is written to, defined once."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
)

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
        # A second series per counter that says when it began: nobody's dashboard reads it, and it
        # doubles what a scrape carries. The library has this switch for the whole process only.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "smg_router_requests",
            "Requests that ended, whatever their outcome.",
            ROUTER_LABELS,
            registry=registry,
        )
        self.errors = Counter(
            "smg_router_request_errors",
            "Requests that ended badly: the code of an error of ours, engine_4xx, engine_5xx, "
            "router_4xx, router_5xx, incomplete or client_gone.",
            (*ROUTER_LABELS, "error_type"),
            registry=registry,
        )
        self.duration = Histogram(
            "smg_router_request_duration_seconds",
            "From the head of a request to the end of its answer, time in the hold included.",
            ROUTER_LABELS,
            registry=registry,
            buckets=BUCKETS,
        )
        self.ttft = Histogram(
            "smg_router_ttft_seconds",
            "From the head of a request to the first byte of its streamed answer.",
            (*_KIND, "model"),
            registry=registry,
            buckets=BUCKETS,
        )
        self.stale = Counter(
            "steersman_stale_requests",
            "Requests that were ended because they were in flight for longer than timeouts.stale.",
            registry=registry,
        )
        self.hold = Histogram(
            "steersman_hold_seconds",
            "How long requests waited in the proxy; those that never waited are not counted.",
            ("pool",),
            registry=registry,
            buckets=BUCKETS,
        )


class WorkerInstruments:
    """What is counted of engines; a series goes when its engine leaves the table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "smg_worker_requests",
            "Times an engine was chosen for a request.",
            ("worker", "model"),
            registry=registry,
        )
        self.failures = Counter(
            "steersman_upstream_failures",
            "Attempts at an engine that failed, by how.",
            ("worker", "failure"),
            registry=registry,
        )


class RlInstruments:
    """What is counted of versions and control states; absent when RL is off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.filtered = Counter(
            "smg_rl_candidates_filtered",
            "Engines left out of a selection, by reason; each selection counts them anew.",
            ("reason",),
            registry=registry,
        )
        self.unroutable = Counter(
            "smg_rl_requests_unroutable",
            "Selections that found no engine although the pool has some.",
            registry=registry,
        )
        self.mixed = Counter(
            "smg_rl_mixed_version",
            "Answers that more than one weight version made.",
            registry=registry,
        )
        self.mixed_by_pool = Counter(
            "steersman_mixed_version",
            "Answers that more than one weight version made, by pool and kind of answer.",
            ("pool", "streaming"),
            registry=registry,
        )
        self.changed_in_flight = Counter(
            "smg_rl_version_change_with_inflight",
            "Times an engine's version changed while requests to it were in flight.",
            registry=registry,
        )
