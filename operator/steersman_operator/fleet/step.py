"""The core as one function: what follows from an event."""

from steersman.table import Epoch
from steersman_operator.fleet import (
    awaiting,
    calling,
    draining,
    goals,
    leadership,
    looking,
    membership,
    proxies,
)
from steersman_operator.fleet.commands import Command, Publish, Watch
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.events import (
    Acked,
    CallEnded,
    Deposed,
    Elected,
    Event,
    InFlight,
    LeaseRenewed,
    LoadSeen,
    Nacked,
    Observed,
    ProxiesRequired,
    ProxyHeard,
    ProxyJoined,
    ProxyLost,
    Published,
    SpecChanged,
    Stored,
    Suspected,
    Tick,
)
from steersman_operator.fleet.plan import serves
from steersman_operator.fleet.rows import fleet_max, row_of, table_of
from steersman_operator.fleet.state import EngineState, Phase, State, Timing
from steersman_operator.fleet.weights import wanted

DEFAULT_TIMING = Timing()


def step(
    state: State, event: Event, *, timing: Timing = DEFAULT_TIMING
) -> tuple[State, list[Command]]:
    """What follows from ``event``: the next state, and what is to be done, in this order.

    Pure: the same state and event always give the same result.
    """
    draft = Draft(state, timing=timing)
    # The clock of events never goes back, even if whoever stamps them is confused.
    draft.change(now=max(state.now, event.now))
    touched = _apply(draft, event)
    draft.planning = touched is None
    if draft.state.leading:
        lost = looking.give_up_lost(draft)
        if touched is not None:
            touched = (*touched, *lost)
        for name in draft.engines if touched is None else touched:
            if name in draft.engines:
                goals.reconcile(draft, name)
        _roll(draft)
        _watch(draft)
        _publish(draft)
        looking.look_where_due(draft)
    # Who does not lead follows what happens, and does nothing about it.
    return draft.finished(), draft.commands if draft.state.leading else []


def _apply(draft: Draft, event: Event) -> tuple[str, ...] | None:  # noqa: C901, PLR0912 - one case for each event
    """Take in an event; returns the engines that it is about, ``None`` for all of them."""
    match event:
        case Elected(term=term, durable=durable):
            if term > draft.state.term:
                membership.drop_leaving(draft)
                leadership.elected(draft, term=term, durable=durable)
        case Deposed():
            membership.drop_leaving(draft)
            leadership.deposed(draft)
        case LeaseRenewed(valid_until=until):
            draft.change(lease_until=until)
            return ()
        case SpecChanged(pools=pools, deliberate=deliberate):
            membership.spec_changed(draft, pools, deliberate=deliberate)
        case ProxiesRequired(proxies=refs):
            proxies.required(draft, refs)
        case ProxyJoined(proxy=ref):
            proxies.joined(draft, ref)
        case ProxyHeard(proxy=ref):
            proxies.heard(draft, ref)
            return ()
        case ProxyLost(proxy=ref):
            proxies.lost(draft, ref)
            return ()
        case Acked(proxy=ref, epoch=epoch):
            return proxies.acked(draft, ref, epoch)
        case Nacked(proxy=ref, epoch=epoch, detail=detail):
            proxies.nacked(draft, ref, epoch, detail)
            return ()
        case InFlight(proxy=ref, epoch=epoch, counts=counts):
            return proxies.in_flight(draft, ref, epoch=epoch, counts=counts)
        case Observed(engine=name, asked=asked, seen=seen):
            if draft.leads(name):
                looking.observed(draft, name, asked=asked, seen=seen)
            return (name,)
        case LoadSeen(engine=name, asked=asked, busy=busy):
            if draft.leads(name):
                draining.load_seen(draft, name, asked=asked, busy=busy)
            return (name,)
        case CallEnded(engine=name, number=number, outcome=outcome, detail=detail):
            if draft.leads(name):
                calling.call_ended(draft, name, number=number, outcome=outcome, detail=detail)
            return (name,)
        case Stored(engine=name, number=number, ok=ok, detail=detail):
            if draft.leads(name):
                calling.claimed(draft, name, number=number, ok=ok, detail=detail)
            return (name,)
        case Published(pool=pool, version=version):
            if draft.state.leading:
                return awaiting.published(draft, pool, version)
            return ()
        case Suspected(engine=name, version=version):
            if draft.leads(name):
                looking.suspected(draft, name, version=version)
            return ()
        case Tick():
            membership.release_brake(draft)
            return _waiting_for_time(draft)
    return None


