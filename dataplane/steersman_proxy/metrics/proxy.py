"""What a proxy counts, and how the counts are read.

The methods that the exchange calls touch only series that were looked up before: a request that
goes well costs two look-ups and a few additions (:mod:`steersman_proxy.metrics.tallies`). Everything
that is a state rather than an event is read at scrape time (:mod:`steersman_proxy.metrics.state`).
"""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from steersman.errors import InvalidRequest, RequestStale
from steersman_proxy.control.status import ControlStatus
from steersman_proxy.exchange.messages import ExchangeRecord, Failure, Outcome
from steersman_proxy.exchange.observer import Served
from steersman_proxy.metrics.instruments import (
    KIND_VALUES,
    RlInstruments,
    RouterInstruments,
    WorkerInstruments,
)
from steersman_proxy.metrics.labels import OTHER, ModelLabels, endpoint_label, error_label
from steersman_proxy.metrics.state import StateCollector
from steersman_proxy.metrics.table import TableStatus
from steersman_proxy.metrics.tallies import CounterSeries, HistogramSeries
from steersman_proxy.routing.eligibility import Reason
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue

_OK = Outcome.OK
"""Looked up once: Python 3.11 calls a function for each access to a member."""

_MAX_ROUTES = 10_000
"""Kinds of requests whose series is remembered; it is looked up by labels for the others."""


class _Worker:
    """The series of one engine, and the version that was last seen of it."""

    __slots__ = ("failures", "model", "requests", "ttft", "url", "version")

    def __init__(
        self, url: str, *, model: str, version: str | None, requests: CounterSeries
    ) -> None:
        self.url = url
        self.model = model
        self.version = version
        self.requests = requests
        self.ttft: HistogramSeries | None = None
        """Its model's; ``None`` before its first streamed answer."""
        self.failures: dict[Failure, CounterSeries] = {}


