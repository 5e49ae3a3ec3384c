"""An operation on its way: Closing, Draining, Claiming, Executing, Verifying, and its end.

The gate closes at once. The engine is called only behind the barrier, only with the intent written,
and only while the lease has time left. What the engine is afterwards is what it is seen to be.
"""

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.barrier import Barrier, barrier
from steersman_operator.fleet.commands import AskLoad, Call, CutRequests, Store
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Durable, Facts, Outcome, next_call
from steersman_operator.fleet.spec import OnTimeout, PoolSpec, RolloutMode
from steersman_operator.fleet.state import EngineState, Operation, Phase

ABORT_GRACE = 30.0
"""Seconds for which requests that were cut may still be counted."""

RETRY_LIMIT = 30.0


def begin(draft: Draft, engine: EngineState, goal: Control) -> None:
    """Start an operation: the gate closes with the table of this very step."""
    name = engine.spec.id
    draft.close_gate(name)
    pool = draft.pool_of(engine)
    operation = Operation(
        goal=goal,
        phase=Phase.DRAINING,
        started=draft.now,
        drain_until=draft.now + pool.drain_timeout,
    )
    changed = draft.change_engine(name, op=operation, problem="", external=False)
    draft.note(changed, "Closing", f"closed to become {goal.value}")


def set_goal(draft: Draft, engine: EngineState, goal: Control) -> None:
    """The goal changed while an operation is under way."""
    operation = engine.op
    assert operation is not None, "there is nothing under way"
    if operation.goal is goal:
        return
    if operation.disturbed or operation.phase in (Phase.EXECUTING, Phase.VERIFYING):
        # What was begun is finished first; the next step then follows from the facts.
        _change(draft, engine, goal=goal)
        return
    if engine.facts.reached(goal):
        # No engine was called: opening again is all there is to it.
        draft.change_engine(engine.spec.id, op=None, settled=goal)
        draft.note(engine, "Cancelled", f"no longer to become {operation.goal.value}")
        return
    # Without reopening: whoever waits for the barrier has come that far already.
    _change(draft, engine, goal=goal, phase=Phase.DRAINING, idle_seen=())
    draft.note(engine, "Retargeted", f"to become {goal.value} instead of {operation.goal.value}")


def advance(draft: Draft, name: str) -> None:
    """Do what can be done now."""
    operation = draft.engines[name].op
    if operation is None:
        return
    match operation.phase:
        case Phase.CLOSING | Phase.DRAINING:
            _drain(draft, draft.engines[name])
        case Phase.CLAIMING:
            pass  # until Stored
        case Phase.EXECUTING:
            pass  # until CallEnded
        case Phase.VERIFYING:
            _verify(draft, draft.engines[name])


def barrier_of(draft: Draft, engine: EngineState) -> Barrier:
    """Where the barrier of an engine stands in this step."""
    return barrier(
        engine,
        proxies=draft.proxies,
        on_unreachable=draft.pool_of(engine).on_unreachable,
        now=draft.now,
        since=draft.state.elected_at,
        timing=draft.timing,
    )


def needs_clear(operation: Operation, pool: PoolSpec) -> bool:
    """Whether nothing may be in flight when the engine is called."""
    if operation.goal is Control.ASLEEP:
        return True
    return pool.mode is RolloutMode.QUIESCE and not operation.in_flight_allowed


def _drain(draft: Draft, engine: EngineState) -> None:
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None
    if operation.goal is Control.ACTIVE:
        # Opening disturbs nobody: the gate is closed, and closed it stays until that is verified.
        _claim(draft, engine)
        return
    stands = barrier_of(draft, engine)
    clear = not needs_clear(operation, pool)
    ready = stands.acknowledged if clear else stands.clear
    if ready and not clear:
        ready = _proven_idle(draft, engine)
    if ready:
        _claim(draft, draft.engines[engine.spec.id])
    elif draft.now >= operation.drain_until:
        _drain_timed_out(draft, draft.engines[engine.spec.id], stands)


def _proven_idle(draft: Draft, engine: EngineState) -> bool:
    """Whether the engine itself says that it has nothing, asked after the proxies had let go.

    Twice, some time apart, before it is put to sleep: a request that was cut may still be running
    there, and one that never came through a proxy is seen nowhere else.
    """
    operation = engine.op
    assert operation is not None
    seen, gap = operation.idle_seen, draft.timing.idle_gap
    if operation.goal is Control.ASLEEP:
        if len(seen) >= 2 and seen[-1] - seen[0] >= gap:
            return True
        wait_until = seen[-1] + gap if seen else 0.0
    else:
        if seen:
            return True
        wait_until = 0.0
    if engine.asking_load is None and draft.now >= max(wait_until, operation.ask_at):
        _ask_load(draft, engine)
    return False