def _waiting_for_time(draft: Draft) -> tuple[str, ...]:
    """Engines at rest change by events alone."""
    return tuple(
        name
        for name, engine in draft.engines.items()
        if engine.op is not None or engine.store_at is not None
    )


def _roll(draft: Draft) -> None:
    """Let those engines begin that had to wait until another one serves again."""
    pools = {
        engine.pool
        for name in draft.changed
        if (engine := draft.engines.get(name)) is not None and _makes_room(draft, name)
    }
    draft.planning = True
    for pool in pools:
        spec = draft.state.pools[pool]
        if spec.weights is None or spec.rollout_paused:
            continue
        for name, engine in list(draft.engines.items()):
            if engine.pool == pool and engine.op is None and wanted(engine, spec) is not None:
                goals.reconcile(draft, name)


def _makes_room(draft: Draft, name: str) -> bool:
    """Whether an engine has become one that serves in this step."""
    before, after = draft.before.engines.get(name), draft.engines[name]
    return serves(after, draft.pool_of(after)) and (
        before is None or not serves(before, draft.pool_of(after))
    )


def _watch(draft: Draft) -> None:
    """Which engines' requests in flight are to be reported."""
    before, engines = draft.before, draft.engines
    if draft.state.watched == before.watched and all(
        _drains(engines.get(name)) == _drains(before.engines.get(name)) for name in draft.changed
    ):
        return
    wanted = tuple(sorted(name for name, engine in engines.items() if _drains(engine)))
    if wanted != draft.state.watched:
        draft.change(watched=wanted)
        draft.emit(Watch(engines=wanted))


def _drains(engine: EngineState | None) -> bool:
    if engine is None or engine.op is None:
        return False
    return engine.op.phase in (Phase.DRAINING, Phase.CLAIMING)


def _publish(draft: Draft) -> None:
    """Publish the table if its content changed, and stamp the gates that it closes."""
    first = not draft.state.published
    if first and not leadership.ready_to_publish(draft):
        return
    engines = draft.engines
    same_pools = draft.before.pools == draft.state.pools
    if not first and same_pools and not any(_is_news(draft, name) for name in draft.changed):
        return
    promoted = _promote(draft)
    epoch = Epoch(draft.state.term, draft.state.epoch.seq + 1)
    urgent = False
    for name in list(engines):
        if _unstamped(draft, name):
            draft.change_engine(name, closed_at=epoch)
            urgent = True
    draft.change(published=True, epoch=epoch, promoted=promoted)
    table = table_of(engines, draft.state.pools, epoch=epoch, promoted=promoted)
    draft.emit(Publish(table=table, urgent=urgent))


def _unstamped(draft: Draft, name: str) -> bool:
    engine = draft.engines[name]
    return not engine.gate.open and engine.closed_at is None


def _is_news(draft: Draft, name: str) -> bool:
    """Whether the table shows what has become of an engine in this step."""
    before, after = draft.before.engines.get(name), draft.engines.get(name)
    if before is None or after is None:
        return before is not after
    return (
        row_of(after) != row_of(before)
        or _unstamped(draft, name)
        or after.counted_version != before.counted_version
    )


def _promote(draft: Draft) -> dict[str, str]:
    promoted = {}
    for name, pool in draft.state.pools.items():
        members = [engine for engine in draft.engines.values() if engine.pool == name]
        newest = fleet_max(pool, members, promoted=draft.state.promoted.get(name))
        if newest is not None:
            promoted[name] = newest
    return promoted
