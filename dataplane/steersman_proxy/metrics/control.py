"""The series of the control socket, made from its status when a scrape comes."""

from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from steersman_proxy.control.operator_link import LinkState
from steersman_proxy.control.status import ControlStatus


def control_metrics(status: ControlStatus) -> Iterator[Metric]:
    """All series; what is not known yet has none."""
    fresh = GaugeMetricFamily(
        "steersman_control_fresh", "1 if the leading operator is in contact, 0 if it is not."
    )
    fresh.add_metric((), float(status.fresh))
    yield fresh
    if status.silent is not None:
        silent = GaugeMetricFamily(
            "steersman_control_silent_seconds",
            "Since the leading operator was last proven to have heard this proxy.",
        )
        silent.add_metric((), status.silent)
        yield silent
    term = GaugeMetricFamily(
        "steersman_control_term",
        "The latest term that was ever seen; the operator that leads it is followed.",
    )
    term.add_metric((), status.term)
    yield term
    links = GaugeMetricFamily(
        "steersman_control_operators",
        "Addresses of operators, by how the connection stands; one is joined.",
        labels=("state",),
    )
    states = [link.state for link in status.links]
    for state in LinkState:
        links.add_metric((state.value,), states.count(state.value))
    yield links
    if status.leader_epoch is not None:
        epoch = GaugeMetricFamily(
            "steersman_control_epoch",
            "Epoch of the leading operator's newest table, as it said last.",
            labels=("part",),
        )
        epoch.add_metric(("term",), status.leader_epoch.term)
        epoch.add_metric(("seq",), status.leader_epoch.seq)
        yield epoch
    for name, text, value in (
        ("reconnects", "Sessions with an operator after the first.", status.reconnects),
        ("nacks", "Tables of an operator that could not be used.", status.nacks),
        ("bad_frames", "Messages of an operator that were not understood.", status.bad_frames),
        ("tables_applied", "Tables of an operator that were put in force.", status.applied),
    ):
        counter = CounterMetricFamily(f"steersman_control_{name}", text)
        counter.add_metric((), value)
        yield counter
    yield SummaryMetricFamily(
        "steersman_control_apply_seconds",
        "Time in which a table was put in force, and nothing else was done.",
        count_value=status.applied,
        sum_value=status.apply_seconds,
    )
