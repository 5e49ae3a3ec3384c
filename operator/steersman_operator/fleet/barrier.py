"""The barrier: when no proxy can send to an engine any more.

*Invariant B.* A call that disturbs an engine is made only if, for the table that closed its gate,
every required proxy has acknowledged that table or a later one, and, where the operation needs it,
has reported nothing in flight on the engine under such a table.

A proxy that has acknowledged starts nothing by an older table (it reads the table, chooses and
counts in one turn of its loop), so a zero reported afterwards is final for as long as the gate stays
closed. Required is every proxy process that exists: what the platform lists, and what has said
hello. A missed heartbeat, a lost connection and a partition are not death.
"""

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

    @property
    def acknowledged(self) -> bool:
        """Whether nobody starts a request any more."""
        return not self.unacked

    @property
    def clear(self) -> bool:
        """Whether nobody has a request in flight either."""
        return not self.unacked and not self.busy

    def sentence(self, *, now: float, proxies: dict[str, ProxyState]) -> str:
        """What is waited for, for people."""
        parts = []
        for uid in self.unacked:
            heard = proxies[uid].heard
            silent = "never heard" if heard is None else f"silent for {now - heard:.0f} s"
            state = "has not acknowledged" if proxies[uid].connected else f"unreachable, {silent}"
            parts.append(f"{uid} ({state})")
        for uid, count in self.busy:
            parts.append(
                f"{uid} ({'in flight unknown' if count is None else f'{count} in flight'})"
            )
        return "waiting for " + ", ".join(parts) if parts else "all proxies have let go"


def barrier(
    engine: EngineState,
    *,
    proxies: dict[str, ProxyState],
    on_unreachable: OnUnreachable,
    now: float,
    since: float,
    timing: Timing,
) -> Barrier:
    """Where the barrier of a closed engine stands. ``since`` is when this operator began to lead.

    An engine whose closing has not been published has everybody missing.
    """
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
    return Barrier(tuple(unacked), tuple(busy), tuple(fenced))


def acknowledged(proxy: ProxyState, closed_at: Epoch) -> bool:
    """Whether the proxy has applied the closing table or a later one of the same or a later term."""
    return proxy.acked is not None and proxy.acked >= closed_at


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
    elected.
    """
    last = since if proxy.heard is None else max(proxy.heard, since)
    return now - last > timing.grant + timing.fence_margin
