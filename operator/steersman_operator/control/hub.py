"""The conversation with all proxies: who takes part, and what follows from what they say.

It does no I/O. Messages go in through :meth:`Hub.received`, time through :meth:`Hub.tick`; what is to
be sent goes out through the callback ``send``. So tests drive it on a fake clock, and lose and delay
messages as they like.

The listener may call the hub back from every callback, so each is the last thing that is done
before the session is looked up again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from steersman.clock import Clock
from steersman.control import (
    PROTOCOL,
    SAID_VERSION,
    Ack,
    Bye,
    FromProxy,
    Hello,
    InFlight,
    Nack,
    Observe,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Welcome,
    decode_from_proxy,
)
from steersman.errors import ControlProtocolError
from steersman.table import Table
from steersman_operator.control.listener import ControlListener
from steersman_operator.control.outbox import Outbox, Sent
from steersman_operator.control.outgoing import Outgoing
from steersman_operator.control.session import Session
from steersman_operator.control.sessions import MAX_SESSIONS, Sessions
from steersman_operator.control.stats import ControlStats, session_stats
from steersman_operator.fleet.events import ProxyRef

_log = logging.getLogger("steersman.control")

SILENCE = 3
"""A proxy is lost after so many heartbeats without a word."""

LOG_EVERY = 10.0
"""Seconds between two log lines about bad frames."""

MAX_TERM_SAID = 2**61
"""A later term than that is not believed: nobody gets there by beginning terms, and there must be
terms left to begin after it (:mod:`steersman.control` ends at 2**62)."""


class Hub:
    """Sessions and the newest table. While it does not lead, it turns everybody away."""

    def __init__(
        self,
        listener: ControlListener,
        *,
        clock: Clock,
        send: Callable[[bytes, bytes], Sent],
        server_boot: str,
        heartbeat: float,
        grant: float,
        debounce: float,
        retry_after: float = 1.0,
        check_peer: Callable[[ProxyRef, str | None], bool] | None = None,
    ) -> None:
        self.on_schedule: Callable[[], None] | None = None
        """Called when :attr:`next_due` may be earlier than it was."""
        self._listener = listener
        self._clock = clock
        self._server_boot = server_boot
        self._heartbeat = heartbeat
        self._grant = grant
        self._retry_after = retry_after
        self._check_peer = check_peer
        self._sessions = Sessions()
        self._outbox = Outbox(
            self._sessions, clock=clock, debounce=debounce, send=send, gone=self._drop
        )
        self._leading = False
        self._term = 0
        self._api_url = ""
        self._leader_hint: str | None = None
        self._had_engines = False
        self._next_ping = clock.now() + heartbeat
        self._counts: Counter[str] = Counter()
        self._rejects: Counter[str] = Counter()
        self._logged = float("-inf")

    # --- leading ----------------------------------------------------------------------------------

    def lead(self, *, term: int, api_url: str) -> None:
        """Lead from now on. Nothing of an earlier term is known any more; proxies say hello anew."""
        self._retire("another term begins")
        self._leading, self._term, self._api_url = True, term, api_url
        self._leader_hint = None

    def follow(self, *, leader_hint: str | None) -> None:
        """Turn everybody away from now on; ``leader_hint`` says where the leader is, if known."""
        self._retire("another operator leads")
        self._leading, self._leader_hint = False, leader_hint

    def _retire(self, reason: str) -> None:
        self._outbox.clear()
        self._had_engines = False
        for session in self._sessions.end_all():
            self._outbox.post(session.peer, Retire(reason))

    def publish(
        self,
        table: Table,
        *,
        urgent: bool,
        peers: Sequence[str] = (),
        removed_ok: bool | None = None,
    ) -> None:
        """Have a table sent to every proxy. The newest replaces one that was not sent yet.

        ``removed_ok`` says of an empty table that it is meant; by default only one that follows one
        with engines in the same term is.
        """
        if not self._leading:
            return
        meant = self._had_engines if removed_ok is None else removed_ok
        self._had_engines = self._had_engines or bool(table.engines)
        outgoing = Outgoing(table, peers=tuple(peers), removed_ok=meant, made_at=self._clock.now())
        self._outbox.publish(outgoing, urgent=urgent)
        if self.on_schedule is not None:
            self.on_schedule()

    def watch(self, engines: Sequence[str]) -> None:
        """Have the requests in flight on these engines reported, and on no others."""
        self._outbox.watch(engines)

    def cut(self, engine: str, reason: str) -> None:
        """Have every proxy end what it has in flight on an engine."""
        self._outbox.cut(engine, reason)

    # --- time -------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """When :meth:`tick` has something to do, on the clock."""
        due = self._outbox.pacing.due
        return self._next_ping if due is None else min(due, self._next_ping)

    def tick(self) -> None:
        """Do what is due by now."""
        self._outbox.flush_table()
        now = self._clock.now()
        if now < self._next_ping:
            return
        self._next_ping = now + self._heartbeat
        for session in self._sessions:
            if not session.lost and now - session.heard > SILENCE * self._heartbeat:
                self._counts["lost"] += 1
                session.lost = True
                _log.warning("proxy %s is silent", session.ref.uid)
                self._listener.lost(session.ref)
            self._outbox.flush(session)
            if self._sessions.alive(session):
                self._outbox.ping(session)

    # --- what comes in ----------------------------------------------------------------------------

    def received(self, peer: bytes, frame: bytes, *, address: str | None) -> None:
        """A frame has come from ``peer``."""
        try:
            message = decode_from_proxy(frame)
        except ControlProtocolError as error:
            self.malformed(peer, str(error), address=address)
            return
        if isinstance(message, Hello):
            self._hello(peer, message, address=address)
            return
        session = self._sessions.of(peer)
        if session is None:
            # From before a restart, or before this operator led. (A refusal needs no answer.)
            if not isinstance(message, Reject | Bye):
                code = RejectCode.STALE if self._leading else RejectCode.NOT_LEADER
                self._reject(peer, code, "there is no such session; say hello")
            return
        session.heard = self._clock.now()
        if session.lost:
            session.lost = False
            _log.info("proxy %s speaks again", session.ref.uid)
        self._handle(session, message)
        self._outbox.flush(session)

    def malformed(self, peer: bytes, why: str, *, address: str | None) -> None:
        """What has come from ``peer`` is no message: its session ends."""
        self._counts["bad_frames"] += 1
        now = self._clock.now()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            where, count = address or "a local peer", self._counts["bad_frames"]
            _log.warning("a bad frame from %s, %d so far: %s", where, count, why)
        self._reject(peer, RejectCode.MALFORMED, why[:300])
        session = self._sessions.of(peer)
        if session is not None:
            self._drop(session)

    def _hello(self, peer: bytes, hello: Hello, *, address: str | None) -> None:
        refusal = self._refusal(hello, address=address)
        if refusal is not None:
            self._reject(peer, *refusal)
            # Of whoever may not join this says nothing: anybody could have every term begin anew.
            if self._leading and refusal[0] is RejectCode.NOT_LEADER:
                self._follows(hello.max_term)
            return
        ref = ProxyRef(hello.uid, hello.boot)
        session = self._sessions.begin(
            ref, peer=peer, address=address, build=hello.build, now=self._clock.now()
        )
        if session is None:
            self._reject(peer, RejectCode.UNAUTHORISED, f"more than {MAX_SESSIONS} proxies")
            return
        session.watch_due = bool(self._outbox.watched)
        welcome = Welcome(
            PROTOCOL,
            self._term,
            session.number,
            self._heartbeat,
            self._grant,
            self._api_url,
            self._server_boot,
        )
        if self._outbox.post(peer, welcome) is not Sent.OK:
            self._sessions.end(session)
            return
        _log.info("proxy %s (%s) has joined", ref.uid, address or "local")
        self._listener.joined(ref)
        self._outbox.flush(session)

    def _refusal(self, hello: Hello, *, address: str | None) -> tuple[RejectCode, str] | None:
        if not self._leading:
            return RejectCode.NOT_LEADER, "this operator does not lead"
        if not hello.proto_min <= PROTOCOL <= hello.proto_max:
            return RejectCode.BAD_PROTO, f"this operator speaks protocol {PROTOCOL}"
        ref = ProxyRef(hello.uid, hello.boot)
        if self._check_peer is not None and not self._check_peer(ref, address):
            where = address or "this process"
            return RejectCode.UNAUTHORISED, f"{where} is not the proxy {hello.uid[:100]}"
        if hello.max_term > self._term:
            # It would refuse our tables: whoever elects us has to give us a later term first.
            return RejectCode.NOT_LEADER, f"the proxy follows term {hello.max_term} already"
        return None

    def _handle(self, session: Session, message: FromProxy) -> None:
        ref = session.ref
        match message:
            case Ack(session=number):
                if number == session.number:
                    self._ack(session, message)
            case Nack(session=number, epoch=epoch, code=code, detail=detail):
                if number == session.number and epoch == session.outstanding:
                    session.refuses(epoch)
                    self._counts["nacks"] += 1
                    self._listener.nacked(ref, epoch, f"{code}: {detail}" if detail else code)
            case InFlight(session=number, epoch=epoch, counts=counts):
                if number == session.number:
                    self._listener.in_flight(ref, epoch, counts)
            case Pong():
                self._pong(session, message)
            case Observe(engine=engine, kind=kind, sample=sample) if kind == SAID_VERSION:
                self._listener.seen(ref, engine, sample or None)
            case Observe(engine=engine, kind=kind, sample=sample):
                self._listener.observed_by_proxy(ref, engine, kind, sample)
            case Bye(reason=reason):
                session.leaving = True
                _log.info("proxy %s leaves: %s", ref.uid, reason[:200])
                self._listener.heard(ref)
            case Reject(code=code, max_term=term):
                self._rejects[f"by_proxy_{code.value}"] += 1
                self._drop(session)
                self._follows(term)
            case Hello():
                raise AssertionError("begins a session, is not part of one")

    def _follows(self, term: int) -> None:
        """A proxy says that it follows ``term``."""
        if self._term < term <= MAX_TERM_SAID:
            self._listener.max_term_seen(term)

    def _ack(self, session: Session, ack: Ack) -> None:
        if ack.epoch == session.outstanding:
            if ack.digest != session.digest:
                self._resend(session)
                return
            session.took(now=self._clock.now())
        elif ack.epoch != session.acked:
            return  # nothing that was sent in this session
        self._listener.acked(session.ref, ack.epoch)

    def _pong(self, session: Session, pong: Pong) -> None:
        if not session.pong < pong.n <= session.ping:
            return
        session.pong = pong.n
        session.loop_lag = pong.loop_lag
        current = self._outbox.current
        settled = current is not None and session.settled_on(current.epoch)
        if session.unanswered or (
            settled and current is not None and (pong.epoch, pong.digest) != current.identity
        ):
            self._resend(session)
        self._listener.heard(session.ref)

    def _resend(self, session: Session) -> None:
        self._counts["resends"] += 1
        session.outstanding = None
        session.force = True

    def _drop(self, session: Session) -> None:
        """The session is over, and the proxy out of reach for now."""
        self._sessions.end(session)
        if not session.lost:
            self._counts["lost"] += 1
            self._listener.lost(session.ref)

    def _reject(self, peer: bytes, code: RejectCode, detail: str) -> None:
        self._rejects[code.value] += 1
        self._outbox.post(peer, Reject(code, self._retry_after, detail, self._leader_hint))

    # --- how it goes ------------------------------------------------------------------------------

    @property
    def stats(self) -> ControlStats:
        """How everything stands."""
        now, outbox, counts = self._clock.now(), self._outbox, self._counts
        current = outbox.current
        return ControlStats(
            leading=self._leading,
            term=self._term,
            epoch=None if current is None else current.epoch,
            sessions=tuple(
                session_stats(session, current=current, now=now) for session in self._sessions
            ),
            tables=outbox.tables,
            snapshots=outbox.snapshots,
            resends=counts["resends"],
            unsendable=outbox.unsendable,
            reconnects=self._sessions.reconnects,
            nacks=counts["nacks"],
            bad_frames=counts["bad_frames"],
            rejects=dict(self._rejects),
            lost=counts["lost"],
        )
