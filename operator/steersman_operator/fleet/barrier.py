"""The barrier: when no proxy can send to an engine any more.

*Invariant B.* A call that disturbs an engine is made only if, for the table that closed its gate,
every required proxy has acknowledged that table or a later one, and, where the operation needs it,
has reported nothing in flight on the engine under such a table.

A proxy that has acknowledged starts nothing by an older table (it reads the table, chooses and
counts in one turn of its loop), so a zero reported afterwards is final for as long as the gate stays
closed. Required is every proxy process that exists: what the platform lists, and what has said
hello. A missed heartbeat, a lost connection and a partition are not death.
"""

from collections.abc import Mapping

import msgspec

from steersman.table import Epoch
from steersman_operator.fleet.spec import OnUnreachable
from steersman_operator.fleet.state import EngineState, ProxyState, Timing


class Barrier(msgspec.Struct, frozen=True):
    """What is missing."""

    unacked: tuple[str, ...] = ()
    """Proxies that may still choose by an older table."""
    busy: tuple[tuple[str, int | None], ...] = ()
    """Proxies with requests in flight; ``None`` if they have not said."""
    fenced: tuple[str, ...] = ()
    """Proxies that were counted out."""
    unpublished: bool = False
    """Whether there is no table yet that closes the gate; then nobody can have let go, and who is
    required may not be known either."""

    @property
    def acknowledged(self) -> bool:
        """Whether nobody starts a request any more."""
        return not self.unpublished and not self.unacked

    @property
    def clear(self) -> bool:
        """Whether nobody has a request in flight either."""
        return self.acknowledged and not self.busy

    def sentence(self, *, now: float, proxies: Mapping[str, ProxyState]) -> str:
        """What is waited for, for people."""
        if self.unpublished:
            return "waiting for the first table"
        parts = [f"{uid} ({_why_unacked(proxies[uid], now=now)})" for uid in self.unacked]
        for uid, count in self.busy:
            parts.append(
                f"{uid} ({'in flight unknown' if count is None else f'{count} in flight'})"
            )
        return "waiting for " + ", ".join(parts) if parts else "all proxies have let go"


def _why_unacked(proxy: ProxyState, *, now: float) -> str:
    if proxy.disputed:
        return f"is boot {proxy.ref.boot}, the platform still lists {proxy.listed_boot}"
    if proxy.connected:
        return "has not acknowledged"
    if proxy.heard is None:
        return "unreachable, never heard"
    return f"unreachable, silent for {now - proxy.heard:.0f} s"


def barrier(
    engine: EngineState,
    *,
    proxies: Mapping[str, ProxyState],
    on_unreachable: OnUnreachable,
    now: float,
    since: float,
    timing: Timing,
) -> Barrier:
    """Where the barrier of a closed engine stands. ``since`` is when this operator began to lead."""
    closed_at = engine.closed_at
    unacked: list[str] = []
    busy: list[tuple[str, int | None]] = []
    fenced: list[str] = []
    for uid, proxy in proxies.items():
        if closed_at is None or not acknowledged(proxy, closed_at):
            if on_unreachable is OnUnreachable.FENCE and is_fenced(
                proxy, now=now, since=since, timing=timing
            ):
                fenced.append(uid)
            else:
                unacked.append(uid)
            continue
        count = in_flight(proxy, engine.spec.id, closed_at)
        if count != 0:
            busy.append((uid, count))
    return Barrier(
        unacked=tuple(unacked),
        busy=tuple(busy),
        fenced=tuple(fenced),
        unpublished=closed_at is None,
    )


def acknowledged(proxy: ProxyState, closed_at: Epoch) -> bool:
    """Whether the proxy has applied the closing table or a later one of the same or a later term."""
    return not proxy.disputed and proxy.acked is not None and proxy.acked >= closed_at


def in_flight(proxy: ProxyState, engine: str, closed_at: Epoch) -> int | None:
    """What the proxy last said of an engine, if that was under the closing table or a later one."""
    report = proxy.in_flight.get(engine)
    if report is None:
        return None
    count, epoch = report
    return count if epoch >= closed_at else None


def is_fenced(proxy: ProxyState, *, now: float, since: float, timing: Timing) -> bool:
    """Whether the proxy has stopped by itself: out of contact for a grant time and a margin.

    A proxy that this leader has never heard may have heard the one before until this one was
    elected; one that has only just been named may have been heard under another account of it.
    """
    last = max(since, proxy.met if proxy.heard is None else proxy.heard)
    return now - last > timing.grant + timing.fence_margin
