"""Calling an engine: the intent, the call, and what is seen of its effect.

An engine is called only with the intent written and only while the lease has time left. What the
engine is afterwards is what it is seen to be.
"""

from steersman_operator.fleet import awaiting
from steersman_operator.fleet.commands import Call
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.endings import (
    MEMORY_UNKNOWN,
    change_operation,
    drain_again,
    finish,
    give_up,
    later,
    loaded,
    not_done,
)
from steersman_operator.fleet.facts import ALL_TAGS, CallKind, Facts, Outcome, next_call
from steersman_operator.fleet.readiness import may_disturb
from steersman_operator.fleet.records import refused, write_intent
from steersman_operator.fleet.state import EngineState, Operation, Phase

_LOADS = (CallKind.REFIT, CallKind.LABEL)
"""Calls after which an engine has other weights, as far as anybody can tell."""

NO_PROOF = "\n"
"""Stands for the version before a load that has failed: whatever is shown afterwards proves nothing."""

FLUSH_SKIPPED = "FlushSkipped"
"""Stands in what an engine's dialect says of a load after which old KV blocks could not be dropped."""

TRIES = 3
"""How often a call that is found to have had no effect is made again before its goal is given up."""


def claim(draft: Draft, engine: EngineState) -> None:
    """Write the intent of the next call; nothing is called before it is written."""
    operation = engine.op
    assert operation is not None
    kind = next_call(engine.facts, operation.goal, operation.load)
    if kind is None:
        finish(draft, engine)
        return
    loads = kind in _LOADS
    tags = _tags(engine.facts, kind, loading=operation.load is not None)
    number = write_intent(
        draft,
        engine,
        kind,
        goal=operation.goal,
        timeout=_timeout(draft, engine, kind),
        tags=tags,
        weights=operation.weights if loads else None,
    )
    change_operation(
        draft,
        engine,
        phase=Phase.CLAIMING,
        call=kind,
        tags=tags,
        number=number,
        call_until=draft.now + draft.timing.call_timeout,
        version_before=engine.version,
    )


def claimed(draft: Draft, name: str, *, number: int, ok: bool, detail: str) -> None:
    """A record is written, or could not be. If it is the intent that is waited for, the call goes."""
    if not ok:
        refused(draft, name, number=number)
    engine = draft.engines[name]
    operation = engine.op
    if operation is None or operation.phase is not Phase.CLAIMING or operation.number != number:
        return
    assert engine.durable is not None
    if not ok:
        draft.note(engine, "IntentNotWritten", detail, warning=True)
        change_operation(draft, engine, phase=Phase.DRAINING, **later(draft, operation))
    elif engine.facts != engine.durable.facts or not may_disturb(draft, engine):
        # While the intent was written, a proxy has joined, or somebody else changed the engine.
        change_operation(draft, engine, phase=Phase.DRAINING)
    elif draft.now + draft.timing.lease_margin > draft.state.lease_until:
        change_operation(draft, engine, phase=Phase.DRAINING, **later(draft, operation))
        draft.note(engine, "LeaseTooShort", "waiting for the lease to be renewed", warning=True)
    elif operation.call is CallKind.TRANSFER:
        awaiting.begin(draft, engine)
    else:
        _execute(draft, engine)


def claim_is_late(draft: Draft, engine: EngineState) -> None:
    """The store has not answered. An answer that comes yet is for a claim that is not made."""
    operation = engine.op
    assert operation is not None
    if draft.now >= operation.call_until:
        draft.note(engine, "IntentNotWritten", "the store does not answer", warning=True)
        change_operation(draft, engine, phase=Phase.DRAINING, **later(draft, operation))


def _execute(draft: Draft, engine: EngineState) -> None:
    operation, spec = engine.op, engine.spec
    assert operation is not None and operation.call is not None
    number = draft.number()
    timeout = _timeout(draft, engine, operation.call)
    draft.emit(
        Call(
            number=number,
            engine=spec.id,
            url=spec.url,
            runtime=spec.runtime,
            kind=operation.call,
            pause_mode=draft.pool_of(engine).pause_mode,
            tags=operation.tags,
            weights=operation.weights if operation.call in _LOADS else None,
            boot_id=engine.facts.boot_id,
            timeout=timeout,
        )
    )
    change_operation(
        draft,
        engine,
        phase=Phase.EXECUTING,
        number=number,
        disturbed=True,
        unknown=False,
        looked_at=None,
        call_until=draft.now + timeout,
    )
    draft.change_engine(
        spec.id,
        facts=engine.facts.during(operation.call),
        cache_generation=engine.cache_generation + (operation.call in _LOADS),
    )


def _timeout(draft: Draft, engine: EngineState, kind: CallKind) -> float:
    if kind is CallKind.REFIT:
        return draft.pool_of(engine).refit_timeout
    return draft.timing.call_timeout


