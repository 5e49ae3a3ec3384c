"""One proxy process, put together: what is made from the settings, in which order it starts and ends.

Everything runs on one event loop. Nothing is global, so a test may run several proxies in one loop.
"""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import select
import socket
from collections.abc import Callable
from typing import Self

from aiohttp import web

from steersman.clock import MonotonicClock
from steersman.errors import DocumentError, Draining
from steersman.table import Table
from steersman_proxy.admin.app import admin_app
from steersman_proxy.admin.status import StatusPage
from steersman_proxy.config.load import pools_without_row
from steersman_proxy.control import ClientSecurity, ControlClient, ControlStatus
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.messages import ExchangeRecord
from steersman_proxy.exchange.observer import Served
from steersman_proxy.health.prober import Prober
from steersman_proxy.health.timer import EjectionTimer
from steersman_proxy.health.tracker import HealthTracker
from steersman_proxy.holding import HoldDriver
from steersman_proxy.http.accepting import Acceptor
from steersman_proxy.http.adapter import make_adapter
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.load.breaker import BreakerState
from steersman_proxy.logs import Logs
from steersman_proxy.metrics import ProxyMetrics, TableStatus
from steersman_proxy.metrics.table import status_of_control, status_of_file
from steersman_proxy.own.asking import EngineAsker
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.request_ids import RequestIds
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.routing.hold import HoldQueue
from steersman_proxy.settings import ControlSettings, ProxySettings
from steersman_proxy.tablefile.watch import TableWatcher

_log = logging.getLogger("steersman.proxy")

BACKLOG = 4096
"""Connections that may wait to be accepted; trainers open thousands at once."""

FIRST_TABLE = 10.0
"""Seconds for which a proxy that shares its port leaves new clients to the others, while it has no
table; after that it tells them so."""


class _Observers:
    """Metrics for everything, a line of log for each finished exchange."""

    def __init__(self, metrics: ProxyMetrics, logs: Logs) -> None:
        self._metrics = metrics
        self._access = logs.access
        # Bound once: these are called for every request.
        self.selected = metrics.selected
        self.unroutable = metrics.unroutable
        self.first_byte = metrics.first_byte
        self.attempt_failed = metrics.attempt_failed
        self.finished: Callable[[ExchangeRecord], None] = (
            metrics.finished if logs.access is None else self._finished
        )

        self.served: Callable[..., None] = metrics.served if logs.access is None else self._served

    def _served(
        self, request: Served, now: float, *, route: str, model: str | None, duration: float
    ) -> None:
        self._finished(request.record(now))

    def _finished(self, record: ExchangeRecord) -> None:
        self._metrics.finished(record)
        if self._access is not None:
            self._access.finished(record)


