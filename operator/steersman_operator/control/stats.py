"""What the metrics and the status of the control socket are made from."""

import msgspec

from steersman.table import Epoch
from steersman_operator.control.outgoing import Outgoing
from steersman_operator.control.session import Session
from steersman_operator.fleet.events import ProxyRef


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """One proxy, as its session stands now. Durations in seconds."""

    ref: ProxyRef
    address: str | None
    """The IP address that it connects from; ``None`` on a local socket."""
    build: str
    acked: Epoch | None
    lag: float
    """Since the newest table was sent to anybody, if this proxy has not acknowledged it; else 0."""
    ack_seconds: float | None
    """From sending its last acknowledged table to the acknowledgement."""
    silent: float
    """Since it was heard."""
    lost: bool
    leaving: bool
    """It has said that it shuts down."""
    loop_lag: float
    """How late its event loop was, as it said last."""


class ControlStats(msgspec.Struct, frozen=True, kw_only=True):
    """The socket as a whole. Numbers of events count from the start of the process."""

    leading: bool
    term: int
    epoch: Epoch | None
    """Of the newest table that was sent."""
    sessions: tuple[SessionStats, ...]
    tables: int
    """Different tables that were sent."""
    snapshots: int
    """Tables that were sent, to each proxy counted anew."""
    resends: int
    """Of those, because a proxy had another table in force than it was sent."""
    unsendable: int
    """Tables that were not sent, because no proxy could have read them."""
    reconnects: int
    """Hellos of proxies that had said one before."""
    nacks: int
    bad_frames: int
    rejects: dict[str, int]
    """By code."""
    lost: int


def session_stats(session: Session, *, current: Outgoing | None, now: float) -> SessionStats:
    """How a session stands against the newest table."""
    behind = current is not None and session.acked != current.epoch
    return SessionStats(
        ref=session.ref,
        address=session.address,
        build=session.build,
        acked=session.acked,
        lag=max(0.0, now - current.made_at) if behind and current is not None else 0.0,
        ack_seconds=session.ack_seconds,
        silent=max(0.0, now - session.heard),
        lost=session.lost,
        leaving=session.leaving,
        loop_lag=session.loop_lag,
    )
