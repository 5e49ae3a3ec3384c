"""A hub without a socket: what it sends is kept, by peer, and decoded."""

from typing import Any, TypeVar

from steersman.clock import FakeClock
from steersman.control import (
    Ack,
    FromOperator,
    FromProxy,
    Hello,
    Ping,
    Pong,
    Snapshot,
    Welcome,
    decode_from_operator,
    encode,
)
from steersman.table import Table
from steersman_operator.control.hub import Hub
from steersman_operator.control.outbox import Sent
from tests.control.support import Journal

M = TypeVar("M")


class Wire:
    """A hub, and the proxies that a test plays."""

    def __init__(self, *, term: int | None = 1, **settings: Any) -> None:
        self.clock = FakeClock()
        self.journal = Journal()
        self.inbox: dict[bytes, list[FromOperator]] = {}
        self.answer: dict[bytes, Sent] = {}
        timing: dict[str, Any] = {"heartbeat": 2.0, "grant": 10.0, "debounce": 0.025}
        self.hub = Hub(
            self.journal,
            clock=self.clock,
            send=self._send,
            server_boot="server",
            **(timing | settings),
        )
        if term is not None:
            self.hub.lead(term=term, api_url="http://operator:1")

    def _send(self, peer: bytes, frame: bytes) -> Sent:
        answer = self.answer.get(peer, Sent.OK)
        if answer is Sent.OK:
            self.inbox.setdefault(peer, []).append(decode_from_operator(frame))
        return answer

    def say(self, peer: bytes, message: FromProxy, address: str | None = "10.0.0.1") -> None:
        self.hub.received(peer, encode(message), address=address)

    def hello(self, peer: bytes = b"p", *, boot: str = "boot", **fields: Any) -> int:
        """Say hello as the proxy named like the peer; the number of the session."""
        made = {"proto_min": 1, "proto_max": 1, "uid": peer.decode(), "boot": boot} | fields
        self.say(peer, Hello(**made))
        return self.last(peer, Welcome).session

    def got(self, peer: bytes, kind: type[M]) -> list[M]:
        return [message for message in self.inbox.get(peer, []) if isinstance(message, kind)]

    def last(self, peer: bytes, kind: type[M]) -> M:
        return self.got(peer, kind)[-1]

    def ack(self, peer: bytes, session: int) -> None:
        """Acknowledge the table that came last."""
        snapshot = self.last(peer, Snapshot)
        self.say(peer, Ack(session, snapshot.table.epoch, snapshot.digest))

    def pong(self, peer: bytes = b"p", **fields: Any) -> None:
        """Answer the last ping with the table that came last, or with ``fields``."""
        snapshot = self.last(peer, Snapshot)
        made: dict[str, Any] = {
            "n": self.last(peer, Ping).n,
            "epoch": snapshot.table.epoch,
            "digest": snapshot.digest,
        }
        self.say(peer, Pong(**(made | fields)))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with everything that is due in it done when it is."""
        end = self.clock.now() + seconds
        while self.hub.next_due <= end:
            self.clock.advance(max(0.0, self.hub.next_due - self.clock.now()))
            self.hub.tick()
        self.clock.advance(end - self.clock.now())

    def tables(self, peer: bytes = b"p") -> list[str]:
        """The epochs of the tables that the peer was sent."""
        return [str(snapshot.table.epoch) for snapshot in self.got(peer, Snapshot)]

    def publish(self, table: Table, *, urgent: bool = True, **more: Any) -> None:
        self.hub.publish(table, urgent=urgent, **more)


def wire_hello(uid: str, boot: str = "boot") -> Hello:
    return Hello(1, 1, uid, boot)
