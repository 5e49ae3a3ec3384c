"""Which operator to follow, and what to do with what it says. It does no I/O.

Of all operators the one with the highest term ever seen is followed; everybody else is turned away,
with that term, so that a leader that was deposed learns of it.

**Freshness.** The leader's word is good for the grant time after the last message of *ours* that it
has certainly heard: the hello that it welcomed, or the pong that a ping confirms. Counting from the
last message that we heard would be wrong where it matters: after a stall, old pings still wait in
the socket, and on a broken link only one direction may work. The operator counts a silent proxy out
after that same time, measured at its end and thus later.
"""

import logging
from collections.abc import Callable

from steersman.clock import Clock
from steersman.control import (
    PROTOCOL,
    SAID_VERSION,
    Ack,
    Bye,
    Cut,
    Hello,
    InFlight,
    Nack,
    Observe,
    Ping,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Snapshot,
    UnusableTable,
    Watch,
    Welcome,
    decode_from_operator,
)
from steersman.errors import ControlProtocolError
from steersman.table import Epoch, Table
from steersman_proxy.control.contact import Contact
from steersman_proxy.control.in_flight import InFlightReporter
from steersman_proxy.control.news import VersionNews
from steersman_proxy.control.operator_link import LinkState, OperatorLink
from steersman_proxy.control.status import ControlStatus, LinkStatus
from steersman_proxy.control.tables import Refusal, Tables
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet

_log = logging.getLogger("steersman.control")

ANSWER = 2.0
"""Seconds after which a hello without an answer is said again."""

REFUSED = 5.0
"""Seconds after which to ask an operator again that will not have us."""

SILENCE = 3
"""Heartbeats after which to say hello again to a leader that says nothing."""

LOG_EVERY = 10.0

HANDSHAKE = "the connection was refused; do the control keys match?"