def _tags(facts: Facts, kind: CallKind, *, loading: bool) -> tuple[str, ...]:
    match kind:
        case CallKind.SLEEP:
            return ALL_TAGS
        case CallKind.WAKE if loading and "weights" in (facts.released or ()):
            return ("weights",)
        case CallKind.WAKE:
            # Exactly what was released: another tag ends an SGLang engine.
            return facts.released or ()
        case _:
            return ()


def call_is_late(draft: Draft, engine: EngineState) -> None:
    """Whoever carries out the calls has not said how this one ended, and it must have."""
    operation, patience = engine.op, draft.timing.look_timeout
    assert operation is not None
    if draft.now >= operation.call_until + patience:
        call_ended(
            draft,
            engine.spec.id,
            number=operation.number,
            outcome=Outcome.UNKNOWN,
            detail="nobody has said how it ended",
        )


def call_ended(draft: Draft, name: str, *, number: int, outcome: Outcome, detail: str) -> None:
    """The engine has answered, or has not."""
    engine = draft.engines[name]
    operation = engine.op
    if operation is None or operation.phase is not Phase.EXECUTING or operation.number != number:
        return
    assert engine.durable is not None and operation.call is not None
    before = engine.durable.facts
    what = operation.call.value
    engine = change_operation(draft, engine, phase=Phase.VERIFYING, ended_at=draft.now)
    match outcome:
        case Outcome.OK:
            tags = operation.tags or ALL_TAGS
            draft.change_engine(name, facts=before.after(operation.call, tags))
            if FLUSH_SKIPPED in detail:
                draft.note(engine, FLUSH_SKIPPED, detail, warning=True)
            until = draft.now + draft.timing.verify_timeout
            change_operation(draft, engine, call_until=until)
        case Outcome.REFUSED:
            draft.note(engine, "Refused", f"{what}: {detail}", warning=True)
            engine = draft.change_engine(name, facts=before)
            not_done(draft, engine, f"the engine refused to {what}: {detail}")
        case Outcome.FAILED:
            draft.note(engine, "CallFailed", f"{what}: {detail}", warning=True)
            change_operation(
                draft, engine, unknown=True, call_until=draft.now, version_before=NO_PROOF
            )
        case Outcome.UNKNOWN:
            draft.note(engine, "OutcomeUnknown", f"{what}: {detail}", warning=True)
            change_operation(draft, engine, unknown=True)
    if detail and outcome is not Outcome.OK and operation.call is CallKind.REFIT:
        draft.change_engine(name, problem=f"{what}: {detail}")
    draft.change_engine(name, look_at=draft.now)


def verify(draft: Draft, engine: EngineState) -> None:
    """Decide by what is seen in a look that began after the call had ended.

    That the call had no effect is only believed of a look that began when it could not have one any
    more: a call whose answer was lost may still be running.
    """
    operation, facts = engine.op, engine.facts
    assert operation is not None and operation.call is not None
    what, looked = operation.call.value, operation.looked_at
    if looked is not None and _took_effect(engine, operation):
        if operation.call in _LOADS:
            engine = loaded(draft, engine)
        engine = drain_again(draft, engine, tries=0)
        if engine.op is not None and engine.facts.reached(operation.goal, engine.op.load):
            finish(draft, engine)
    elif draft.now < operation.call_until:
        pass
    elif not engine.reachable:
        give_up(draft, engine, f"the engine does not answer after {what}")
    elif looked is None or looked < operation.call_until:
        pass
    elif facts.released is None:
        # Nothing reads this back, and trying could end the engine either way.
        give_up(draft, engine, f"how the {what} ended is unknown; {MEMORY_UNKNOWN}")
    elif operation.tries < TRIES:
        # It had no effect, and cannot have one any more; or it was a pause or a resume of which
        # nothing is to be seen, and those may be done twice.
        drain_again(draft, engine, **later(draft, operation))
    else:
        not_done(draft, engine, f"the engine did not {what}")


def _took_effect(engine: EngineState, operation: Operation) -> bool:
    facts, released = engine.facts, engine.facts.released
    match operation.call:
        case CallKind.PAUSE:
            return facts.paused is True
        case CallKind.RESUME:
            return facts.paused is False
        case CallKind.SLEEP:
            return bool(released)
        case CallKind.WAKE:
            return released is not None and not set(operation.tags or ALL_TAGS) & set(released)
        case CallKind.REFIT | CallKind.LABEL:
            assert operation.weights is not None
            if engine.version != operation.weights.version:
                return False
            # Of a load whose outcome is unknown the version is a proof only if it has changed:
            # engines take it on at the end. It is none of a load that failed, or of one whose checksum
            # nobody has compared.
            if not operation.unknown:
                return True
            if operation.call is CallKind.LABEL:
                # The trainer may have named them, and ours may still come.
                return (operation.looked_at or 0.0) >= operation.call_until
            if operation.version_before == NO_PROOF or operation.weights.checksum:
                return False
            return operation.version_before != engine.version
        case CallKind.TRANSFER | None:
            return False