def _ask_load(draft: Draft, engine: EngineState) -> None:
    spec = engine.spec
    draft.change_engine(spec.id, asking_load=draft.now)
    draft.emit(AskLoad(engine=spec.id, url=spec.url, runtime=spec.runtime))


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
        _change(draft, engine, idle_seen=(), ask_at=draft.now + draft.timing.look_soon)
        return
    _change(draft, engine, idle_seen=(*operation.idle_seen[:1], asked))


def _drain_timed_out(draft: Draft, engine: EngineState, stands: Barrier) -> None:
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None
    why = stands.sentence(now=draft.now, proxies=draft.proxies)
    match pool.on_timeout:
        case OnTimeout.ABORT if not operation.aborted and stands.acknowledged:
            _change(draft, engine, aborted=True, drain_until=draft.now + ABORT_GRACE)
            draft.emit(CutRequests(engine=engine.spec.id, reason="drain timed out"))
            draft.note(engine, "DrainAborted", f"{why}; what still runs is cut", warning=True)
        case OnTimeout.PROCEED if (
            operation.goal is not Control.ASLEEP
            and not operation.in_flight_allowed
            and stands.acknowledged
        ):
            _change(draft, engine, in_flight_allowed=True)
            draft.note(engine, "ProceedingInFlight", why, warning=True)
        case _:
            give_up(draft, engine, f"not drained within {pool.drain_timeout:g} s: {why}")


def _claim(draft: Draft, engine: EngineState) -> None:
    """Write the intent of the next call; nothing is called before it is written."""
    operation = engine.op
    assert operation is not None
    if draft.now < operation.next_try:
        return
    kind = next_call(engine.facts, operation.goal)
    if kind is None:
        finish(draft, engine)
        return
    number = draft.number()
    record = Durable(
        engine=engine.spec.id,
        facts=engine.facts,
        call=kind,
        goal=operation.goal,
        term=draft.state.term,
        deadline=draft.timing.call_timeout,
    )
    _change(draft, engine, phase=Phase.CLAIMING, call=kind, number=number)
    draft.emit(Store(number=number, record=record))
    draft.change_engine(engine.spec.id, durable=record)


def claimed(draft: Draft, name: str, *, number: int, ok: bool, detail: str) -> None:
    """The intent is written, or could not be."""
    engine = draft.engines[name]
    operation = engine.op
    if operation is None or operation.phase is not Phase.CLAIMING or operation.number != number:
        return
    if not ok:
        draft.note(engine, "IntentNotWritten", detail, warning=True)
        _change(draft, engine, phase=Phase.DRAINING, **_later(draft, operation))
        return
    if operation.goal is not Control.ACTIVE and not _may_disturb(draft, engine):
        # A proxy has joined, or lost its acknowledgement, while the intent was written.
        _change(draft, engine, phase=Phase.DRAINING)
        return
    if draft.now + draft.timing.lease_margin > draft.state.lease_until:
        _change(draft, engine, phase=Phase.DRAINING, **_later(draft, operation))
        draft.note(engine, "LeaseTooShort", "waiting for the lease to be renewed", warning=True)
        return
    _execute(draft, engine)


def _may_disturb(draft: Draft, engine: EngineState) -> bool:
    assert engine.op is not None
    stands = barrier_of(draft, engine)
    clear = needs_clear(engine.op, draft.pool_of(engine))
    return stands.clear if clear else stands.acknowledged


def _execute(draft: Draft, engine: EngineState) -> None:
    operation, spec = engine.op, engine.spec
    assert operation is not None and operation.call is not None
    number = draft.number()
    timeout = draft.timing.call_timeout
    draft.emit(
        Call(
            number=number,
            engine=spec.id,
            url=spec.url,
            runtime=spec.runtime,
            kind=operation.call,
            pause_mode=draft.pool_of(engine).pause_mode,
            tags=_tags(engine.facts, operation.call),
            boot_id=engine.facts.boot_id,
            timeout=timeout,
        )
    )
    _change(
        draft,
        engine,
        phase=Phase.EXECUTING,
        number=number,
        disturbed=True,
        unknown=False,
        looked_at=None,
        call_until=draft.now + timeout,
    )
    draft.change_engine(spec.id, facts=engine.facts.during(operation.call))


def _tags(facts: Facts, kind: CallKind) -> tuple[str, ...]:
    match kind:
        case CallKind.SLEEP:
            return ALL_TAGS
        case CallKind.WAKE:
            # Exactly what was released: another tag ends an SGLang engine.
            return facts.released or ()
        case CallKind.PAUSE | CallKind.RESUME:
            return ()


