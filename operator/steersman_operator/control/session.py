"""One conversation with one proxy: what it was sent, and what it has said."""

from steersman.table import Epoch
from steersman_operator.fleet.events import ProxyRef


class Session:
    """State only; :class:`~steersman_operator.control.hub.Hub` acts on it.

    At most one table is outstanding: sent, and neither acknowledged nor refused. Newer ones wait
    outside, where the newest replaces those before it.
    """

    __slots__ = (
        "ack_seconds",
        "acked",
        "address",
        "build",
        "cuts",
        "digest",
        "force",
        "heard",
        "leaving",
        "loop_lag",
        "lost",
        "number",
        "outstanding",
        "peer",
        "ping",
        "ping_at_send",
        "pong",
        "ref",
        "refused",
        "sent_at",
        "watch_due",
    )

    def __init__(
        self,
        ref: ProxyRef,
        *,
        number: int,
        peer: bytes,
        address: str | None,
        build: str,
        now: float,
    ) -> None:
        self.ref = ref
        self.number = number
        """Differs between all sessions of this process."""
        self.peer = peer
        """Where ZeroMQ sends to."""
        self.address = address
        self.build = build
        self.heard = now
        self.lost = False
        self.leaving = False
        self.outstanding: Epoch | None = None
        self.digest = ""
        """Of the table that was sent last."""
        self.sent_at = now
        self.ping_at_send = 0
        """The last ping before the outstanding table."""
        self.acked: Epoch | None = None
        self.refused: Epoch | None = None
        """The table that the proxy could not use; it gets no other before there is one."""
        self.force = False
        """Send the table even if it was acknowledged or refused."""
        self.watch_due = False
        self.cuts: dict[str, str] = {}
        """Reasons by engine, of cuts that the socket has not taken yet."""
        self.ping = 0
        self.pong = 0
        self.loop_lag = 0.0
        self.ack_seconds: float | None = None

    def wants(self, epoch: Epoch) -> bool:
        """Whether the table of ``epoch`` is to be sent now."""
        if self.outstanding is not None:
            return False
        return self.force or epoch not in (self.acked, self.refused)

    def sent(self, epoch: Epoch, *, digest: str, now: float) -> None:
        """The table is on its way."""
        self.outstanding = epoch
        self.digest = digest
        self.sent_at = now
        self.ping_at_send = self.ping
        self.force = False

    def took(self, *, now: float) -> None:
        """The outstanding table is in force there."""
        self.acked, self.outstanding = self.outstanding, None
        self.refused = None
        self.ack_seconds = now - self.sent_at

    def refuses(self, epoch: Epoch) -> None:
        """The table cannot be used there."""
        self.outstanding = None
        self.refused = epoch

    @property
    def unanswered(self) -> bool:
        """Whether the answer to the outstanding table was lost, or never given.

        Messages keep their order, so a pong to a ping that followed the table comes after it.
        """
        return self.outstanding is not None and self.pong > self.ping_at_send

    def settled_on(self, epoch: Epoch) -> bool:
        """Whether the table of ``epoch`` is in force there, and nothing is on its way."""
        return self.outstanding is None and self.acked == epoch
