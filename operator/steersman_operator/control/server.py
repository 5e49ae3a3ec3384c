"""The ROUTER socket of the operator, on the main event loop.

All that ZeroMQ does not do by itself (who is who, acknowledgement, liveness of the *routing* loop) is
the :class:`~steersman_operator.control.hub.Hub`'s. ZeroMQ's own heartbeats only notice dead
connections: they are answered by its I/O thread, also while the loop of a proxy hangs.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import zmq
import zmq.asyncio

from steersman.clock import Clock
from steersman.control import MAX_TABLE_FRAME
from steersman.table import Table
from steersman_operator.control.hub import Hub
from steersman_operator.control.listener import ControlListener
from steersman_operator.control.outbox import Sent
from steersman_operator.control.security import Gatekeeper, Security
from steersman_operator.control.stats import ControlStats
from steersman_operator.fleet.events import ProxyRef

_log = logging.getLogger("steersman.control")

HIGH_WATER = 16
"""Messages that wait for one peer in ZeroMQ. A table is never behind another one, so few are ever
needed; a full queue is a peer that does not read."""

HANDSHAKE = 5000
"""Milliseconds in which a connection must have shown who it is."""


class ControlServer:
    """The operator's control socket. ``endpoints`` are ``ipc://`` and ``tcp://`` addresses.

    ``heartbeat``, ``grant`` and ``debounce`` are in seconds. ``check_peer`` is asked for each hello
    whether that process may say it from the IP address (``None`` on a local socket). TCP needs ``security``;
    ``insecure`` waives that, for tests and for networks that are closed otherwise.
    """

    def __init__(
        self,
        listener: ControlListener,
        *,
        clock: Clock,
        endpoints: Sequence[str],
        heartbeat: float = 2.0,
        grant: float = 10.0,
        debounce: float = 0.025,
        retry_after: float = 1.0,
        security: Security | None = None,
        check_peer: Callable[[ProxyRef, str | None], bool] | None = None,
        insecure: bool = False,
    ) -> None:
        remote = [endpoint for endpoint in endpoints if not endpoint.startswith("ipc://")]
        if remote and security is None and not insecure:
            raise ValueError(
                f"the control socket on {remote[0]} needs keys; whoever reaches it could hold up "
                "every operation, and read the table"
            )
        self._clock = clock
        self._asked_endpoints = tuple(endpoints)
        self._heartbeat = heartbeat
        self._security = security
        self._remote = remote
        self.boot = secrets.token_hex(8)
        """Of this server; proxies tell two addresses of one operator by it."""
        self._hub = Hub(
            listener,
            clock=clock,
            send=self._send,
            server_boot=self.boot,
            heartbeat=heartbeat,
            grant=grant,
            debounce=debounce,
            retry_after=retry_after,
            check_peer=check_peer,
        )
        self._hub.on_schedule = self._set_timer
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._gatekeeper: Gatekeeper | None = None
        self._reader: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.endpoints: tuple[str, ...] = ()
        """Where it is bound, with the ports that were chosen; known once started."""

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, and begin to serve; nobody leads yet.

        :raises OSError: if an endpoint cannot be bound.
        """
        self._context = zmq.asyncio.Context()
        try:
            self._socket = self._make_socket(self._context)
            self.endpoints = tuple(_bind(self._socket, one) for one in self._asked_endpoints)
        except BaseException:
            await self.close()
            raise
        if self._security is None and self._remote:
            _log.warning(
                "the control socket on %s is INSECURE: no keys, no encryption", self._remote[0]
            )
        self._reader = asyncio.create_task(self._read(self._socket), name="control server")
        self._set_timer()

    async def close(self) -> None:
        """Stop serving. Proxies keep their table."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        socket, self._socket = self._socket, None
        if self._gatekeeper is not None:
            self._gatekeeper.stop()
            self._gatekeeper = None
        if socket is not None:
            socket.close(linger=0)
        context, self._context = self._context, None
        if context is not None:
            # Waits for ZeroMQ's own thread.
            await asyncio.to_thread(context.term)

    def _make_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.ROUTER)
        # Without it a message to a connection that is gone vanishes without a word.
        socket.router_mandatory = 1
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = HIGH_WATER
        socket.maxmsgsize = MAX_TABLE_FRAME
        socket.handshake_ivl = HANDSHAKE
        socket.ipv6 = 1
        beat = max(1, round(self._heartbeat * 1000))
        socket.heartbeat_ivl = beat
        socket.heartbeat_timeout = 3 * beat
        socket.heartbeat_ttl = 3 * beat
        if self._security is not None:
            self._gatekeeper = Gatekeeper(context, self._security)
            self._gatekeeper.start(socket)
        return socket

    # --- the hub's doors --------------------------------------------------------------------------

    def lead(self, *, term: int, api_url: str) -> None:
        """Lead from now on; see :meth:`Hub.lead`."""
        self._hub.lead(term=term, api_url=api_url)

    def follow(self, *, leader_hint: str | None = None) -> None:
        """Lead no more; see :meth:`Hub.follow`."""
        self._hub.follow(leader_hint=leader_hint)

    def publish(
        self,
        table: Table,
        *,
        urgent: bool,
        peers: Sequence[str] = (),
        removed_ok: bool | None = None,
    ) -> None:
        """Have a table sent to every proxy; see :meth:`Hub.publish`."""
        self._hub.publish(table, urgent=urgent, peers=peers, removed_ok=removed_ok)

    def watch(self, engines: Sequence[str]) -> None:
        """Have the requests in flight on these engines reported, and on no others."""
        self._hub.watch(engines)

    def cut(self, engine: str, reason: str) -> None:
        """Have every proxy end what it has in flight on an engine."""
        self._hub.cut(engine, reason)

    @property
    def stats(self) -> ControlStats:
        """How everything stands."""
        return self._hub.stats

    @property
    def refused_keys(self) -> int:
        """Connections with a key that is not let in."""
        return 0 if self._gatekeeper is None else self._gatekeeper.refused

    # --- the socket -------------------------------------------------------------------------------

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart(copy=False)
            peer, address = frames[0].bytes, _address(frames[-1])
            try:
                if len(frames) != 2:
                    self._hub.malformed(
                        peer, f"a message of {len(frames) - 1} frames", address=address
                    )
                else:
                    self._hub.received(peer, frames[1].bytes, address=address)
            except Exception:  # noqa: BLE001 - one peer must not end the service of all the others
                _log.exception("a fault at a message of a proxy")

    def _send(self, peer: bytes, frame: bytes) -> Sent:
        if self._socket is None:
            return Sent.GONE
        # Done at once with DONTWAIT, with or without success.
        done = cast(
            "asyncio.Future[object]",
            self._socket.send_multipart([peer, frame], flags=zmq.DONTWAIT),
        )
        error = done.exception()
        if error is None:
            return Sent.OK
        if isinstance(error, zmq.Again):
            return Sent.FULL
        if isinstance(error, zmq.ZMQError):
            return Sent.GONE
        raise error

    def _set_timer(self) -> None:
        if self._socket is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0.0, self._hub.next_due - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._hub.tick()
        finally:
            self._set_timer()


def _bind(socket: zmq.asyncio.Socket, endpoint: str) -> str:
    """Bind and say where; a local socket is for this user alone."""
    try:
        socket.bind(endpoint)
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@"):
            Path(endpoint.removeprefix("ipc://")).chmod(0o600)
    except zmq.ZMQError as error:
        number = error.errno or 0
        raise OSError(number, f"cannot bind {endpoint}: {os.strerror(number)}") from None
    # An IPv4 address as IPv6 sockets write it is not what anybody would dial.
    return re.sub(r"\[::ffff:([0-9.]+)\]", r"\1", bound)


def _address(frame: zmq.Frame) -> str | None:
    """The IP address that a message came from, by the kernel's account."""
    try:
        address = ipaddress.ip_address(str(frame.get("Peer-Address")))
    except (ValueError, zmq.ZMQError):
        return None  # a local socket
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