class ProxyApp:
    """A proxy from its settings to its last connection."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self._stack = contextlib.AsyncExitStack()
        self._had_table = asyncio.Event()
        self._clock = clock = MonotonicClock()
        self.logs = Logs(settings)
        self.fleet = Fleet(
            clock=clock,
            defaults=settings.defaults,
            pool_settings=settings.pools,
            rl_enabled=settings.rl_enabled,
        )
        self.fleet.on_breaker = _breaker_changed
        self.hold = HoldQueue(self.fleet, clock=clock)
        self.health = HealthTracker(
            self.fleet, clock=clock, passive=settings.passive, probe=settings.probe
        )
        self.watcher = (
            TableWatcher(
                settings.table_file,
                on_table=self.apply,
                on_error=self._table_failed,
                on_recovered=lambda: _log.info("the table file is good again"),
                poll=settings.table_poll,
                clock=clock,
            )
            if settings.table_file is not None
            else None
        )
        self.control = None if settings.control is None else self._follow(settings.control)
        self._cuts = 0
        self.metrics = ProxyMetrics(
            self.fleet,
            rl_enabled=settings.rl_enabled,
            hold=self.hold,
            table=self._table_status,
            dropped=lambda: self.logs.dropped,
            control=self._control_status,
            cuts=lambda: self._cuts,
        )
        self.context = Context(
            fleet=self.fleet,
            settings=settings,
            observer=_Observers(self.metrics, self.logs),
            health=self.health,
            clock=clock,
            new_request_id=RequestIds(),
        )
        self._listening: socket.socket | None = None
        self._opening: asyncio.Task[None] | None = None
        self.port = 0
        """The port for clients; known once started."""
        self.metrics_port = 0
        """The port for metrics, status and probes; known once started."""

    # --- the table --------------------------------------------------------------------------------

    def _follow(self, control: ControlSettings) -> ControlClient:
        security = None
        if control.server_key is not None and control.secret_key is not None:
            security = ClientSecurity(server_key=control.server_key, secret_key=control.secret_key)
        own = f"{socket.gethostname()}:{os.getpid()}"
        return ControlClient(
            self.fleet,
            addresses=control.addresses,
            uid=control.uid or os.environ.get("POD_UID") or own,
            boot=os.environ.get("STEERSMAN_BOOT") or secrets.token_hex(8),
            clock=self._clock,
            cut=self._cut,
            security=security,
            insecure=control.insecure,
            on_applied=self._applied,
        )

    def _cut(self, engine: str, reason: str) -> None:
        self._adapter.cut(engine, reason)
        self._cuts = self._adapter.cuts

    def apply(self, table: Table) -> None:
        """Put a table in force."""
        self.fleet.apply(table)
        self._applied(table)

    def _applied(self, table: Table) -> None:
        first = not self._had_table.is_set()
        if first:
            self._had_table.set()
            if self._listening is not None:
                # Before the table is acknowledged: whoever hears of that may send a request at once.
                self._listening.listen(BACKLOG)
        engines, pools = len(table.engines), len(table.pools)
        _log.info("table %s in force: %d pools, %d engines", table.epoch, pools, engines)
        if first:
            for warning in pools_without_row(self.settings, table):
                _log.warning("%s", warning)

    def _table_failed(self, error: DocumentError) -> None:
        if self.fleet.view is None:
            return  # The start fails with this very error.
        for problem in error.problems:
            _log.error(
                "the table file cannot be used; the last good one stays in force: %s", problem
            )

    @property
    def _table_status(self) -> Callable[[], TableStatus] | None:
        """How the source of tables fares, if there is one."""
        watcher, control = self.watcher, self.settings.control
        if watcher is not None:
            return lambda: status_of_file(watcher, clock=self._clock)
        if self.control is None or control is None:
            return None
        status = self._control_status
        assert status is not None
        return lambda: status_of_control(status(), addresses=control.addresses)

    @property
    def _control_status(self) -> Callable[[], ControlStatus] | None:
        """How the operator is followed, if one is."""
        client = self.control
        return None if client is None else lambda: client.status

    # --- start ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop at once."""
        await self.stop()

    async def start(self) -> None:
        """Read the table, then listen.

        :raises DocumentError: if the table file cannot be used.
        :raises OSError: if an address cannot be bound.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        self.logs.start()
        stack.callback(self.logs.close)
        if self.watcher is not None:
            await self.watcher.first()
            stack.push_async_callback(_cancel, asyncio.create_task(self.watcher.run()))
        upstream = UpstreamPool(clock=self._clock, idle_limit=settings.upstream_idle)
        stack.push_async_callback(upstream.close)
        hold_driver = HoldDriver(self.hold, clock=self._clock)
        stack.callback(hold_driver.close)
        ejections = EjectionTimer(self.health, clock=self._clock)
        ejections.start()
        stack.callback(ejections.close)
        asker = EngineAsker(
            upstream, engine_keys=settings.engine_keys, rl_enabled=settings.rl_enabled
        )
        prober = Prober(
            self.fleet,
            tracker=self.health,
            asker=asker,
            settings=settings.probe,
            random=random.Random(),
        )
        prober.start()
        stack.push_async_callback(prober.close)
        own = OwnRoutes(self.fleet, asker=asker, draining=lambda: self.context.leaving)
        self._adapter = make_adapter(self.context, upstream=upstream, hold=self.hold, own=own)
        self._bind_for_clients(stack)
        if self.control is not None:
            # Ends after the adapter, so that the end of the last requests is reported.
            stack.push_async_callback(self.control.close)
            await self.control.start()
        status = StatusPage(
            self.fleet,
            hold=self.hold,
            health=self.health,
            clock=self._clock,
            control=self._control_status,
        )
        await self._start_admin(stack, status)
        await self._listen(stack)

    async def _start_admin(self, stack: contextlib.AsyncExitStack, status: StatusPage) -> None:
        app = admin_app(
            self.fleet,
            metrics=self.metrics,
            status=status,
            draining=lambda: self.context.leaving,
            table=self._table_status,
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        listening = _bind(self.settings.metrics_host, self.settings.metrics_port)
        await web.SockSite(runner, listening).start()
        self.metrics_port = listening.getsockname()[1]

    def _bind_for_clients(self, stack: contextlib.AsyncExitStack) -> None:
        self._listening = listening = _bind(
            self.settings.host, self.settings.port, reuse=self.settings.reuse_port
        )
        stack.callback(listening.close)
        self.port = listening.getsockname()[1]

    async def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        assert self._listening is not None, "not bound"
        self._server = Acceptor(
            self._listening,
            self._adapter.protocol,
            backlog=BACKLOG,
            clients=lambda: self._adapter.connections,
            on_crowded=self._crowd,
        )
        stack.push_async_callback(self._adapter.close)
        stack.push_async_callback(self._server.stop)
        if self.control is None or not self.settings.reuse_port:
            await self._server.start_serving()
        else:
            # The system gives a share of all connections to whoever listens.
            self._opening = asyncio.create_task(self._listen_with_first_table())
            stack.push_async_callback(_cancel, self._opening)

    def _crowd(self, crowded: bool) -> None:
        self.context.crowded = crowded

    async def _listen_with_first_table(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TABLE):
                await self._had_table.wait()
        await self._server.start_serving()

    @property
    def url(self) -> str:
        """Where clients reach the proxy."""
        return f"http://{_authority(self.settings.host, self.port)}"

    @property
    def metrics_url(self) -> str:
        """Where metrics, status and probes are."""
        return f"http://{_authority(self.settings.metrics_host, self.metrics_port)}"

    # --- end --------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Leave in good order: first not ready, then not listening, then wait for what runs.

        Takes at most ``grace`` seconds; what still runs then is for :meth:`stop` to cut.
        """
        deadline = self._clock.now() + self.settings.grace
        self.context.leaving = True
        if self.control is not None:
            self.control.leave("shutting down")
        _log.info("draining: not ready, still accepting for %.1f s", self.settings.drain)
        await asyncio.sleep(self.settings.drain)
        if self._opening is not None:
            await _cancel(self._opening)
        await self._take_in()
        self.context.draining = True
        self._server.close()
        left = max(0.0, deadline - self._clock.now())
        running = await self._adapter.drained(timeout=left)
        if running:
            _log.warning("%d requests still ran after the grace time; they are cut", running)

    async def _take_in(self) -> None:
        """Accept whoever has connected already, for the end of listening would reset them.

        The loop accepts one in each turn. More may come all the time, hence the limit.
        """
        assert self._listening is not None, "not bound"
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        for _ in range(BACKLOG):
            if not poll.poll(0):
                break
            await asyncio.sleep(0)
        # The last one accepted is made a connection in the turn after.
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Close everything now. Requests that wait are told so; those that were sent are cut."""
        self.context.draining = True
        if self.hold.dismiss(Draining("the proxy is shutting down; the request was not sent")):
            # One turn in which their answers are written, and one to spare.
            for _ in range(2):
                await asyncio.sleep(0)
        await self._stack.aclose()


def _breaker_changed(engine: Engine, before: BreakerState) -> None:
    _log.warning(
        "engine %s: breaker %s, was %s", engine.id, engine.breaker.state.value, before.value
    )


def _bind(host: str, port: int, *, reuse: bool = False) -> socket.socket:
    """A bound socket; IPv6 addresses also as ``[::1]``. ``reuse`` shares the port with others.

    :raises OSError: with the address, if it cannot be bound.
    """
    bare = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((bare, port))
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        where = _authority(bare, port)
        raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from None
    return listening


def _authority(host: str, port: int) -> str:
    bare = host.removeprefix("[").removesuffix("]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
