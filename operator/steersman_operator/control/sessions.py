"""Who takes part: the sessions by connection and by proxy."""

from collections.abc import Iterator

from steersman_operator.control.session import Session
from steersman_operator.fleet.events import ProxyRef

MAX_SESSIONS = 1024
"""Proxies at a time."""


class Sessions:
    """At most one session for each connection, and for each proxy process."""

    def __init__(self) -> None:
        self._by_peer: dict[bytes, Session] = {}
        self._by_ref: dict[ProxyRef, Session] = {}
        self._known: set[ProxyRef] = set()
        self._numbers = 0
        self.reconnects = 0
        """Sessions of proxies that had had one before."""

    def __iter__(self) -> Iterator[Session]:
        """All sessions as of now; the caller may begin and end some meanwhile."""
        return iter(list(self._by_peer.values()))

    def of(self, peer: bytes) -> Session | None:
        """The session of a connection."""
        return self._by_peer.get(peer)

    def alive(self, session: Session) -> bool:
        """Whether the session has not ended."""
        return self._by_peer.get(session.peer) is session

    def begin(
        self, ref: ProxyRef, *, peer: bytes, address: str | None, build: str, now: float
    ) -> Session | None:
        """A new session, which ends those before it of the same proxy or connection.

        :returns: ``None`` if there are too many, and none of them is lost.
        """
        for old in (self._by_ref.get(ref), self._by_peer.get(peer)):
            if old is not None:
                self.end(old)
        if len(self._by_peer) >= MAX_SESSIONS and not self._evict():
            return None
        if ref in self._known:
            self.reconnects += 1
        elif len(self._known) >= 4 * MAX_SESSIONS:
            self._known.clear()
        self._known.add(ref)
        self._numbers += 1
        session = Session(
            ref, number=self._numbers, peer=peer, address=address, build=build, now=now
        )
        self._by_peer[peer] = self._by_ref[ref] = session
        return session

    def end(self, session: Session) -> None:
        """The session is over. Idempotent."""
        if self.alive(session):
            del self._by_peer[session.peer]
        if self._by_ref.get(session.ref) is session:
            del self._by_ref[session.ref]

    def end_all(self) -> list[Session]:
        """All sessions are over; those that were."""
        ended = list(self)
        self._by_peer.clear()
        self._by_ref.clear()
        return ended

    def _evict(self) -> bool:
        lost = next((session for session in self if session.lost), None)
        if lost is not None:
            self.end(lost)
        return lost is not None
