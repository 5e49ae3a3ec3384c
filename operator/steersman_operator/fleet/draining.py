"""Draining: until no proxy and no engine has anything left that a call could hurt."""

from steersman.engine import Control
from steersman_operator.fleet.barrier import Barrier
from steersman_operator.fleet.calling import claim
from steersman_operator.fleet.commands import AskLoad, CutRequests
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.endings import change_operation, give_up
from steersman_operator.fleet.readiness import (
    barrier_of,
    disturbs_nobody,
    idle_enough,
    needs_clear,
)
from steersman_operator.fleet.spec import OnTimeout
from steersman_operator.fleet.state import EngineState, Phase


def drain(draft: Draft, engine: EngineState) -> None:
    """Claim the next call if the barrier holds; give up when it has been waited for long enough."""
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None
    if disturbs_nobody(engine, operation):
        if draft.now >= operation.next_try:
            claim(draft, engine)
        return
    stands = barrier_of(draft, engine)
    ready = stands.acknowledged
    if needs_clear(operation, pool):
        if not stands.clear and operation.idle_seen:
            # Somebody may have sent to it since.
            engine = change_operation(draft, engine, idle_seen=())
        ready = stands.clear and _proven_idle(draft, engine)
        engine = draft.engines[engine.spec.id]
    if ready and draft.now >= operation.next_try:
        claim(draft, engine)
    elif draft.now >= operation.drain_until:
        if ready:
            give_up(draft, engine, "the operator could not write down what it was about to do")
        else:
            _timed_out(draft, engine, stands)


def _proven_idle(draft: Draft, engine: EngineState) -> bool:
    """Whether the engine itself says that it has nothing, asked after the proxies had let go.

    Twice, some time apart, before it is put to sleep: a request that was cut may still be running
    there, and one that never came through a proxy is seen nowhere else.
    """
    operation, timing = engine.op, draft.timing
    assert operation is not None
    if idle_enough(operation, timing=timing):
        return True
    due = operation.ask_at
    if operation.idle_seen:
        due = max(due, operation.idle_seen[-1] + timing.idle_gap)
    asking = engine.asking_load
    # An answer may get lost with whoever was to bring it.
    if draft.now >= due and (asking is None or draft.now - asking >= timing.look_timeout):
        spec = engine.spec
        draft.change_engine(spec.id, asking_load=draft.now)
        draft.emit(AskLoad(engine=spec.id, url=spec.url, runtime=spec.runtime))
    return False


def load_seen(draft: Draft, name: str, *, asked: float, busy: int | None) -> None:
    """An engine said how many requests it has."""
    engine = draft.engines[name]
    if engine.asking_load != asked:
        return
    engine = draft.change_engine(name, asking_load=None)
    operation = engine.op
    if operation is None or operation.phase is not Phase.DRAINING:
        return
    if busy != 0 or not barrier_of(draft, engine).clear:
        # Not asked again at once: a busy engine stays busy for a while.
        ask_at = draft.now + draft.timing.look_soon
        change_operation(draft, engine, idle_seen=(), ask_at=ask_at)
        return
    change_operation(draft, engine, idle_seen=(*operation.idle_seen[:1], asked))


def _timed_out(draft: Draft, engine: EngineState, stands: Barrier) -> None:
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None
    why = stands.sentence(now=draft.now, proxies=draft.proxies)
    if stands.clear:
        why += ", but the engine does not say that it is idle"
        if engine.detail:
            why += f" ({engine.detail})"
    match pool.on_timeout:
        case OnTimeout.ABORT if not operation.aborted and stands.acknowledged:
            until = draft.now + draft.timing.abort_grace
            change_operation(draft, engine, aborted=True, drain_until=until)
            draft.emit(CutRequests(engine=engine.spec.id, reason="drain timed out"))
            draft.note(engine, "DrainAborted", f"{why}; what still runs is cut", warning=True)
        case OnTimeout.PROCEED if (
            operation.goal is not Control.ASLEEP
            and not operation.in_flight_allowed
            and stands.acknowledged
        ):
            change_operation(draft, engine, in_flight_allowed=True)
            draft.note(engine, "ProceedingInFlight", why, warning=True)
        case _ if operation.weights is not None and not engine.facts.sound:
            # Opening it again is no way out: it serves nothing until it is loaded.
            until = draft.now + pool.drain_timeout
            engine = change_operation(draft, engine, drain_until=until)
            problem = f"not drained within {pool.drain_timeout:g} s, and not whole"
            if engine.problem != problem:
                draft.change_engine(engine.spec.id, problem=problem)
                draft.note(engine, "NotDrained", why, warning=True)
        case _:
            give_up(draft, engine, f"not drained within {pool.drain_timeout:g} s: {why}")
