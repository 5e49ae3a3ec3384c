"""Accepts clients, as many as the process has files for; the others wait in the system's queue.

Event loops accept whoever comes. Once the files are used up, uvloop takes connections and drops them
without a word, or, if not even that can be done, listens no more; and the requests of those who are
in reach no engine any more, since each takes a second file. So there is a number of clients beyond
which none is accepted, such that each has its second file. Whoever waits is served when others leave;
those who keep connections that they do not use leave first.
"""

import asyncio
import errno
import logging
import resource
import select
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from steersman_proxy.http.tasks import TaskSet

_log = logging.getLogger("steersman.http")

RESERVED = 32
"""Files for what is no request: the table, the metrics port, probes, aborts."""

FEW = 1000
"""Clients; a process that has room for fewer says so when it starts."""

AT_A_TIME = 64
"""Connections accepted in one turn of the loop."""

LOOK_EVERY = 0.1
"""Seconds between two looks whether there is room again."""

SAY_EVERY = 60.0
"""Seconds between two lines of log that there is none."""

IDLE_ENOUGH = 5.0
"""Seconds for which a client said nothing, so that its connection may go when there is no room."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""Where Linux says in ``struct tcp_info`` how many milliseconds ago."""


class Client(Protocol):
    """A client's connection, as an adapter keeps it."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """``None`` once it is lost."""
        ...

    def close_if_idle(self) -> bool:
        """Close unless a request is being read or answered; whether it is closed now."""
        ...


class Acceptor:
    """Listens on a bound socket, which it closes in the end; may be used for ``asyncio.Server``.

    ``make_protocol`` makes the protocol of each connection, ``clients`` lists those that there are.
    ``on_crowded`` is told when somebody has to wait, and when nobody has to any more: meanwhile
    connections should not be kept after an answer, or a few clients would be served for ever.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        backlog: int,
        clients: Callable[[], Iterable[Client]],
        on_crowded: Callable[[bool], None] = lambda crowded: None,
    ) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._backlog = backlog
        self._clients = clients
        self._on_crowded = on_crowded
        self._crowded = False
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet()
        self._others = 0
        self._connecting = 0
        """Clients that were accepted and are no connections yet."""
        self._room = 0
        """So many more may come before clients have to be counted again."""
        self._retry: asyncio.TimerHandle | None = None
        self._said = float("-inf")
        self._closed = False

    async def start_serving(self) -> None:
        """Listen."""
        if self._closed:
            return
        self._others = _open_files()
        most = self.most
        if most < FEW:
            _log.warning(
                "there is room for %d clients at a time, because this process may have %d files "
                "open; %s",
                most,
                _limit(),
                _REMEDY,
            )
        self._listening.setblocking(False)
        self._listening.listen(self._backlog)
        self._go_on()

    def close(self) -> None:
        """Listen no more. Whoever was accepted stays."""
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._loop.remove_reader(self._listening)
        self._listening.close()

    async def stop(self) -> None:
        """Close, and let go of those whose connection is just being made."""
        self.close()
        await self._tasks.close()

    @property
    def most(self) -> int:
        """Clients that may be there at a time: a file for each, and one for its engine."""
        return max(1, (_limit() - self._others - RESERVED) // 2)

    @property
    def paused(self) -> bool:
        """Whether nobody is accepted for want of files."""
        return self._retry is not None

    def _go_on(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        failed = 0
        for _ in range(AT_A_TIME):
            if self._room <= 0:
                most = self.most
                self._room = most - sum(1 for _ in self._clients()) - self._connecting
                if self._room <= 0:
                    self._pause(f"{most} are there")
                    return
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                self._crowd(crowded=False)
                return
            except OSError as error:
                # Others are of a client that left before its turn; accept(2) lists them. But should
                # they not end, they must not keep the loop busy.
                failed += 1
                if error.errno in _EXHAUSTED or failed == AT_A_TIME:
                    self._pause(error.strerror or str(error))
                    return
                continue
            self._room -= 1
            self._connecting += 1
            self._tasks.start(self._connect(accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:
            accepted.close()  # It has left again.
        except BaseException:
            accepted.close()
            raise
        finally:
            self._connecting -= 1

    # --- no room ----------------------------------------------------------------------------------

    def _pause(self, why: str) -> None:
        """Leave whoever comes in the system's queue for a moment."""
        self._crowd(crowded=True)
        self._room = 0
        self._loop.remove_reader(self._listening)
        self._retry = self._loop.call_later(LOOK_EVERY, self._look)
        now = self._loop.time()
        if now - self._said >= SAY_EVERY:
            self._said = now
            _log.error(
                "no room for another client (%s): this process may have %d files open, and each "
                "client takes two; new ones wait until others leave; %s",
                why,
                _limit(),
                _REMEDY,
            )

    def _crowd(self, *, crowded: bool) -> None:
        if crowded is not self._crowded:
            self._crowded = crowded
            self._on_crowded(crowded)

    def _look(self) -> None:
        """Go on if there may be room; those who wait need not wait for the idle."""
        self._retry = None
        if not self._somebody_waits():
            self._crowd(crowded=False)
        elif sum(1 for _ in self._clients()) >= self.most:
            self._close_idle()
        self._go_on()

    def _somebody_waits(self) -> bool:
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        return bool(poll.poll(0))

    def _close_idle(self) -> None:
        """Take the room of clients that keep connections and do not use them; a part of it."""
        idle = []
        for client in self._clients():
            if client.transport is not None and not client.transport.is_closing():
                seconds = _silent_for(client.transport.get_extra_info("socket"))
                if seconds >= IDLE_ENOUGH:
                    idle.append((seconds, client))
        idle.sort(key=lambda one: one[0], reverse=True)
        # Those who wait for a long answer are as silent, and stay.
        left = 1 + self.most // 8
        for _, client in idle:
            if client.close_if_idle():
                left -= 1
                if not left:
                    return


_REMEDY = "raise the hard limit (`ulimit -Hn`, LimitNOFILE=, --ulimit nofile=)"


def _limit() -> int:
    """Files that this process may have open. Asked each time: ``prlimit`` changes it while it runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def _silent_for(sock: socket.socket) -> float:
    """Seconds since the client has sent something, or has connected; 0 if that is unknown."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
    except OSError:
        return 0.0
    if len(info) < _LAST_DATA_RECEIVED.size:
        return 0.0
    milliseconds: int = _LAST_DATA_RECEIVED.unpack(info)[0]
    return milliseconds / 1000
