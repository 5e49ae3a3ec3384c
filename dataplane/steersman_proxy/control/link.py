"""One DEALER socket, to one operator address."""

import asyncio
import contextlib
import logging
from typing import cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from steersman.control import MAX_TABLE_FRAME
from steersman_proxy.control.follower import Follower
from steersman_proxy.control.operator_link import OperatorLink
from steersman_proxy.control.security import ClientSecurity

_log = logging.getLogger("steersman.control")

HIGH_WATER = 16
HEARTBEAT = 2000
"""Milliseconds between ZeroMQ's own heartbeats, which notice a connection that is gone."""

CONNECT = 3000
"""Milliseconds for one attempt to connect. The system's own goes on for two minutes, with ever longer
pauses, so that a link that is back after a minute would be found half a minute later."""

RECONNECT = (100, 5000)
"""Milliseconds before the first and between later attempts to connect."""

LINGER = 100
"""Milliseconds that the last words have to get out at the end."""

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Link:
    """Connects, and connects again, until it is closed."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        *,
        follower: Follower,
        security: ClientSecurity | None,
    ) -> None:
        self.operator = OperatorLink(address, send=self._send)
        self._follower = follower
        self._socket = _dealer(context, security)
        # Before it connects, or the first event could be missed.
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        follower.add(self.operator)
        self._socket.connect(address)
        self._tasks = [
            asyncio.create_task(self._read(), name=f"control link {address}"),
            asyncio.create_task(self._watch(), name=f"control link events {address}"),
        ]

    async def close(self) -> None:
        """Disconnect; the follower forgets the link."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._follower.remove(self.operator)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=LINGER)

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) != 1:
                continue  # no message of ours has several
            try:
                self._follower.received(self.operator, frames[0])
            except Exception:  # noqa: BLE001 - one message must not end the link
                _log.exception("a fault at a message of the operator")

    async def _watch(self) -> None:
        """Connections begin with a hello, so their beginning and end must be known."""
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._follower.connected(self.operator)
            elif event == zmq.EVENT_DISCONNECTED:
                self._follower.disconnected(self.operator)
            else:
                self._follower.refused(self.operator)

    def _send(self, frame: bytes) -> bool:
        if self._socket.closed:
            return False
        if self._try(frame):
            return True
        # ZeroMQ looks only now and then whether a connection has come about; asking makes it look.
        self._socket.get(zmq.EVENTS)
        return self._try(frame)

    def _try(self, frame: bytes) -> bool:
        # Done at once with DONTWAIT, with or without success.
        done = cast("asyncio.Future[object]", self._socket.send(frame, flags=zmq.DONTWAIT))
        error = done.exception()
        if error is not None and not isinstance(error, zmq.ZMQError):
            raise error
        return error is None


def _dealer(context: zmq.asyncio.Context, security: ClientSecurity | None) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.DEALER)
    # Nothing is kept for a later connection: what was said in one session means nothing in another.
    socket.immediate = 1
    socket.linger = LINGER
    socket.sndhwm = socket.rcvhwm = HIGH_WATER
    socket.maxmsgsize = MAX_TABLE_FRAME
    socket.ipv6 = 1
    socket.heartbeat_ivl = HEARTBEAT
    socket.heartbeat_timeout = socket.heartbeat_ttl = 3 * HEARTBEAT
    socket.connect_timeout = CONNECT
    socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT
    if security is not None:
        secret = security.secret_key.encode()
        socket.curve_serverkey = security.server_key.encode()
        socket.curve_secretkey = secret
        socket.curve_publickey = zmq.curve_public(secret)
    return socket
