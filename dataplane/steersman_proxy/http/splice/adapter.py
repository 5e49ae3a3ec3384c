"""The splice adapter: owns clients' connections, and leaves irregular ones to the aiohttp adapter."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from steersman_proxy.exchange.context import Context
from steersman_proxy.http import limits
from steersman_proxy.http.aiohttp_adapter import AiohttpAdapter, tail_limit
from steersman_proxy.http.client_connection import ClientConnection
from steersman_proxy.http.drive import Means
from steersman_proxy.http.janitor import Janitor
from steersman_proxy.http.splice.front import Front
from steersman_proxy.http.splice.head import RegularHead
from steersman_proxy.http.splice.lane import Lane
from steersman_proxy.http.splice.ordinary import InFront, Ordinary
from steersman_proxy.http.splice.request import SplicedRequest
from steersman_proxy.http.tasks import TaskSet
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.hold import HoldQueue

_log = logging.getLogger("steersman.http")


class SpliceAdapter:
    """The downstream side of a proxy. ``protocol`` makes the protocol of each connection."""

    def __init__(
        self, context: Context, *, upstream: UpstreamPool, hold: HoldQueue, own: OwnRoutes
    ) -> None:
        self._context = context
        self._aiohttp = AiohttpAdapter(context, upstream=upstream, hold=hold, own=own)
        self._tasks = TaskSet()
        self._janitor = Janitor(self._sweep, clock=context.clock)
        self._means = Means(
            upstream=upstream,
            hold=hold,
            own=own,
            janitor=self._janitor,
            tasks=self._tasks,
            upload_stall=context.settings.defaults.timeouts.client_stall,
        )
        self.writes = upstream.writes
        self.lane = Lane(self._means, context, grown=self.grown)
        self._running: set[InFront] = set()
        self._fronts: set[Front] = set()
        self._cuts = 0
        self._idle: asyncio.Event | None = None
        self._all_lost: asyncio.Event | None = None
        self.upload_stall = self._means.upload_stall
        self.tail_limit = tail_limit(context.settings)

    @property
    def cuts(self) -> int:
        """Requests that were cut because the operator wanted their engine free."""
        return self._cuts + self._aiohttp.cuts

    @property
    def protocol(self) -> Callable[[], asyncio.Protocol]:
        """For ``loop.create_server``."""
        return self._front

    @property
    def running(self) -> int:
        """Requests that are being read, waited for or answered."""
        return len(self._running) + self._aiohttp.running

    @property
    def connections(self) -> Iterable[Front | ClientConnection]:
        """All of clients."""
        return [*self._fronts, *self._aiohttp.connections]

    async def drained(self, *, timeout: float) -> int:
        """Close idle connections and wait for what runs; how many requests are left after that.

        As :meth:`AiohttpAdapter.drained`, which says why not at once.
        """
        ours, theirs = await asyncio.gather(
            self._drained(timeout), self._aiohttp.drained(timeout=timeout)
        )
        return ours + theirs

    async def _drained(self, timeout: float) -> int:
        moment = min(limits.MOMENT, timeout)
        await asyncio.sleep(moment)
        for front in tuple(self._fronts):
            front.close_if_idle()
        self._idle = asyncio.Event()
        if self._running:
            try:
                async with asyncio.timeout(timeout - moment):
                    await self._idle.wait()
            except TimeoutError:
                pass
        return len(self._running)

    def cut(self, engine_id: str, reason: str) -> None:
        """End every request in flight on an engine; ``reason`` is told to those who can be told.

        A client that has seen nothing of an answer gets 503, any other a broken one. Requests that
        wait are not in flight.
        """
        for request in tuple(self._running):
            engine = request.engine
            if engine is not None and engine.id == engine_id:
                self._cuts += 1
                with _alone():
                    request.full().cut(reason)
        self._aiohttp.cut(engine_id, reason)

    def sweep(self, now: float) -> float | None:
        """End every request that is stale by ``now``; when the next one will be."""
        following = [at for at in (self._sweep(now), self._aiohttp.sweep(now)) if at is not None]
        return min(following, default=None)

    def _sweep(self, now: float) -> float | None:
        following: float | None = None
        for running in tuple(self._running):
            with _alone():
                request = running.full()
                at = request.exchange.stale_at
                if at is None:
                    continue
                if at <= now:
                    request.expire()
                elif following is None or at < following:
                    following = at
        return following

    async def close(self) -> None:
        """Cut everything now."""
        self._janitor.close()
        for front in tuple(self._fronts):
            front.drop()
        if self._fronts:
            self._all_lost = asyncio.Event()
            await self._all_lost.wait()
        await self._tasks.close()
        await self._aiohttp.close()

    # --- called by connections --------------------------------------------------------------------

    def connected(self, front: Front) -> None:
        """A connection was made."""
        self._fronts.add(front)

    def lost(self, front: Front) -> None:
        """A connection is gone, or handed over."""
        self._fronts.discard(front)
        if self._all_lost is not None and not self._fronts:
            self._all_lost.set()

    def make(self, front: Front, head: RegularHead) -> SplicedRequest:
        """The request of a head, on the long way."""
        return SplicedRequest(self._means, self._context, head=head, client=front)

    def begun(self, request: InFront) -> None:
        """A request is being served."""
        self._running.add(request)

    def grown(self, ordinary: Ordinary, request: SplicedRequest) -> None:
        """A request left the shortest way."""
        if ordinary in self._running:
            self._running.discard(ordinary)
            self._running.add(request)
        client = ordinary.client
        assert isinstance(client, Front)
        client.grown(ordinary, request)

    def ended(self, request: InFront) -> None:
        """A request is over."""
        self._running.discard(request)
        if self._idle is not None and not self._running:
            self._idle.set()

    def hand_over(self, transport: asyncio.Transport, data: bytes, *, late: bool) -> None:
        """Leave a connection to the aiohttp adapter, for good; ``data`` is not served yet.

        ``late`` says that it is the beginning of a head whose time is over.
        """
        protocol = self._aiohttp.protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)
        if late:
            cast("ClientConnection", protocol).head_is_late()

    def _front(self) -> Front:
        return Front(self, loop=asyncio.get_running_loop(), clock=self._context.clock)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A fault of ours with one request must not be one with all others."""
    try:
        yield
    except Exception:  # noqa: BLE001 - logged whole
        _log.exception("a fault of the proxy with one request")