def call_ended(draft: Draft, name: str, *, number: int, outcome: Outcome, detail: str) -> None:
    """The engine has answered, or has not."""
    engine = draft.engines[name]
    operation = engine.op
    if operation is None or operation.phase is not Phase.EXECUTING or operation.number != number:
        return
    assert engine.durable is not None and operation.call is not None
    before = engine.durable.facts
    what = operation.call.value
    engine = _change(draft, engine, phase=Phase.VERIFYING, ended_at=draft.now)
    match outcome:
        case Outcome.OK:
            draft.change_engine(name, facts=before.after(operation.call))
            _change(draft, engine, call_until=draft.now + draft.timing.verify_timeout)
        case Outcome.REFUSED:
            draft.note(engine, "Refused", f"{what}: {detail}", warning=True)
            engine = draft.change_engine(name, facts=before)
            _not_done(draft, engine, f"the engine refused to {what}: {detail}")
        case Outcome.FAILED:
            draft.note(engine, "CallFailed", f"{what}: {detail}", warning=True)
            _change(draft, engine, unknown=True, call_until=draft.now)
        case Outcome.UNKNOWN:
            draft.note(engine, "OutcomeUnknown", f"{what}: {detail}", warning=True)
            _change(draft, engine, unknown=True)
    draft.change_engine(name, look_at=draft.now)


def _verify(draft: Draft, engine: EngineState) -> None:
    """Decide by what is seen in a look that began after the call had ended.

    That the call had no effect is only believed of a look that began when it could not have one any
    more: a call whose answer was lost may still be running.
    """
    operation = engine.op
    assert operation is not None and operation.call is not None
    what, looked = operation.call.value, operation.looked_at
    if looked is not None and _took_effect(engine.facts, operation.call):
        engine = _change(draft, engine, unknown=False, tries=0)
        _go_on(draft, engine)
    elif draft.now < operation.call_until:
        pass
    elif not engine.reachable:
        give_up(draft, engine, f"the engine does not answer after {what}")
    elif looked is None or looked < operation.call_until:
        pass
    elif engine.facts.released is None:
        # Nothing reads this back, and trying could end the engine either way.
        give_up(
            draft,
            engine,
            f"whether the {what} was carried out is unknown, and this engine cannot be asked; "
            "it stays closed until it is restarted",
        )
    elif engine.facts.paused is not None:
        _not_done(draft, engine, f"the engine did not {what}")


def _took_effect(facts: Facts, kind: CallKind) -> bool:
    match kind:
        case CallKind.PAUSE:
            return facts.paused is True
        case CallKind.RESUME:
            return facts.paused is False
        case CallKind.SLEEP:
            return bool(facts.released)
        case CallKind.WAKE:
            return facts.released == ()


def _go_on(draft: Draft, engine: EngineState) -> None:
    """A call is done with; the next one follows from the facts."""
    operation = engine.op
    assert operation is not None
    if engine.facts.reached(operation.goal):
        finish(draft, engine)
        return
    # The gate has been closed all along, so that the barrier still holds; it is checked again
    # when the next intent is written.
    _change(draft, engine, phase=Phase.DRAINING)
    _claim(draft, draft.engines[engine.spec.id])


def finish(draft: Draft, engine: EngineState) -> None:
    """The goal is reached."""
    operation = engine.op
    assert operation is not None
    record = Durable(
        engine=engine.spec.id, facts=engine.facts, goal=operation.goal, term=draft.state.term
    )
    draft.emit(Store(number=draft.number(), record=record))
    took = draft.now - operation.started
    engine = draft.change_engine(
        engine.spec.id, op=None, settled=operation.goal, durable=record, problem="", given_up=None
    )
    draft.note(engine, "Settled", f"{operation.goal.value} after {took:.1f} s")


def _not_done(draft: Draft, engine: EngineState, why: str) -> None:
    """A call had no effect. Opening is tried for ever, closing is given up."""
    operation = engine.op
    assert operation is not None
    if operation.goal is Control.ACTIVE:
        _change(draft, engine, phase=Phase.DRAINING, unknown=False, **_later(draft, operation))
        draft.change_engine(engine.spec.id, problem=why)
        return
    give_up(draft, engine, why)


def give_up(draft: Draft, engine: EngineState, why: str) -> None:
    """The goal is not reached. What was settled before is returned to, as far as it is known."""
    operation, pool = engine.op, draft.pool_of(engine)
    assert operation is not None
    engine = draft.change_engine(
        engine.spec.id, op=None, given_up=(operation.goal, pool.generation), problem=why
    )
    draft.note(engine, "GivenUp", why, warning=True)


def _later(draft: Draft, operation: Operation) -> dict[str, object]:
    tries = operation.tries + 1
    wait = min(RETRY_LIMIT, draft.timing.retry * 2 ** min(tries - 1, 8))
    return {"tries": tries, "next_try": draft.now + wait}


def _change(draft: Draft, engine: EngineState, **fields: object) -> EngineState:
    current = draft.engines[engine.spec.id].op
    assert current is not None, "the operation has ended"
    return draft.change_engine(engine.spec.id, op=msgspec.structs.replace(current, **fields))
