"""The conditions of a pool: few, truthful, and made for ``wait``."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from steersman.engine import Trust
from steersman_operator.api.standing import EXTERNAL, Standing, synced
from steersman_operator.fleet.spec import PoolSpec, SourceKind
from steersman_operator.fleet.state import Phase

NAMED = 5
"""Engines that a message names; the others are counted."""

AS_EXPECTED = "AsExpected"
"""The reason of a condition that says nothing bad."""


class ConditionType(StrEnum):
    """The names, as on a RolloutEngine."""

    READY = "Ready"
    """The operator has published its table, no other pool has what this one asks for, every engine is
    in the state that is asked for and can be reached, and those that are to serve take requests."""
    PROGRESSING = "Progressing"
    """Some engine is on its way; says what is waited for."""
    DEGRADED = "Degraded"
    """Some engine cannot be brought to where it should be, or cannot be reached; says why."""
    EXTERNALLY_CONTROLLED = "ExternallyControlled"
    """Somebody else has changed the state of an engine."""
    UNSYNCED = "Unsynced"
    """Some engine has not shown the pool's version."""
    SYNCED = "Synced"
    """Every engine has the weights that are asked for, and has shown them; also if none are."""
    READY_FOR_WEIGHTS = "ReadyForWeights"
    """Every engine that a trainer has to transfer weights into is closed, drained and paused, and waits
    for it."""
    REMOVAL_HELD_BACK = "RemovalHeldBack"
    """Most of the engines would go at once; they are kept for a while."""
    CONFLICT = "Conflict"
    """Another resource claims the same engine, the same model, or to be the default."""
    MANIFEST_INVALID = "ManifestInvalid"
    """The file cannot be used as it is now; its last good version is in force."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition; ``status`` is ``True`` or ``False``, as in Kubernetes."""

    type: str
    status: str
    reason: str = AS_EXPECTED
    message: str = ""


def conditions_of(
    engines: Sequence[Standing],
    *,
    pool: PoolSpec,
    published: bool,
    fleet_max: str | None,
    conflicts: Sequence[str] = (),
    lost: Sequence[str] = (),
    errors: Sequence[str] = (),
) -> list[Condition]:
    """All conditions of a pool, always in the same order.

    ``published`` is whether the operator leads and has told the proxies of its fleet; ``conflicts``
    and ``errors`` are the sentences about its manifest, ``lost`` those conflicts in which another pool
    has what it asks for.
    """
    moving = [one for one in engines if one.engine.op is not None]
    troubled = [one for one in engines if one.trouble and one.phase != EXTERNAL]
    external = [one for one in engines if one.engine.external]
    unsynced = [one for one in engines if _unsynced(one, fleet_max)]
    leaving = [one for one in engines if one.engine.leaving]
    return [
        _ready(engines, published=published, lost=lost),
        _about(ConditionType.PROGRESSING, moving, "Operation", _progress),
        _about(ConditionType.DEGRADED, troubled, "EnginesInTrouble", lambda one: one.trouble),
        _about(ConditionType.EXTERNALLY_CONTROLLED, external, "Drift", lambda one: one.trouble),
        _about(ConditionType.UNSYNCED, unsynced, "VersionNotShown", _shown),
        _synced(engines, pool),
        _ready_for_weights(engines, pool),
        _about(ConditionType.REMOVAL_HELD_BACK, leaving, "Brake", lambda _: "not in the spec"),
        _told(ConditionType.CONFLICT, conflicts, "ClaimedTwice"),
        _told(ConditionType.MANIFEST_INVALID, errors, "LastGoodVersionInForce"),
    ]


def _ready(engines: Sequence[Standing], *, published: bool, lost: Sequence[str]) -> Condition:
    kind = ConditionType.READY.value
    if lost:
        # What is left of it may work, but it is not what the manifest asks for.
        return Condition(type=kind, status="False", reason="Conflict", message=_several(lost))
    members = [one for one in engines if not one.engine.leaving]
    if not members:
        return Condition(type=kind, status="False", reason="NoEngines", message="it has no engines")
    if not published:
        message = "the operator has not told the proxies of this fleet yet"
        return Condition(type=kind, status="False", reason="NotPublished", message=message)
    missing = [one for one in members if not one.in_place]
    if not missing:
        return Condition(type=kind, status="True", reason="Settled")
    message = _listed(missing, _why_not_ready)
    return Condition(type=kind, status="False", reason="EnginesNotReady", message=message)


