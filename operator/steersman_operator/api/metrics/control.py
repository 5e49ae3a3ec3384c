"""The series of the control socket, made from its statistics when a scrape comes."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from steersman.control import RejectCode
from steersman_operator.api.metrics.tally import PREFIX
from steersman_operator.control.stats import ControlStats

BY_PROXY = "by_proxy_"
"""What the statistics put before the code of a refusal that a proxy has sent."""


def control_metrics(stats: ControlStats) -> Iterator[Metric]:
    """All series."""
    for name, text, value in (
        ("tables", "Different tables that were sent.", stats.tables),
        ("snapshots", "Tables that were sent; each proxy counts.", stats.snapshots),
        (
            "resends",
            "Of those, the ones sent again, because the answer was lost or another table was in force.",
            stats.resends,
        ),
        (
            "unsendable",
            "Tables that were sent to nobody, because no proxy could have read them.",
            stats.unsendable,
        ),
        ("reconnects", "Hellos of proxies that had said one before.", stats.reconnects),
        ("nacks", "Tables that a proxy could not use.", stats.nacks),
        ("bad_frames", "Messages that were none.", stats.bad_frames),
        ("lost", "Sessions that ended or fell silent.", stats.lost),
    ):
        counter = CounterMetricFamily(f"{PREFIX}control_{name}", text)
        counter.add_metric((), value)
        yield counter
    yield _rejects(stats)
    sessions = GaugeMetricFamily(
        PREFIX + "control_sessions", "Sessions of proxies, by how they are.", labels=("state",)
    )
    states = [_state(one.lost, one.leaving) for one in stats.sessions]
    for state in ("live", "leaving", "silent"):
        sessions.add_metric((state,), states.count(state))
    yield sessions
    late = GaugeMetricFamily(
        PREFIX + "control_loop_lag_seconds",
        "How late the event loop of a proxy was at worst, as the proxies said last.",
    )
    late.add_metric((), max((one.loop_lag for one in stats.sessions), default=0.0))
    yield late


def _rejects(stats: ControlStats) -> CounterMetricFamily:
    family = CounterMetricFamily(
        PREFIX + "control_rejects",
        "Refusals, by who refused the other and why.",
        labels=("by", "code"),
    )
    counts = {(by, code.value): 0 for by in ("operator", "proxy") for code in RejectCode}
    for text, count in stats.rejects.items():
        by = "proxy" if text.startswith(BY_PROXY) else "operator"
        counts[by, text.removeprefix(BY_PROXY)] = count
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _state(lost: bool, leaving: bool) -> str:
    if lost:
        return "silent"
    return "leaving" if leaving else "live"
