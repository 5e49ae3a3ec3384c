"""The series of the breakers, under SMG's names, made from their state when a scrape comes.

Pools whose breaker is off have none. Rows that share a base URL share one series: counts add up, of
the states the one that lets least through is shown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from steersman_proxy.load.breaker import Breaker, BreakerState
from steersman_proxy.routing.engines import Engine

_STATES = {BreakerState.CLOSED: 0.0, BreakerState.OPEN: 1.0, BreakerState.HALF_OPEN: 2.0}
_SEVERITY = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


def breaker_metrics(by_url: Mapping[str, Sequence[Engine]]) -> Iterator[Metric]:
    """All series of the engines of the table, grouped by their URL."""
    state = GaugeMetricFamily(
        "smg_worker_cb_state", "Breaker: 0 closed, 1 open, 2 half-open.", labels=("worker",)
    )
    transitions = CounterMetricFamily(
        "smg_worker_cb_transitions",
        "Changes of a breaker's state.",
        labels=("worker", "from", "to"),
    )
    outcomes = CounterMetricFamily(
        "smg_worker_cb_outcomes",
        "Requests that ended, by what they say of their engine: success, failure or neutral.",
        labels=("worker", "outcome"),
    )
    failures = GaugeMetricFamily(
        "smg_worker_cb_consecutive_failures", "Failures in a row.", labels=("worker",)
    )
    successes = GaugeMetricFamily(
        "smg_worker_cb_consecutive_successes", "Successes in a row.", labels=("worker",)
    )
    for url, engines in by_url.items():
        breakers = [engine.breaker for engine in engines if engine.breaker.settings.enabled]
        if not breakers:
            continue
        worst = max((breaker.state for breaker in breakers), key=_SEVERITY.index)
        state.add_metric((url,), _STATES[worst])
        for (before, after), count in _transitions(breakers).items():
            transitions.add_metric((url, before.value, after.value), count)
        for outcome in breakers[0].outcomes:
            total = sum(breaker.outcomes[outcome] for breaker in breakers)
            outcomes.add_metric((url, outcome.value), total)
        failures.add_metric((url,), max(breaker.failures for breaker in breakers))
        successes.add_metric((url,), min(breaker.successes for breaker in breakers))
    yield from (state, transitions, outcomes, failures, successes)


def _transitions(breakers: Sequence[Breaker]) -> Counter[tuple[BreakerState, BreakerState]]:
    """Also those that have not happened yet, so that `increase()` sees the first one."""
    total: Counter[tuple[BreakerState, BreakerState]] = Counter(dict.fromkeys(_POSSIBLE, 0))
    for breaker in breakers:
        total.update(breaker.transitions)
    return total


_POSSIBLE = (
    (BreakerState.CLOSED, BreakerState.OPEN),
    (BreakerState.OPEN, BreakerState.HALF_OPEN),
    (BreakerState.HALF_OPEN, BreakerState.OPEN),
    (BreakerState.HALF_OPEN, BreakerState.CLOSED),
)
"""And ``open`` to ``closed``, when an engine starts anew or its pool's breaker is switched off."""
