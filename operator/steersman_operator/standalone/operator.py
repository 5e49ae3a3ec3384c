"""The operator of a standalone fleet: everything that one process needs, put together."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import msgspec

from steersman.clock import Clock
from steersman_operator.api.local import LocalApi
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.api.pages import MetricsPages
from steersman_operator.control import ControlServer
from steersman_operator.engines import Engines
from steersman_operator.fleet.events import Elected, LeaseRenewed
from steersman_operator.fleet.record import Recorder
from steersman_operator.fleet.state import State, Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.locks import FileLock
from steersman_operator.standalone.manifests import ManifestsFollower
from steersman_operator.standalone.proxies import ProxyAccount
from steersman_operator.standalone.sockets import watch_sockets
from steersman_operator.standalone.status import StandaloneFleet

_log = logging.getLogger("steersman.operator")

FOR_EVER = 1e12
"""Seconds of a lease that nobody else can take: the lock of the directory is held."""


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One operator process."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int = 28000
    endpoint: str = ""
    """Where clients reach the proxies; only shown."""
    record: str | None = None
    """The file into which everything that happens is written."""


class StandaloneOperator:
    """The operator of one directory."""

    def __init__(
        self,
        layout: Layout,
        settings: OperatorSettings,
        *,
        clock: Clock,
        timing: Timing | None = None,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._timing = timing or Timing()
        self._undo = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Future[None]] = []
        self.metrics_url = ""
        self.failed: asyncio.Future[None] | None = None
        """Ends with the error for which the operator cannot go on; made by :meth:`start`."""

    async def start(self) -> None:
        """Take over the fleet.

        :raises StoreUnreadable: if what survived the operator before cannot be read.
        :raises OSError: if a port or socket cannot be had.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop. The engines stay as they are, the proxies keep their table."""
        await self._undo.aclose()

    async def _start(self) -> None:
        layout, clock, undo = self._layout, self._clock, self._undo
        lock = FileLock(layout.operator_lock)
        # The one before may still be ending; until it has, its calls to engines may be under way.
        await lock.wait()
        undo.callback(lock.release)
        store = FileStore(layout.store)
        term, durable = store.open()
        manifests = ManifestsFollower(layout, ledger=store, clock=clock)
        engines = Engines(clock=clock, keys=manifests.keys)
        undo.push_async_callback(engines.close)
        metrics = FleetMetrics(clock=clock)
        shell = FleetShell(
            clock=clock,
            engines=engines,
            store=store,
            timing=self._timing,
            observer=metrics,
            recorder=self._recorder(),
        )
        undo.push_async_callback(shell.close)
        account = ProxyAccount(layout.proxies, clock=clock, feed=shell.feed)
        server = ControlServer(
            shell,
            clock=clock,
            endpoints=[layout.control_endpoint],
            grant=self._timing.grant,
            check_peer=account.may_join,
        )
        shell.publisher = server
        shell.peers = lambda: [
            process.metrics_url
            for process in account.processes
            if process.uid in shell.state.proxies and shell.state.proxies[process.uid].connected
        ]
        metrics.watch(lambda: shell.state, lambda: server.stats)
        await server.start()
        undo.push_async_callback(server.close)

        def lead(term: int, durable: tuple[Any, ...]) -> None:
            server.lead(term=term, api_url="")
            shell.feed(Elected(now=shell.now, term=term, durable=durable))

        def overtake(term: int) -> None:
            """A proxy follows a term of which this directory knows nothing."""
            lead(*store.advance(term))

        shell.on_later_term = overtake
        shell.start()
        lead(term, durable)
        shell.feed(LeaseRenewed(now=shell.now, valid_until=clock.now() + FOR_EVER))
        account.read()
        manifests.on_pools = shell.feed
        await manifests.read()
        pages = MetricsPages(
            metrics,
            host=self._settings.metrics_host,
            port=self._settings.metrics_port,
            ready=lambda: shell.state.published,
        )
        await pages.start()
        undo.push_async_callback(pages.close)
        self.metrics_url = pages.url
        fleet = StandaloneFleet(
            shell,
            manifests=manifests,
            account=account,
            endpoint=self._settings.endpoint,
            metrics_url=pages.url,
            clock=clock,
        )
        api = LocalApi(fleet, path=layout.api)
        await api.start()
        undo.push_async_callback(api.close)
        undo.push_async_callback(self._end_tasks)
        self._follow(manifests.follow, account.follow)
        self.failed = asyncio.ensure_future(watch_sockets((layout.control, layout.api)))
        self._tasks.append(self.failed)
        _log.info("leading %s in term %d", layout.directory, term)

    def _follow(self, *tasks: Callable[[], Awaitable[None]]) -> None:
        for task in tasks:
            self._tasks.append(asyncio.ensure_future(task()))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _recorder(self) -> Recorder | None:
        if self._settings.record is None:
            return None
        file = _fresh(Path(self._settings.record))
        self._undo.callback(file.close)
        return Recorder(file, timing=self._timing, state=State())


def _fresh(path: Path) -> IO[bytes]:
    """A new file; one that is there, of an operator before, gets a number."""
    if path.exists():
        number = 1
        while (kept := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(kept)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
