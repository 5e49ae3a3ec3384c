"""What every proxy is to be told, and has not been: tables, watches, cuts, pings.

Nothing is queued: of tables and watches the newest replaces those before it. What the socket does
not take is tried again when the proxy next speaks, and at each heartbeat.
"""

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from steersman.clock import Clock
from steersman.control import Cut, FromOperator, Ping, Watch, encode
from steersman.errors import ControlProtocolError
from steersman_operator.control.outgoing import Outgoing
from steersman_operator.control.pacing import Pacing
from steersman_operator.control.session import Session
from steersman_operator.control.sessions import Sessions

_log = logging.getLogger("steersman.control")

MAX_CUTS = 4096


class Sent(Enum):
    """What became of a message that was handed to the socket."""

    OK = "ok"
    FULL = "full"
    """Its queue is full; try again later."""
    GONE = "gone"
    """The connection is no more."""


class Outbox:
    """Sends to sessions; ``gone`` is called with one whose connection is no more."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        clock: Clock,
        debounce: float,
        send: Callable[[bytes, bytes], Sent],
        gone: Callable[[Session], None],
    ) -> None:
        self.pacing = Pacing(clock, debounce=debounce)
        self.current: Outgoing | None = None
        """The newest table that was sent to anybody."""
        self.watched: tuple[str, ...] = ()
        self.tables = 0
        self.snapshots = 0
        self.unsendable = 0
        self._sessions = sessions
        self._clock = clock
        self._send = send
        self._gone = gone
        self._pending: Outgoing | None = None

    def clear(self) -> None:
        """Forget the table and the watch: they were of another term."""
        self.current = self._pending = None
        self.watched = ()
        self.pacing.due = None

    def publish(self, table: Outgoing, *, urgent: bool) -> None:
        """Take in the newest table."""
        self._pending = table
        self.pacing.changed(urgent=urgent)
        self.flush_table()

    def flush_table(self) -> None:
        """Make the newest table the one that is sent, if it is time."""
        pending = self._pending
        if pending is None or not self.pacing.take():
            return
        self._pending = None
        try:
            pending.encode()
        except ControlProtocolError as error:
            self.unsendable += 1
            _log.error("table %s cannot be sent to any proxy: %s", pending.epoch, error)
            return
        before, self.current = self.current, pending
        self.tables += 1
        # The same table with other addresses of proxies is sent as well.
        again = before is not None and before.epoch == pending.epoch
        for session in self._sessions:
            session.force = session.force or again
            self.flush(session)

    def watch(self, engines: Sequence[str]) -> None:
        """Have these engines watched, and no others.

        That some need not be watched any more is no hurry: it goes along with what comes next.
        """
        before, self.watched = self.watched, tuple(engines)
        urgent = not set(before).issuperset(engines)
        for session in self._sessions:
            session.watch_due = True
            if urgent:
                self.flush(session)

    def cut(self, engine: str, reason: str) -> None:
        """Have the requests on an engine ended."""
        for session in self._sessions:
            if len(session.cuts) < MAX_CUTS:
                session.cuts[engine] = reason
            self.flush(session)

    def flush(self, session: Session) -> None:
        """Send what the session lacks, as far as the socket takes it."""
        if self._sessions.alive(session) and self._flush(session) is Sent.GONE:
            self._gone(session)

    def ping(self, session: Session) -> None:
        """Ask whether the proxy's routing loop turns."""
        current = self.current
        ping = Ping(
            session.ping + 1,
            None if current is None else current.epoch,
            "" if current is None else current.digest,
            session.pong,
        )
        match self.post(session.peer, ping):
            case Sent.OK:
                session.ping += 1
            case Sent.GONE:
                self._gone(session)
            case Sent.FULL:
                pass  # it will be found silent

    def post(self, peer: bytes, message: FromOperator) -> Sent:
        """Send one message, or not."""
        return self._send(peer, encode(message))

    def _flush(self, session: Session) -> Sent:
        current = self.current
        if current is not None and session.wants(current.epoch):
            now = self._clock.now()
            sent = self._send(session.peer, current.frame(session.number, now=now))
            if sent is not Sent.OK:
                return sent
            self.snapshots += 1
            session.sent(current.epoch, digest=current.digest, now=now)
        if session.watch_due:
            sent = self.post(session.peer, Watch(self.watched))
            if sent is not Sent.OK:
                return sent
            session.watch_due = False
        while session.cuts:
            engine = next(iter(session.cuts))
            sent = self.post(session.peer, Cut(engine, session.cuts[engine]))
            if sent is not Sent.OK:
                return sent
            del session.cuts[engine]
        return Sent.OK
