"""Which proxy processes exist, and what each has acknowledged and reported."""

from steersman.table import Epoch
from steersman_operator.fleet import barrier
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.events import ProxyRef
from steersman_operator.fleet.state import EngineState, ProxyState

REMEMBERED = 256
"""How many of the proxies that have ended are remembered; hellos are late by seconds, not by days."""


def required(draft: Draft, refs: tuple[ProxyRef, ...]) -> None:
    """The platform's account. A listed process that is not listed any more has ended.

    A reference without a boot means whichever process has the uid: a platform that never uses one
    twice need not know boots. Where it does tell boots apart and names another one than has said
    hello, both are waited for: one of the two accounts is old (:attr:`ProxyState.disputed`).

    One that has said hello and was never listed stays: the platform may be behind.
    """
    draft.change(proxies_known=True)
    wanted = {ref.uid: ref for ref in refs}
    gone = [uid for uid, proxy in draft.proxies.items() if proxy.listed and uid not in wanted]
    for uid in gone:
        draft.remove_proxy(uid)
    ended = [uid for uid in (*draft.state.ended, *gone) if uid not in wanted]
    draft.change(ended=tuple(ended[-REMEMBERED:]))
    for uid, ref in wanted.items():
        if uid in draft.proxies:
            draft.change_proxy(uid, listed=True, listed_boot=ref.boot)
        else:
            draft.put_proxy(ProxyState(ref=ref, met=draft.now, listed=True, listed_boot=ref.boot))


def joined(draft: Draft, ref: ProxyRef) -> None:
    """A proxy has connected; it has acknowledged nothing on this connection yet.

    Another boot under the same uid: a process has one identity for its life, so the old one ended.
    """
    known = draft.proxies.get(ref.uid) or ProxyState(ref=ref, met=draft.now)
    draft.put_proxy(
        ProxyState(
            ref=ref,
            met=known.met,
            listed=known.listed,
            listed_boot=known.listed_boot,
            connected=True,
            heard=draft.now,
        )
    )


def lost(draft: Draft, ref: ProxyRef) -> None:
    """A connection is gone. The proxy may serve on; what it acknowledged stays true.

    Except for one whose end the platform has told: its hello had come late, after that.
    """
    if not _current(draft, ref):
        return
    if ref.uid in draft.state.ended:
        draft.remove_proxy(ref.uid)
    else:
        draft.change_proxy(ref.uid, connected=False)


def heard(draft: Draft, ref: ProxyRef) -> None:
    """A sign of life from a routing loop, also of a proxy whose connection had gone silent."""
    if _current(draft, ref):
        draft.change_proxy(ref.uid, heard=draft.now, connected=True)


def acked(draft: Draft, ref: ProxyRef, epoch: Epoch) -> tuple[str, ...]:
    """A table is in force at a proxy; returns the engines under an operation that it has closed."""
    if not _current(draft, ref) or epoch.term != draft.state.term or epoch > draft.state.epoch:
        return ()
    known = draft.proxies[ref.uid].acked
    newest = epoch if known is None else max(known, epoch)
    draft.change_proxy(ref.uid, acked=newest, heard=draft.now)
    if newest == known:
        return ()
    return tuple(
        name
        for name, engine in draft.engines.items()
        if engine.op is not None
        and engine.closed_at is not None
        and (known is None or known < engine.closed_at)
        and engine.closed_at <= newest
    )


def nacked(draft: Draft, ref: ProxyRef, epoch: Epoch, detail: str) -> None:
    """A table was refused: it is not acknowledged, so that every barrier waits for this proxy."""
    heard(draft, ref)


def in_flight(
    draft: Draft, ref: ProxyRef, *, epoch: Epoch, counts: dict[str, int]
) -> tuple[str, ...]:
    """What a proxy has running, by the table of ``epoch``; older reports change nothing.

    Returns the engines of which it says something else than before.
    """
    if not _current(draft, ref) or epoch.term != draft.state.term:
        return ()
    before = draft.proxies[ref.uid]
    reports = dict(before.in_flight)
    for engine, count in counts.items():
        last = reports.get(engine)
        if last is None or last[1] <= epoch:
            reports[engine] = (count, epoch)
    known = {engine: report for engine, report in reports.items() if engine in draft.engines}
    after = draft.change_proxy(ref.uid, in_flight=known, heard=draft.now)
    return tuple(
        name
        for name in counts
        if name in draft.engines and _says_else(draft.engines[name], before, after)
    )


def _says_else(engine: EngineState, before: ProxyState, after: ProxyState) -> bool:
    """Whether the barrier of an engine takes two reports for different ones."""
    name, closed_at = engine.spec.id, engine.closed_at
    if closed_at is None:
        return False
    return barrier.in_flight(before, name, closed_at) != barrier.in_flight(after, name, closed_at)


def _current(draft: Draft, ref: ProxyRef) -> bool:
    """Whether a message is from the process that is known under its uid.

    One from the listed process, after somebody else has said hello in its name and has gone: that
    hello was an old one that came late.
    """
    known = draft.proxies.get(ref.uid)
    if known is None or known.ref == ref:
        return known is not None
    if known.disputed and not known.connected and known.listed_boot == ref.boot:
        joined(draft, ref)
        return True
    return False
