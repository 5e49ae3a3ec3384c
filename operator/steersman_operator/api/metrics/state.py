"""The gauges of the fleet: read from the state when a scrape comes, so that they are never stale."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from steersman import __version__
from steersman.engine import Control
from steersman_operator.api import standing as words
from steersman_operator.api.metrics.operations import STAYS
from steersman_operator.api.metrics.tally import PREFIX
from steersman_operator.api.standing import standing
from steersman_operator.fleet.state import State, Timing

CONTROLS = (*(control.value for control in Control), "unknown")

PHASES = (
    *(phase.value for phase in STAYS),
    words.SETTLED,
    words.PENDING,
    words.GIVEN_UP,
    words.EXTERNAL,
    words.UNREACHABLE,
    words.UNKNOWN,
    words.LEAVING,
)
"""Where an engine may stand, in the words of ``steersman get``."""


def state_metrics(state: State, *, now: float) -> Iterator[Metric]:
    """All gauges as they are now."""
    build = GaugeMetricFamily("steersman_build_info", "The release.", labels=("version",))
    build.add_metric((__version__,), 1)
    yield build
    yield _gauge("leading", "1 if this operator leads.", float(state.leading))
    yield _gauge(
        "published", "1 if it has published a table since it leads.", float(state.published)
    )
    epoch = GaugeMetricFamily(
        PREFIX + "epoch", "Epoch of the newest table that it published.", labels=("part",)
    )
    epoch.add_metric(("term",), state.epoch.term)
    epoch.add_metric(("seq",), state.epoch.seq)
    yield epoch
    yield _gauge(
        "brake_active",
        "1 while the removal of most of the engines is held back.",
        float(state.brake_until is not None),
    )
    yield from _engines(state, now=now)


def _engines(state: State, *, now: float) -> Iterator[Metric]:
    controls: Counter[tuple[str, str]] = Counter()
    phases: Counter[tuple[str, str]] = Counter()
    opened: Counter[str] = Counter()
    timing = Timing()  # for the words alone; the phase does not depend on it
    for engine in state.engines.values():
        pool, control = state.pools[engine.pool], engine.facts.control
        controls[pool.name, "unknown" if control is None else control.value] += 1
        stands = standing(engine, pool, state=state, timing=timing, now=now)
        phases[pool.name, stands.phase] += 1
        opened[pool.name] += engine.gate.open
    family = GaugeMetricFamily(
        PREFIX + "engines", "Engines by what they are, as seen.", labels=("pool", "control")
    )
    for pool_name in state.pools:
        for word in CONTROLS:
            family.add_metric((pool_name, word), controls[pool_name, word])
    yield family
    family = GaugeMetricFamily(
        PREFIX + "engines_by_phase",
        "Engines by where they stand, in the words of `steersman get`.",
        labels=("pool", "phase"),
    )
    for pool_name in state.pools:
        for word in PHASES:
            family.add_metric((pool_name, word), phases[pool_name, word])
    yield family
    family = GaugeMetricFamily(
        PREFIX + "gates_open", "Engines that admit new requests.", labels=("pool",)
    )
    for pool_name in state.pools:
        family.add_metric((pool_name,), opened[pool_name])
    yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(PREFIX + name, text)
    gauge.add_metric((), value)
    return gauge