def _synced(engines: Sequence[Standing], pool: PoolSpec) -> Condition:
    kind, target = ConditionType.SYNCED.value, pool.weights
    if target is None:
        return Condition(type=kind, status="True", reason="NoTarget")
    missing = [one for one in engines if not one.engine.leaving and not synced(one.engine, pool)]
    if not missing:
        return Condition(type=kind, status="True", reason="Loaded", message=target.version)
    paused = "RolloutPaused" if pool.rollout_paused else "WeightsNotLoaded"
    message = f"{target.version} is missing in " + _listed(missing, _why_not_synced)
    return Condition(type=kind, status="False", reason=paused, message=message)


def _ready_for_weights(engines: Sequence[Standing], pool: PoolSpec) -> Condition:
    kind, target = ConditionType.READY_FOR_WEIGHTS.value, pool.weights
    if target is None or target.source is not SourceKind.EXTERNAL:
        return Condition(type=kind, status="False", reason="NoTransfer")
    missing = [one for one in engines if not synced(one.engine, pool) and not one.engine.leaving]
    waiting = [one for one in missing if one.phase == Phase.AWAITING.value]
    if not missing:
        return Condition(type=kind, status="False", reason="Loaded", message=target.version)
    if len(waiting) == len(missing):
        names = ", ".join(one.name for one in waiting[:NAMED])
        more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
        message = f"{names}{more} wait for the transfer of {target.version}"
        return Condition(type=kind, status="True", reason="AwaitingTrainer", message=message)
    behind = [one for one in missing if one.phase != Phase.AWAITING.value]
    message = _listed(behind, _progress)
    return Condition(type=kind, status="False", reason="NotYet", message=message)


def _about(
    kind: ConditionType, engines: Sequence[Standing], reason: str, why: Callable[[Standing], str]
) -> Condition:
    """A condition that holds if there are such engines."""
    if not engines:
        return Condition(type=kind.value, status="False")
    message = _listed(engines, why)
    return Condition(type=kind.value, status="True", reason=reason, message=message)


def _told(kind: ConditionType, sentences: Sequence[str], reason: str) -> Condition:
    if not sentences:
        return Condition(type=kind.value, status="False")
    return Condition(type=kind.value, status="True", reason=reason, message=_several(sentences))


def _several(sentences: Sequence[str]) -> str:
    message = "; ".join(sentences[:NAMED])
    if len(sentences) > NAMED:
        message += f"; and {len(sentences) - NAMED} more"
    return message


def _listed(engines: Sequence[Standing], why: Callable[[Standing], str]) -> str:
    parts = []
    for one in engines[:NAMED]:
        reason = why(one)
        parts.append(f"{one.name}: {reason}" if reason else one.name)
    if len(engines) > NAMED:
        parts.append(f"and {len(engines) - NAMED} more")
    return "; ".join(parts)


def _why_not_ready(one: Standing) -> str:
    if one.settled and one.engine.reachable:
        return one.withheld or "is closed"
    return one.trouble or _progress(one)


def _progress(one: Standing) -> str:
    return f"{one.phase}, {one.waiting}" if one.waiting else one.phase


def _unsynced(one: Standing, fleet_max: str | None) -> bool:
    trust = one.engine.trust
    if trust in (Trust.UNSYNCED, Trust.UNCERTAIN):
        return True
    return fleet_max is not None and one.engine.known and trust is not Trust.VERIFIED


def _why_not_synced(one: Standing) -> str:
    return one.trouble or one.waiting or _shown(one)


def _shown(one: Standing) -> str:
    version = one.engine.version
    shown = "shows no version" if version is None else f"shows {version}"
    return f"{shown}, {one.engine.trust.value}"
