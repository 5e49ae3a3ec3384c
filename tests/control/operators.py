"""A follower without sockets, and the operators that a test plays to it."""

from typing import Any, TypeVar

from steersman.clock import FakeClock
from steersman.control import (
    FromOperator,
    FromProxy,
    Ping,
    Reject,
    RejectCode,
    Snapshot,
    Welcome,
    decode_from_proxy,
    encode,
)
from steersman.table import Table
from steersman_proxy.control.follower import Follower
from steersman_proxy.control.operator_link import OperatorLink
from tests.control.support import fleet

M = TypeVar("M")


class FakeOperator:
    """One operator address, and what the proxy said to it."""

    def __init__(self, stage: "Stage", address: str, *, boot: str) -> None:
        self.stage = stage
        self.boot = boot
        self.heard: list[FromProxy] = []
        self.takes = True
        """Whether the socket takes frames."""
        self.session = 0
        self.link = OperatorLink(address, send=self._send)
        self._ping = 0
        stage.follower.add(self.link)

    def _send(self, frame: bytes) -> bool:
        if self.takes:
            self.heard.append(decode_from_proxy(frame))
        return self.takes

    def says(self, message: FromOperator) -> None:
        self.stage.follower.received(self.link, encode(message))

    def connect(self) -> None:
        self.stage.follower.connected(self.link)

    def disconnect(self) -> None:
        self.stage.follower.disconnected(self.link)

    def welcome(self, term: int = 1, *, grant: float = 10.0) -> None:
        self.session += 1
        self.says(Welcome(1, term, self.session, 2.0, grant, f"http://{self.boot}", self.boot))

    def join(self, term: int = 1, **more: Any) -> None:
        """Connect, and take the proxy in."""
        self.connect()
        self.welcome(term, **more)

    def reject(self, code: RejectCode = RejectCode.NOT_LEADER, after: float = 1.0) -> None:
        self.says(Reject(code, after, f"because {code.value}"))

    def sends(self, table: Table, *, session: int | None = None, **more: Any) -> None:
        digest = more.pop("digest", table.digest())
        self.says(Snapshot(self.session if session is None else session, table, digest, **more))

    def ping(self, *, heard: int = 0) -> None:
        self._ping += 1
        self.says(Ping(self._ping, None, "", heard))

    def got(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M:
        return self.got(kind)[-1]


class Stage:
    """A proxy's fleet and follower on a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fleet = fleet(self.clock)
        self.cuts: list[tuple[str, str]] = []
        self.follower = Follower(
            self.fleet,
            clock=self.clock,
            uid="pod",
            boot="boot",
            build="test",
            cut=lambda engine, reason: self.cuts.append((engine, reason)),
        )
        self.fleet.on_idle = self.follower.engine_idle
        self.fleet.on_news = self.follower.engine_said

    def operator(self, name: str = "a", *, boot: str | None = None) -> FakeOperator:
        return FakeOperator(self, f"tcp://{name}:1", boot=boot or name)

    @property
    def epoch(self) -> str | None:
        return None if self.fleet.view is None else str(self.fleet.view.epoch)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with everything that is due in it done when it is."""
        end = self.clock.now() + seconds
        while (due := self.follower.next_due) is not None and due <= end:
            self.clock.advance(max(0.0, due - self.clock.now()))
            self.follower.tick()
        self.clock.advance(end - self.clock.now())
