"""The control client of a proxy: its links to all operators, its timer, its end."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import zmq.asyncio

from steersman import __version__
from steersman.clock import Clock
from steersman.table import Table
from steersman_proxy.control.addresses import (
    RESOLVE_EVERY,
    checked_address,
    is_named,
    resolve,
)
from steersman_proxy.control.follower import Follower
from steersman_proxy.control.link import Link
from steersman_proxy.control.security import ClientSecurity
from steersman_proxy.control.status import ControlStatus
from steersman_proxy.routing.fleet import Fleet

_log = logging.getLogger("steersman.control")

SAMPLE = 0.5
"""Seconds at most between two looks at the clock; each measures how late the loop is."""


class ControlClient:
    """Keeps ``fleet`` in step with the leading operator.

    ``addresses`` are ``ipc://`` and ``tcp://`` addresses; a name among them is looked up again and
    again. ``uid`` names the pod (or process), ``boot`` this process and no other. ``cut`` is called
    with an engine's id and a reason when its requests are to end. TCP needs ``security``;
    ``insecure`` waives that.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        addresses: Sequence[str],
        uid: str,
        boot: str,
        clock: Clock,
        cut: Callable[[str, str], None],
        security: ClientSecurity | None = None,
        insecure: bool = False,
        on_applied: Callable[[Table], None] | None = None,
    ) -> None:
        self._addresses = tuple(checked_address(address) for address in addresses)
        remote = [address for address in addresses if not address.startswith("ipc://")]
        if remote and security is None and not insecure:
            raise ValueError(f"the control socket at {remote[0]} needs keys")
        if remote and security is None:
            _log.warning("the control socket at %s is INSECURE: no keys, no encryption", remote[0])
        self._fleet = fleet
        self._clock = clock
        self._security = security
        self._follower = Follower(
            fleet,
            clock=clock,
            uid=uid,
            boot=boot,
            build=__version__,
            cut=cut,
            on_applied=on_applied,
        )
        self._context: zmq.asyncio.Context | None = None
        self._links: dict[str, Link] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        self._context = zmq.asyncio.Context()
        self._fleet.on_idle = self._follower.engine_idle
        self._fleet.on_news = self._follower.engine_said
        self._follower.on_schedule = self._set_timer
        for address in self._addresses:
            if not is_named(address):
                self._open(address)
        if any(is_named(address) for address in self._addresses):
            self._resolver = asyncio.create_task(self._resolve(), name="control names")
        self._set_timer()

    def leave(self, reason: str) -> None:
        """Tell the operator that this process shuts down. It goes on reporting until the end."""
        self._follower.leave(reason)

    async def close(self) -> None:
        """Disconnect. The table stays."""
        if self._context is None:
            return
        self._follower.flush()
        self._follower.on_schedule = None
        self._fleet.on_idle = self._fleet.on_news = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resolver is not None:
            self._resolver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._resolver
            self._resolver = None
        for address in list(self._links):
            await self._links.pop(address).close()
        context, self._context = self._context, None
        # Waits for ZeroMQ's own thread, and for the last words.
        await asyncio.to_thread(context.term)

    # --- what is known ----------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether the leader was in contact within the grant time."""
        return self._follower.fresh

    @property
    def api_url(self) -> str | None:
        """The HTTP interface of the leader; ``None`` while none is followed."""
        leader = self._follower.leader
        return None if leader is None else leader.api_url

    @property
    def peers(self) -> tuple[str, ...]:
        """Addresses of the other ready proxies, as the leader said last."""
        return self._follower.peers

    @property
    def status(self) -> ControlStatus:
        """For ``/status`` and the metrics."""
        return self._follower.status

    # --- inside -----------------------------------------------------------------------------------

    def _open(self, address: str) -> None:
        assert self._context is not None, "not started"
        self._links[address] = Link(
            self._context, address, follower=self._follower, security=self._security
        )

    async def _resolve(self) -> None:
        """Follow the names. What does not resolve for the moment stays as it was."""
        places: dict[str, frozenset[str]] = {}
        named = [address for address in self._addresses if is_named(address)]
        while True:
            for address in named:
                try:
                    places[address] = await resolve(address)
                except OSError as error:
                    if address not in places:
                        _log.warning("%s cannot be resolved: %s", address, error)
            fixed = {address for address in self._addresses if address not in named}
            await self._keep_only(fixed.union(*places.values()))
            await asyncio.sleep(RESOLVE_EVERY)

    async def _keep_only(self, wanted: set[str]) -> None:
        leader = self._follower.leader
        for address in list(self._links):
            # A leader on its way out speaks until it is gone.
            if address not in wanted and self._links[address].operator is not leader:
                await self._links.pop(address).close()
        for address in wanted - self._links.keys():
            self._open(address)

    def _set_timer(self) -> None:
        now = self._clock.now()
        due = self._follower.next_due
        at = now + SAMPLE if due is None else min(due, now + SAMPLE)
        if self._timer is not None:
            if at >= self._timer_at:
                return  # looks again then
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        late = self._clock.now() - self._timer_at
        self._follower.loop_lag = max(self._follower.loop_lag, late)
        try:
            self._follower.tick()
        finally:
            self._set_timer()