class Follower:
    """Follows the leader among the links, and applies its tables to ``fleet``.

    ``cut`` is called with an engine's id and a reason, ``on_applied`` with each table in force.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Clock,
        uid: str,
        boot: str,
        build: str,
        cut: Callable[[str, str], None],
        on_applied: Callable[[Table], None] | None = None,
    ) -> None:
        self.on_schedule: Callable[[], None] | None = None
        """Called when :attr:`next_due` may be earlier than it was."""
        self.leader: OperatorLink | None = None
        self.peers: tuple[str, ...] = ()
        """Addresses of the other ready proxies, as the leader said last."""
        self.loop_lag = 0.0
        """How late the loop was at worst since the last pong; the shell writes it."""
        self._clock = clock
        self._uid = uid
        self._boot = boot
        self._build = build
        self._cut = cut
        self._links: list[OperatorLink] = []
        self._reporter = InFlightReporter(fleet, clock=clock, send=self._report)
        self._reports = 0
        self._news = VersionNews(clock=clock, send=self._tell_version)
        self._tables = Tables(fleet, clock=clock, on_applied=on_applied)
        self._contact = Contact(fleet, clock=clock)
        self._max_term = 0
        self._leader_epoch: Epoch | None = None
        self._sessions = 0
        self._bad_frames = 0
        self._logged = float("-inf")

    # --- links ------------------------------------------------------------------------------------

    def add(self, link: OperatorLink) -> None:
        """An address at which an operator may be."""
        self._links.append(link)

    def remove(self, link: OperatorLink) -> None:
        """An address at which no operator is any more."""
        self._links.remove(link)
        if link is self.leader:
            self.leader = None

    def connected(self, link: OperatorLink) -> None:
        """A connection has come about: nothing said on the one before counts."""
        self._unlead(link)
        link.go(LinkState.WAITING, "connected", ask_at=self._clock.now())
        self._ask_if_due(link)
        self._scheduled()

    def disconnected(self, link: OperatorLink) -> None:
        """The connection is gone. The table stays; freshness ends by itself."""
        if link.detail != HANDSHAKE:
            link.go(LinkState.DOWN, "not connected")
        self._unlead(link)

    def refused(self, link: OperatorLink) -> None:
        """A connection came about, and was closed before either end knew the other."""
        if link.detail != HANDSHAKE:
            _log.error("the operator at %s: %s", link.address, HANDSHAKE)
        link.go(LinkState.DOWN, HANDSHAKE)

    @property
    def fresh(self) -> bool:
        """Whether the leader's word is good now."""
        return self._contact.fresh

    def _unlead(self, link: OperatorLink) -> None:
        if link is not self.leader:
            return
        _log.warning("the operator at %s is gone; the last table stays in force", link.address)
        self.leader = None
        now = self._clock.now()
        for other in self._links:
            if other.state is LinkState.WAITING:
                other.ask_at = now
        self._scheduled()

    def _ask_if_due(self, link: OperatorLink) -> None:
        now = self._clock.now()
        if link.ask_at is None or now < link.ask_at:
            return
        leader = self.leader
        if leader not in (None, link) and link.server_boot == leader.server_boot != "":
            # Another address of the process that is followed already; it would end that session.
            link.go(LinkState.WAITING, "another address of the leader", ask_at=now + REFUSED)
            return
        epoch, term = self._tables.epoch, self._max_term
        hello = Hello(PROTOCOL, PROTOCOL, self._uid, self._boot, self._build, (), epoch, term)
        sent = link.send(hello)
        if sent and link.asked_at is None:
            link.asked_at = now
        link.ask_at = now + ANSWER
        if sent and link.state is LinkState.WAITING:
            link.state, link.detail = LinkState.ASKING, "no answer yet"

    # --- time -------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When :meth:`tick` has something to do, on the clock."""
        times = [link.ask_at for link in self._links]
        times += [self._reporter.due, self._contact.due, self._news.due]
        return min((time for time in times if time is not None), default=None)

    def tick(self) -> None:
        """Do what is due by now."""
        self._contact.tick()
        for link in self._links:
            self._ask_if_due(link)
        self._reporter.tick()
        self._news.tick()

    def engine_idle(self, engine: str) -> None:
        """The last request of an engine has ended."""
        if self._reporter.idle(engine):
            self._scheduled()

    def engine_said(self, engine: Engine) -> None:
        """An engine's answer has named another version than the table does."""
        if self._news.note(engine):
            self._scheduled()

    def leave(self, reason: str) -> None:
        """This process shuts down; what runs is still reported until it has ended."""
        if self.leader is not None:
            self.leader.send(Bye(reason))
        self._reporter.refresh()
        self._scheduled()

    def flush(self) -> None:
        """Report now what would be reported soon."""
        self._reporter.tick()

    # --- what comes in ----------------------------------------------------------------------------

    def received(self, link: OperatorLink, frame: bytes) -> None:
        """A frame has come from an operator."""
        try:
            message = decode_from_operator(frame)
        except UnusableTable as error:
            if self._is_from_leader(link, session=error.session):
                self._refuse(link, error.epoch, Refusal("undecodable", str(error)))
            return
        except ControlProtocolError as error:
            self._bad_frame(link, error)
            return
        link.heard = self._clock.now()
        match message:
            case Welcome():
                self._welcome(link, message)
            case Reject():
                self._rejected(link, message)
            case _ if link.state is not LinkState.JOINED:
                if isinstance(message, Snapshot) and link.term < self._max_term:
                    self._turn_away(link)
                return
            case Snapshot():
                self._snapshot(link, message)
            case Ping():
                self._ping(link, message)
            case Watch(engines=engines):
                self._reporter.watch(engines)
            case Cut(engine=engine, reason=reason):
                _log.warning("requests on engine %s are cut: %s", engine, reason)
                self._cut(engine, reason)
            case Retire(reason=reason):
                link.go(LinkState.WAITING, reason, ask_at=link.heard)
                self._unlead(link)
                self._ask_if_due(link)
        if link.state is LinkState.JOINED and link.asked_at is None:
            link.ask_at = link.heard + SILENCE * link.heartbeat
        self._scheduled()

    def _bad_frame(self, link: OperatorLink, error: ControlProtocolError) -> None:
        """Not a word of ours is wrong, so the session goes on; what was said is not understood."""
        self._bad_frames += 1
        now = self._clock.now()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.error("a bad frame from the operator at %s: %s", link.address, error)

    def _welcome(self, link: OperatorLink, welcome: Welcome) -> None:
        asked_at = link.asked_at
        if asked_at is None:
            return  # to a hello on a connection before this one
        leader = self.leader
        if welcome.proto != PROTOCOL:
            self._wait(link, f"it speaks protocol {welcome.proto}", REFUSED)
            return
        link.term, link.server_boot = welcome.term, welcome.server_boot
        if welcome.term < self._max_term:
            self._turn_away(link)
            return
        if (
            leader is not None
            and leader is not link
            and leader.term == welcome.term
            and leader.server_boot != welcome.server_boot
            and leader.proven_at + leader.grant > self._clock.now()
        ):
            _log.error("both %s and %s lead term %d", leader.address, link.address, leader.term)
            self._wait(link, "another operator leads the same term", REFUSED)
            return
        self._max_term = welcome.term
        if leader is not None and leader is not link:
            self._wait(leader, "another operator leads", 1.0)
        link.go(LinkState.JOINED)
        link.session = welcome.session
        link.api_url = welcome.api_url
        link.heartbeat = max(0.01, welcome.heartbeat)
        link.grant = welcome.grant
        self.leader = link
        self._sessions += 1
        _log.info("following the operator at %s, term %d", link.address, welcome.term)
        # What another leader watched is not watched by this one.
        self._reporter.watch(())
        # Not good for anything yet: the table in force may be one that the operator has not waited
        # for this proxy with (a fenced one was counted out). It is with the first table of the session.
        link.has_table = False
        self._heard(link, asked_at)

    def _heard(self, link: OperatorLink, at: float) -> None:
        """The leader has certainly heard what was sent at ``at``."""
        link.proven_at = at
        if link.has_table:
            self._contact.prove(at, grant=link.grant)

    def _rejected(self, link: OperatorLink, reject: Reject) -> None:
        now = self._clock.now()
        if reject.code is RejectCode.STALE:
            # It does not know our session, for instance because it has just started. A hello that
            # is on its way already will do.
            if link.state is LinkState.JOINED and link.asked_at is None:
                link.ask_at = now
                self._ask_if_due(link)
            return
        wait = max(0.05, min(60.0, reject.retry_after))
        if reject.code is not RejectCode.NOT_LEADER:
            wait = max(wait, REFUSED)
            if link.detail != reject.detail:
                _log.error("the operator at %s refuses: %s", link.address, reject.detail)
        self._wait(link, reject.detail or reject.code.value, wait)
        self._unlead(link)

    def _wait(self, link: OperatorLink, detail: str, seconds: float) -> None:
        link.go(LinkState.WAITING, detail, ask_at=self._clock.now() + seconds)

    def _turn_away(self, link: OperatorLink) -> None:
        """It leads no more, and may not know it."""
        detail = f"term {self._max_term} is followed already"
        link.send(Reject(RejectCode.STALE, 1.0, detail, None, self._max_term))
        self._wait(link, detail, 1.0)

    def _ping(self, link: OperatorLink, ping: Ping) -> None:
        self._leader_epoch = ping.epoch
        heard = link.heard_pong(ping.heard)
        if heard is not None:
            self._heard(link, heard)
        now, tables = self._clock.now(), self._tables
        if link.send(Pong(ping.n, tables.epoch, tables.digest, max(0.0, self.loop_lag))):
            self.loop_lag = 0.0
            link.pong_sent(ping.n, at=now)

    # --- tables -----------------------------------------------------------------------------------

    def _is_from_leader(self, link: OperatorLink, *, session: int) -> bool:
        return link is self.leader and link.state is LinkState.JOINED and link.session == session

    def _snapshot(self, link: OperatorLink, snapshot: Snapshot) -> None:
        if not self._is_from_leader(link, session=snapshot.session):
            return  # of a session before
        epoch, current = snapshot.table.epoch, self._tables.epoch
        if epoch.term != link.term:
            detail = f"it is of term {epoch.term}, the session of term {link.term}"
            self._refuse(link, epoch, Refusal("term", detail))
            return
        if current is not None and epoch < current:
            self._turn_away(link)
            self._unlead(link)
            return
        if not self._tables.in_force(snapshot):
            refusal = self._tables.apply(snapshot)
            if refusal is not None:
                self._refuse(link, epoch, refusal)
                return
        self.peers = snapshot.peers
        link.send(Ack(snapshot.session, epoch, snapshot.digest))
        link.has_table = True
        self._heard(link, link.proven_at)
        # A zero counts only by this table.
        self._reporter.refresh()

    def _refuse(self, link: OperatorLink, epoch: Epoch, refusal: Refusal) -> None:
        self._tables.note(epoch, refusal)
        code, detail = refusal.code, refusal.detail[:1000]
        link.send(Nack(link.session, epoch, self._tables.epoch, code, detail))

    def _report(self, counts: dict[str, int]) -> bool:
        epoch, leader = self._tables.epoch, self.leader
        if leader is None or epoch is None:
            return False
        self._reports += 1
        return leader.send(InFlight(leader.session, epoch, counts, self._reports))

    def _tell_version(self, engine: str, version: str | None) -> bool:
        leader = self.leader
        if leader is None or not leader.has_table:
            return False  # it says what the engine is first
        return leader.send(Observe(engine, SAID_VERSION, version or ""))

    # --- how it goes ------------------------------------------------------------------------------

    def _scheduled(self) -> None:
        if self.on_schedule is not None:
            self.on_schedule()

    @property
    def status(self) -> ControlStatus:
        """How everything stands."""
        now, tables, leader = self._clock.now(), self._tables, self.leader
        proven, made = self._contact.proven_at, tables.made_at
        return ControlStatus(
            fresh=self._contact.fresh,
            silent=None if proven is None else max(0.0, now - proven),
            term=self._max_term,
            epoch=tables.epoch,
            digest=tables.digest,
            leader_epoch=self._leader_epoch,
            leader=None if leader is None else leader.address,
            api_url=None if leader is None else leader.api_url,
            age=None if made is None else max(0.0, now - made),
            reconnects=max(0, self._sessions - 1),
            applied=tables.applied,
            apply_seconds=tables.apply_seconds,
            nacks=tables.refused,
            bad_frames=self._bad_frames,
            last_problem=tables.problem,
            links=tuple(
                LinkStatus(address=link.address, state=link.state.value, detail=link.detail)
                for link in self._links
            ),
        )
