"""Looking at engines: when, and what follows from what is seen.

Engines with which nothing is the matter take turns, so that a large fleet is not asked more than an
operator can ask: each gets the next turn after the last one given. Whatever waits for a look, an
operation, a new engine or one that has just not answered, does not wait for a turn.
"""

import msgspec

from steersman.engine import Control
from steersman_operator.fleet.commands import Look
from steersman_operator.fleet.draft import Draft
from steersman_operator.fleet.facts import Facts, Observation
from steersman_operator.fleet.state import EngineState, Phase, Timing
from steersman_operator.fleet.weights import trust_of, without_version


def give_up_lost(draft: Draft) -> tuple[str, ...]:
    """Count looks without an answer as misses; returns the engines.

    The answer was lost, perhaps with whoever had asked.
    """
    if draft.now < draft.state.look_due:
        return ()
    lost = []
    for name, engine in list(draft.engines.items()):
        asked = engine.looking
        if asked is not None and draft.now - asked >= draft.timing.look_timeout:
            detail = f"no answer within {draft.timing.look_timeout:g} s"
            observed(draft, name, asked=asked, seen=Observation(reachable=False, detail=detail))
            lost.append(name)
    return tuple(lost)


def look_where_due(draft: Draft) -> None:
    """Have those engines looked at whose time has come; one look at a time."""
    now, timing, due = draft.now, draft.timing, draft.state.look_due
    for name in draft.changed:
        engine = draft.engines.get(name)
        if engine is not None:
            due = min(due, _due(engine, timing))
    if now >= due:
        due = now + timing.look_every
        for name, engine in list(draft.engines.items()):
            if engine.looking is None and now >= engine.look_at:
                spec = engine.spec
                engine = draft.change_engine(name, looking=now)
                draft.emit(Look(engine=spec.id, url=spec.url, runtime=spec.runtime))
            due = min(due, _due(engine, timing))
    if due != draft.state.look_due:
        draft.change(look_due=due)


def _due(engine: EngineState, timing: Timing) -> float:
    """When something is to be done about looking at an engine."""
    return engine.look_at if engine.looking is None else engine.looking + timing.look_timeout


def suspected(draft: Draft, name: str, *, version: str | None) -> None:
    """Somebody has seen another version of an engine than we have: it is looked at now.

    What others say is only a reason to look; they may have read an answer that was begun long ago.
    """
    engine = draft.engines[name]
    if engine.version != version and engine.look_at > draft.now:
        draft.change_engine(name, look_at=draft.now)


def observed(draft: Draft, name: str, *, asked: float, seen: Observation) -> None:
    """An engine was looked at."""
    engine = draft.engines[name]
    if engine.looking != asked:
        return
    engine = _look_again(draft, engine, reachable=seen.reachable)
    if not seen.reachable:
        _missed(draft, engine, detail=seen.detail)
        return
    if not engine.reachable:
        draft.note(engine, "Reachable", "it answers again")
    first = not engine.known
    engine = draft.change_engine(name, reachable=True, misses=0, known=True, detail=seen.detail)
    boot = engine.spec.boot_id or seen.boot_id
    if boot is not None and engine.facts.boot_id not in (None, boot):
        engine = _restarted(draft, engine, boot)
    _take(draft, engine, asked=asked, boot=boot, seen=seen)
    if first:
        _count_as_before(draft, name)


def _look_again(draft: Draft, engine: EngineState, *, reachable: bool) -> EngineState:
    """A look has ended; when is the next."""
    now, timing, name = draft.now, draft.timing, engine.spec.id
    if engine.op is not None and engine.op.phase is Phase.VERIFYING:
        return draft.change_engine(name, looking=None, look_at=now + timing.look_soon)
    if not reachable and engine.misses + 1 < timing.misses:
        return draft.change_engine(name, looking=None, look_at=now + timing.look_every)
    turn = engine.turn
    if turn <= now:
        # Not if the one it has is still to come: this look was an extra one.
        turn = max(now + timing.look_every, draft.state.last_turn + 1 / timing.looks_per_second)
        draft.change(last_turn=turn)
    return draft.change_engine(name, looking=None, look_at=turn, turn=turn)


def _missed(draft: Draft, engine: EngineState, *, detail: str) -> None:
    misses = engine.misses + 1
    reachable = misses < draft.timing.misses
    name = engine.spec.id
    if engine.reachable and not reachable:
        why = f": {detail}" if detail else ""
        message = f"{misses} looks in a row without an answer{why}"
        draft.note(engine, "Unreachable", message, warning=True)
    draft.change_engine(name, misses=misses, reachable=reachable, detail=detail)
    # A new leader does not wait for the dead: see Timing.first_look.


def _restarted(draft: Draft, engine: EngineState, boot: str) -> EngineState:
    """Another process answers at the address: whatever was known, done or begun is void."""
    draft.note(engine, "Restarted", f"boot {boot} instead of {engine.facts.boot_id}", warning=True)
    return draft.change_engine(
        engine.spec.id,
        facts=Facts(boot_id=boot, paused=False, released=()),
        version=None,
        trust=without_version(draft, engine),
        counted_version=None,
        settled=Control.ACTIVE,
        op=None,
        given_up=None,
        returning=False,
        problem="",
        external=False,
        asking_load=None,
        loaded="",
        adopts=True,
        unloadable=None,
        cache_generation=engine.cache_generation + 1,
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
    if operation is not None and operation.phase in (Phase.VERIFYING, Phase.AWAITING):
        if asked < operation.ended_at:
            return
        changed = msgspec.structs.replace(operation, looked_at=asked)
        engine = draft.change_engine(engine.spec.id, op=changed)
    known = facts
    if engine.durable is None:
        # Nobody of ours has touched it. Neither can be read from every engine, and is taken to be as
        # after a start (docs/guarantees.md).
        known = msgspec.structs.replace(
            facts,
            paused=False if facts.paused is None else facts.paused,
            released=() if facts.released is None else facts.released,
        )
    facts = known.seen(seen, boot_id=boot)
    engine = draft.change_engine(engine.spec.id, facts=facts)
    if known.lost and not facts.lost:
        draft.note(engine, "WeightsLoaded", "somebody has let it go on after its sleep")
    if seen.version_known:
        _take_version(draft, engine, seen.version)


def _take_version(draft: Draft, engine: EngineState, version: str | None) -> None:
    changes: dict[str, object] = {"version": version, "trust": trust_of(draft, engine, version)}
    if engine.gate.open:
        changes["counted_version"] = version
    if version != engine.version:
        changes["cache_generation"] = engine.cache_generation + 1
    draft.change_engine(engine.spec.id, **changes)


def _count_as_before(draft: Draft, name: str) -> None:
    """An engine that a leader before had closed counts on for the fleet max.

    What it counts with stands in its record, if it was we who closed it; else it is what it shows.
    """
    engine = draft.engines[name]
    record = engine.durable
    ours = record is not None and (record.call is not None or record.goal is not Control.ACTIVE)
    if not draft.state.published and not ours:
        draft.change_engine(name, counted_version=engine.version)
