"""What a verb means for a resource: the change of its spec, or why it is refused."""

import difflib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from steersman.errors import EditRefused, ResourceNotFound
from steersman_operator.manifests.changes import Change, DropOverride, SetOverride, SetState
from steersman_operator.resources import RolloutEngine, State


class Verb(StrEnum):
    """What people ask for."""

    PAUSE = "pause"
    RESUME = "resume"
    SLEEP = "sleep"
    WAKE = "wake"

    @property
    def state(self) -> State:
        """What is wanted after it."""
        match self:
            case Verb.PAUSE:
                return State.PAUSED
            case Verb.SLEEP:
                return State.ASLEEP
            case Verb.RESUME | Verb.WAKE:
                return State.ACTIVE


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for a verb."""

    change: Change | None
    """``None`` if everything is as it is wanted."""
    message: str


def plan(resource: RolloutEngine, *, verb: Verb, engine: str | None) -> Plan:
    """The change for a verb, on the pool or on one of its engines (by name or host and port).

    :raises ResourceNotFound: if the pool has no such engine.
    :raises EditRefused: if the verb does not fit what is wanted now.
    """
    if engine is None:
        return _plan_pool(resource, verb)
    return _plan_engine(resource, verb, _engine_name(resource, engine))


def unknown(what: str, name: str, known: Iterable[str]) -> ResourceNotFound:
    """The error for a name that there is not, with those that may have been meant."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        hint = f"there are {', '.join(known[:10])}{more}"
    else:
        hint = "there is none at all"
    return ResourceNotFound(f"{what} {name[:80]!a} does not exist; {hint}")


def _plan_pool(resource: RolloutEngine, verb: Verb) -> Plan:
    spec = resource.spec
    _refuse(verb, spec.state, shown=resource.name)
    own = ", ".join(f"{override.engine} ({override.state.value})" for override in spec.overrides)
    rest = f"; engines with a state of their own: {own}" if own else ""
    if spec.state is verb.state:
        return Plan(change=None, message=f"{resource.name} is to be {verb.state} already{rest}")
    return Plan(
        change=SetState(verb.state), message=f"{resource.name} is to be {verb.state} now{rest}"
    )


def _plan_engine(resource: RolloutEngine, verb: Verb, engine: str) -> Plan:
    spec = resource.spec
    own = {override.engine: override.state for override in spec.overrides}
    shown = f"engine {engine} of {resource.name}"
    wanted = own.get(engine, spec.state)
    _refuse(verb, wanted, shown=shown)
    if wanted is verb.state:
        return Plan(change=None, message=f"{shown} is to be {verb.state} already")
    message = f"{shown} is to be {verb.state} now"
    if verb.state is not spec.state:
        return Plan(change=SetOverride(engine, verb.state), message=message)
    return Plan(change=DropOverride(engine), message=f"{message}, as the rest of the pool")


def _refuse(verb: Verb, wanted: State, *, shown: str) -> None:
    if verb in (Verb.PAUSE, Verb.RESUME) and wanted is State.ASLEEP:
        raise EditRefused(f"{shown} is to be asleep; wake it first")
    if verb is Verb.WAKE and wanted is State.PAUSED:
        raise EditRefused(f"{shown} is to be paused, not asleep; resume it")


def _engine_name(resource: RolloutEngine, engine: str) -> str:
    engines = resource.spec.endpoints.static
    for found in engines:
        if engine == found.shown:
            return found.shown
    for found in engines:
        if engine in (found.id, found.url):
            return found.shown
    names = [found.shown for found in engines]
    raise unknown(f"in RolloutEngine {resource.name} the engine", engine, names)
