"""The gauges: read from the fleet when a scrape comes, so that they are never stale.

An engine that left the table has no gauge, a paused one has an explicit value. Rows that share a
base URL share one series: requests add up, of the states the worst is shown.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steersman import __version__
from steersman.engine import Control, Role
from steersman.versions import numeric
from steersman_proxy.control.status import ControlStatus
from steersman_proxy.metrics.breakers import breaker_metrics
from steersman_proxy.metrics.control import control_metrics
from steersman_proxy.metrics.table import TableStatus
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue

_CONTROL = {Control.ACTIVE: 0.0, Control.PAUSED: 1.0, Control.ASLEEP: 2.0}


class StateCollector(Collector):
    """Makes the gauges of a fleet, of its hold queue and of its table."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        rl_enabled: bool,
        hold: HoldQueue | None,
        table: Callable[[], TableStatus] | None,
        dropped: Callable[[], int] | None,
        control: Callable[[], ControlStatus] | None,
        cuts: Callable[[], int] | None,
    ) -> None:
        self._fleet = fleet
        self._rl_enabled = rl_enabled
        self._hold = hold
        self._table = table
        self._dropped = dropped
        self._control = control
        self._cuts = cuts

    def collect(self) -> Iterator[Metric]:
        """All gauges as they are now."""
        self._fleet.catch_up()
        build = GaugeMetricFamily("steersman_build_info", "The release.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build
        by_url: dict[str, list[Engine]] = {}
        for engine in self._fleet.engines():
            by_url.setdefault(engine.url, []).append(engine)
        yield from self._workers(by_url)
        yield from breaker_metrics(by_url)
        if self._rl_enabled:
            yield from self._rl(by_url)
        yield from self._pools()
        yield from self._tables()
        if self._control is not None:
            yield from control_metrics(self._control())
        if self._cuts is not None:
            cuts = CounterMetricFamily(
                "steersman_requests_cut", "Requests that were ended because the operator said so."
            )
            cuts.add_metric((), self._cuts())
            yield cuts
        if self._dropped is not None:
            dropped = CounterMetricFamily(
                "steersman_log_records_dropped", "Log records that nobody took in time."
            )
            dropped.add_metric((), self._dropped())
            yield dropped

    def _workers(self, by_url: dict[str, list[Engine]]) -> Iterator[Metric]:
        active = _per_worker("smg_worker_requests_active", "Requests in flight from this proxy.")
        health = _per_worker("smg_worker_health", "1 if requests may go there, 0 if it is out.")
        for url, engines in by_url.items():
            active.add_metric((url,), sum(engine.load.requests for engine in engines))
            health.add_metric((url,), float(all(engine.healthy for engine in engines)))
        yield active
        yield health

    def _rl(self, by_url: dict[str, list[Engine]]) -> Iterator[Metric]:
        version = _per_worker(
            "smg_rl_worker_weight_version", "Weight version; absent unless it is a number."
        )
        control = _per_worker(
            "smg_rl_worker_control_state", "0 active, 1 paused, 2 asleep, by the table."
        )
        gate = _per_worker("steersman_worker_gate_open", "1 if new requests are admitted.")
        for url, engines in by_url.items():
            numbers = _numbers(engine.version for engine in engines)
            if numbers:
                # A float holds every integer up to 2**53; larger versions are shown rounded.
                version.add_metric((url,), float(min(numbers)))
            control.add_metric((url,), max(_CONTROL[engine.row.control] for engine in engines))
            gate.add_metric((url,), float(all(engine.row.gate.open for engine in engines)))
        yield version
        yield control
        yield gate

    def _pools(self) -> Iterator[Metric]:
        view = self._fleet.view
        eligible = _per_pool(
            "steersman_pool_eligible_engines", "Engines that pass the pool's own version policy."
        )
        depth = _per_pool("steersman_hold_depth", "Requests that wait in this proxy.")
        size = _per_pool("steersman_hold_bytes", "Bytes of the bodies of waiting requests.")
        for name, pool in ({} if view is None else view.pools).items():
            policy = pool.settings.version_policy
            eligible.add_metric((name,), len(pool.eligible(Role.PLAIN, policy).engines))
            if self._hold is not None:
                depth.add_metric((name,), self._hold.depth(name))
                size.add_metric((name,), self._hold.bytes(name))
        yield eligible
        if self._hold is not None:
            yield depth
            yield size

    def _tables(self) -> Iterator[Metric]:
        view = self._fleet.view
        if view is not None:
            epoch = GaugeMetricFamily(
                "steersman_table_epoch", "Epoch of the table in force.", labels=("part",)
            )
            epoch.add_metric(("term",), view.epoch.term)
            epoch.add_metric(("seq",), view.epoch.seq)
            yield epoch
        if self._table is None:
            return
        status = self._table()
        failures = CounterMetricFamily(
            "steersman_table_reload_failures", "Tables that could not be used."
        )
        failures.add_metric((), status.failures)
        yield failures
        if status.age is not None:
            age = GaugeMetricFamily(
                "steersman_table_age_seconds", "Since the table in force was read."
            )
            age.add_metric((), status.age)
            yield age


def _per_worker(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=("worker",))


def _per_pool(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=("pool",))


def _numbers(versions: Iterable[str | None]) -> list[int]:
    return [
        number
        for version in versions
        if version is not None and (number := numeric(version)) is not None
    ]
