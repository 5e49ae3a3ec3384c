"""Looking at engines: when, and what follows from what is seen."""

import msgspec

from steersman.engine import Control, Trust
from steersman_operator.fleet.commands import Look
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import Facts, Observation
from steersman_operator.fleet.state import EngineState, Phase


def look_if_due(draft: Draft, name: str) -> None:
    """Have an engine looked at; one look at a time."""
    engine = draft.engines[name]
    if engine.looking is not None:
        if draft.now - engine.looking < draft.timing.look_timeout:
            return
        # The answer was lost, perhaps with whoever had asked.
        observed(draft, name, asked=engine.looking, seen=Observation(reachable=False))
        engine = draft.engines[name]
    if draft.now < engine.look_at:
        return
    spec = engine.spec
    draft.change_engine(name, looking=draft.now)
    draft.emit(Look(engine=spec.id, url=spec.url, runtime=spec.runtime))


def observed(draft: Draft, name: str, *, asked: float, seen: Observation) -> None:
    """An engine was looked at."""
    engine = draft.engines[name]
    if engine.looking != asked:
        return
    wait = draft.timing.look_soon if _impatient(engine) else draft.timing.look_every
    engine = draft.change_engine(name, looking=None, look_at=draft.now + wait)
    if not seen.reachable:
        _missed(draft, engine)
        return
    if not engine.reachable:
        draft.note(engine, "Reachable", "it answers again")
    engine = draft.change_engine(name, reachable=True, misses=0, known=True)
    boot = engine.spec.boot_id or seen.boot_id
    if boot is not None and engine.facts.boot_id not in (None, boot):
        engine = _restarted(draft, engine, boot)
    _take(draft, engine, asked=asked, boot=boot, seen=seen)


def _impatient(engine: EngineState) -> bool:
    return engine.op is not None and engine.op.phase is Phase.VERIFYING


def _missed(draft: Draft, engine: EngineState) -> None:
    misses = engine.misses + 1
    reachable = misses < draft.timing.misses
    name = engine.spec.id
    if engine.reachable and not reachable:
        draft.note(
            engine, "Unreachable", f"{misses} looks in a row without an answer", warning=True
        )
    draft.change_engine(name, misses=misses, reachable=reachable)
    # A new leader does not wait for the dead: see Timing.first_look.


def _restarted(draft: Draft, engine: EngineState, boot: str) -> EngineState:
    """Another process answers at the address: whatever was known, done or begun is void."""
    draft.note(engine, "Restarted", f"boot {boot} instead of {engine.facts.boot_id}", warning=True)
    return draft.change_engine(
        engine.spec.id,
        facts=Facts(boot_id=boot, paused=False, released=()),
        settled=Control.ACTIVE,
        op=None,
        given_up=None,
        problem="",
        external=False,
        asking_load=None,
    )


def _take(
    draft: Draft, engine: EngineState, *, asked: float, boot: str | None, seen: Observation
) -> None:
    """Put together what was seen and what is remembered; what was seen wins."""
    facts = engine.facts
    operation = engine.op
    if operation is not None and operation.phase is Phase.EXECUTING:
        # A look at an engine that is being changed may show either side of the change.
        return
    if operation is not None and operation.phase is Phase.VERIFYING:
        if asked < operation.ended_at:
            return
        changed = msgspec.structs.replace(operation, looked_at=asked)
        engine = draft.change_engine(engine.spec.id, op=changed)
    released = facts.released if seen.released is None else seen.released
    if released is None and engine.durable is None:
        # Nobody of ours has touched it. Which memory is released cannot be read from every engine;
        # one that somebody else has put to sleep must be declared as such (docs/guarantees.md).
        released = ()
    paused = facts.paused if seen.paused is None else seen.paused
    facts = Facts(boot_id=boot or facts.boot_id, paused=paused, released=released)
    engine = draft.change_engine(engine.spec.id, facts=facts)
    if seen.version_known:
        _take_version(draft, engine, seen.version)


def _take_version(draft: Draft, engine: EngineState, version: str | None) -> None:
    trust = Trust.VERIFIED
    if version is None:
        has_max = draft.state.promoted.get(engine.pool) is not None
        trust = Trust.UNSYNCED if has_max else Trust.UNKNOWN
    changes = {"version": version, "trust": trust}
    if engine.gate.open:
        changes["counted_version"] = version
    draft.change_engine(engine.spec.id, **changes)