class ProxyMetrics:
    """The metrics of one proxy process; an observer of its exchanges and of its fleet.

    ``rl_enabled`` off leaves all ``smg_rl_*`` families out. ``hold`` and ``table`` add the state of
    the hold queue and of the table's source, ``dropped`` the number of log records that were lost,
    ``control`` and ``cuts`` how an operator is followed and how many requests it had ended.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        rl_enabled: bool,
        hold: HoldQueue | None = None,
        table: Callable[[], TableStatus] | None = None,
        dropped: Callable[[], int] | None = None,
        control: Callable[[], ControlStatus] | None = None,
        cuts: Callable[[], int] | None = None,
    ) -> None:
        self._fleet = fleet
        self.registry = CollectorRegistry()
        self._router = RouterInstruments(self.registry)
        self._workers = WorkerInstruments(self.registry)
        self._rl = RlInstruments(self.registry) if rl_enabled else None
        self._models = ModelLabels()
        self._known: dict[Engine, _Worker] = {}
        self._routes: dict[tuple[str, str | None, bool], HistogramSeries] = {}
        # Reasons are texts, so that what an error body counts can be looked up as well.
        self._filtered: dict[str, CounterSeries] = (
            {} if self._rl is None else {r.value: self._rl.filtered.series(r.value) for r in Reason}
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(
            StateCollector(
                fleet,
                rl_enabled=rl_enabled,
                hold=hold,
                table=table,
                dropped=dropped,
                control=control,
                cuts=cuts,
            )
        )
        fleet.on_change.append(self._fleet_changed)
        self._fleet_changed()

    # --- what the exchange tells ------------------------------------------------------------------

    def selected(self, engine: Engine, filtered: Mapping[Reason, int]) -> None:
        """An engine was chosen; the others were out for these reasons."""
        worker = self._known.get(engine)
        if worker is not None:
            worker.requests.value += 1
        if filtered:
            self._count_filtered(filtered)

    def unroutable(self, filtered: Mapping[Reason, int]) -> None:
        """Nobody could be chosen."""
        if self._rl is not None:
            self._rl.unroutable.series().value += 1
            self._count_filtered(filtered)

    def first_byte(self, engine: Engine, seconds: float) -> None:
        """The first byte of a streamed answer came."""
        worker = self._known.get(engine)
        series = None if worker is None else worker.ttft
        if series is None:
            model = self._model_of(engine) if worker is None else worker.model
            series = self._router.ttft.series(*KIND_VALUES, model)
            if worker is not None:
                worker.ttft = series
        series.observe(seconds)

    def attempt_failed(self, engine: Engine, failure: Failure) -> None:
        """An attempt at an engine failed, whether or not another one followed."""
        worker = self._known.get(engine)
        if worker is None:
            return  # It left the table meanwhile, and its series with it.
        series = worker.failures.get(failure)
        if series is None:
            series = self._workers.failures.series(worker.url, failure.value)
            worker.failures[failure] = series
        series.value += 1

    def finished(self, record: ExchangeRecord) -> None:
        """An exchange is over."""
        key = (record.route, record.model, record.streaming)
        duration = self._routes.get(key)
        if duration is None:
            duration = self._router.duration.series(*self._router_labels(record))
            if len(self._routes) < _MAX_ROUTES:
                self._routes[key] = duration
        duration.observe(record.duration)
        if record.outcome is not _OK or record.status != 200 or record.error is not None:
            self._count_errors(record)
        if record.held > 0:
            self._router.hold.series(self._pool_label(record.pool)).observe(record.held)
        if record.mixed and self._rl is not None:
            self._rl.mixed.series().value += 1
            pool = self._pool_label(record.pool)
            self._rl.mixed_by_pool.series(pool, _flag(record.streaming)).value += 1

    def served(
        self, request: Served, now: float, *, route: str, model: str | None, duration: float
    ) -> None:
        """An exchange is over that had nothing special."""
        series = self._routes.get((route, model, False))
        if series is None:
            self.finished(request.record(now))
        else:
            series.observe(duration)

    def _count_errors(self, record: ExchangeRecord) -> None:
        error = error_label(record)
        if error is not None:
            self._router.errors.series(*self._router_labels(record), error).value += 1
        if isinstance(record.error, RequestStale):
            self._router.stale.series().value += 1
        elif isinstance(record.error, InvalidRequest) and record.error.fault is not None:
            self._router.malformed.series(record.error.fault.value).value += 1

    def _count_filtered(self, filtered: Mapping[Reason, int]) -> None:
        for reason, count in filtered.items():
            series = self._filtered.get(reason)
            if series is not None:
                series.value += count

    # --- what the fleet tells ---------------------------------------------------------------------

    def _fleet_changed(self) -> None:
        """After a table, an engine's report or a change of health."""
        known = {}
        for engine in self._fleet.engines():
            worker, model = self._known.get(engine), self._model_of(engine)
            if worker is not None and worker.version != engine.version:
                worker.version = engine.version
                if self._rl is not None and engine.load.requests > 0:
                    self._rl.changed_in_flight.series().value += 1
            if worker is None or worker.model != model:
                requests = self._workers.requests.series(engine.url, model)
                worker = _Worker(engine.url, model=model, version=engine.version, requests=requests)
            known[engine] = worker
        gone = any(known.get(engine) is not worker for engine, worker in self._known.items())
        self._known = known
        if gone:
            self._forget_gone()

    def _forget_gone(self) -> None:
        """Take out the series of engines that left the table.

        A series belongs to a URL: an engine that came back under a new id goes on counting.
        """
        urls = {worker.url for worker in self._known.values()}
        pairs = {(worker.url, worker.model) for worker in self._known.values()}
        self._workers.requests.keep(lambda labels: labels in pairs)
        self._workers.failures.keep(lambda labels: labels[0] in urls)
        view = self._fleet.view
        pools = {OTHER} if view is None else {OTHER, *view.pools}
        self._router.hold.keep(lambda labels: labels[0] in pools)

    # --- labels -----------------------------------------------------------------------------------

    def _router_labels(self, record: ExchangeRecord) -> tuple[str, ...]:
        model = self._models.of(record.model)
        return (*KIND_VALUES, model, endpoint_label(record.route), _flag(record.streaming))

    def _model_of(self, engine: Engine) -> str:
        pool = self._fleet.pool(engine.row.pool)
        return self._models.of(next(iter(pool.row.models), None) if pool is not None else None)

    def _pool_label(self, pool: str | None) -> str:
        return pool if pool is not None and self._fleet.pool(pool) is not None else OTHER

    # --- reading ----------------------------------------------------------------------------------

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All series as text and its content type, in the format that ``Accept`` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _flag(value: bool) -> str:
    return "true" if value else "false"
