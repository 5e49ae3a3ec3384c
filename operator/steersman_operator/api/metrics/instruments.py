"""The histograms: every one that is written to, defined once."""

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics

from steersman_operator.api.metrics.tally import PREFIX

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds for what proxies and engines are asked to do at once."""

SLOW = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
"""The same for what waits for requests in flight, which may run for an hour."""


class Instruments:
    """What is measured rather than counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A second series per histogram that says when it began. The library has this switch for the
        # whole process only.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.operation = Histogram(
            PREFIX + "operation_seconds",
            "From the closing of a gate until the engine was what it was to become.",
            ("kind",),
            registry=registry,
            buckets=SLOW,
        )
        self.phase = Histogram(
            PREFIX + "phase_seconds",
            "How long engines stayed in a phase of an operation; a phase that was passed within one "
            "event is not counted.",
            ("phase",),
            registry=registry,
            buckets=SLOW,
        )
        self.ack = Histogram(
            PREFIX + "ack_seconds",
            "From publishing a table until a proxy acknowledged it; each proxy counts.",
            registry=registry,
            buckets=FAST,
        )
        self.call = Histogram(
            PREFIX + "engine_call_seconds",
            "How long calls to engines took, whatever their outcome.",
            ("runtime", "kind"),
            registry=registry,
            buckets=FAST,
        )
