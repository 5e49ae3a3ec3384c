"""The downstream adapters: what they have in common, and which one the settings ask for."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from steersman_proxy.exchange.context import Context
from steersman_proxy.http.aiohttp_adapter import AiohttpAdapter
from steersman_proxy.http.splice.adapter import SpliceAdapter
from steersman_proxy.http.upstream import UpstreamPool
from steersman_proxy.own.routes import OwnRoutes
from steersman_proxy.routing.hold import HoldQueue


class ClientSide(Protocol):
    """One client's connection, to look at."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """``None`` once it is lost."""
        ...

    @property
    def writing_paused(self) -> bool:
        """Whether the client takes less than is written to it."""
        ...

    def close_if_idle(self) -> bool:
        """Close unless a request is being read or answered; whether it is closed now."""
        ...


class Adapter(Protocol):
    """The downstream side of a proxy: owns clients' connections and drives an exchange for each
    request.
    """

    @property
    def cuts(self) -> int:
        """Requests that were cut because the operator wanted their engine free."""
        ...

    @property
    def protocol(self) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of each connection; for ``loop.create_server``."""
        ...

    @property
    def running(self) -> int:
        """Requests that are being read, waited for or answered."""
        ...

    @property
    def connections(self) -> Iterable[ClientSide]:
        """All of clients."""
        ...

    def sweep(self, now: float) -> float | None:
        """End every request that is stale by ``now``; when the next one will be."""
        ...

    async def drained(self, *, timeout: float) -> int:
        """Close idle connections and wait for what runs; how many requests are left after that."""
        ...

    def cut(self, engine_id: str, reason: str) -> None:
        """End every request in flight on an engine; ``reason`` is told to those who can be told."""
        ...

    async def close(self) -> None:
        """Cut everything now."""
        ...


def make_adapter(
    context: Context, *, upstream: UpstreamPool, hold: HoldQueue, own: OwnRoutes
) -> Adapter:
    """The adapter that ``context.settings.adapter`` names."""
    match context.settings.adapter:
        case "splice":
            return SpliceAdapter(context, upstream=upstream, hold=hold, own=own)
        case "aiohttp":
            return AiohttpAdapter(context, upstream=upstream, hold=hold, own=own)
