"""Why an engine may not take a request: one function, and words for its answers.

The routing view, the body of a 503, ``/status`` and ``explain`` all ask :func:`reason_out`, so they
never contradict each other.

The order of the checks is part of the meaning. What waiting does not cure comes first (another
role, failed, half-written weights, asleep, weights that were never shown, unhealthy), then what an
operation is going to end (paused, a closed gate), then the version, then the breaker. So the reasons ``paused`` and
``gate_closed`` mean: nothing else is wrong with this engine, except perhaps an old version, and it
is closed just now for something that may bring a new one. Exactly those engines are worth waiting
for, see :data:`WAITABLE`. And ``breaker_open`` means: but for its breaker this engine would serve.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from steersman.engine import EngineRow, Role, Trust
from steersman.policy import AnyVersion, Verdict, VersionPolicy, judge
from steersman.settings import PoolSettings
from steersman.versions import VersionOrder

# Members of enums, looked up once: Python 3.11 takes 70 ns for each, and tables have a thousand rows.
_VERIFIED = Trust.VERIFIED
_UNCERTAIN = Trust.UNCERTAIN
_UNSYNCED = Trust.UNSYNCED


class Reason(StrEnum):
    """What keeps an engine from taking a request."""

    ROLE = "role"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    ASLEEP = "asleep"
    UNSYNCED = "unsynced"
    UNHEALTHY = "unhealthy"
    PAUSED = "paused"
    GATE_CLOSED = "gate_closed"
    STALE = "stale"
    UNVERSIONED = "unversioned"
    BREAKER_OPEN = "breaker_open"
    """Its requests failed in a row, and it is left alone; or one request is probing it."""
    EXCLUDED = "excluded"
    """The request was sent there already and came back."""
    FULL = "full"
    """The engine has ``max_in_flight_per_engine`` requests of this proxy."""


WAITABLE = frozenset({Reason.PAUSED, Reason.GATE_CLOSED})
"""Reasons that an operation ends. A request is held while an engine is out for one of these.

An engine that is also too old for the policy counts too: it is closed to be refitted, perhaps to
the very version that is asked for.
"""


class Facts(Protocol):
    """What :func:`reason_out` looks at; an :class:`~steersman_proxy.routing.engines.Engine`."""

    @property
    def row(self) -> EngineRow:
        """The table's row."""
        ...

    @property
    def version(self) -> str | None:
        """The row's version, or the engine's own report."""
        ...

    @property
    def trust(self) -> Trust:
        """The row's trust, or what follows from the engine's own report."""
        ...

    @property
    def healthy(self) -> bool:
        """What probes and connections say."""
        ...

    @property
    def breaker_open(self) -> bool:
        """Whether the breaker lets no request through."""
        ...


def reason_out(
    engine: Facts,
    *,
    fleet_max: str | None,
    order: VersionOrder,
    policy: VersionPolicy,
    role: Role,
    settings: PoolSettings,
    rl_enabled: bool = True,
    verdicts: dict[str | None, Verdict] | None = None,
) -> Reason | None:
    """The first reason that keeps ``engine`` out; ``None`` if it is eligible.

    With RL switched off only role, health and the breaker count. ``verdicts`` remembers what ``policy`` says of
    a version, for callers that ask about many engines of one pool with the same arguments.
    Fullness and exclusion belong to a moment and to a request, and are not looked at here.
    """
    if engine.row.role is not role:
        return Reason.ROLE
    if not rl_enabled:
        return _broken(engine) if engine.healthy else Reason.UNHEALTHY
    reason = _unfit(engine, fleet_max=fleet_max, policy=policy, settings=settings)
    if reason is not None:
        return reason
    if engine.row.paused:
        return Reason.PAUSED
    if not engine.row.gate.open:
        return Reason.GATE_CLOSED
    verdict = None if verdicts is None else verdicts.get(engine.version)
    if verdict is None:
        verdict = judge(policy, version=engine.version, fleet_max=fleet_max, order=order)
        if verdicts is not None:
            verdicts[engine.version] = verdict
    return _OF_VERDICT[verdict] or _broken(engine)


def _broken(engine: Facts) -> Reason | None:
    return Reason.BREAKER_OPEN if engine.breaker_open else None


def _unfit(
    engine: Facts, *, fleet_max: str | None, policy: VersionPolicy, settings: PoolSettings
) -> Reason | None:
    """What waiting does not cure."""
    if engine.row.failed:
        return Reason.FAILED
    trust = engine.trust
    if trust is _UNCERTAIN:
        return Reason.UNCERTAIN
    if engine.row.released:
        return Reason.ASLEEP
    if trust is not _VERIFIED and untrusted(
        trust, fleet_max=fleet_max, policy=policy, settings=settings
    ):
        return Reason.UNSYNCED
    return None if engine.healthy else Reason.UNHEALTHY


def untrusted(
    trust: Trust, *, fleet_max: str | None, policy: VersionPolicy, settings: PoolSettings
) -> bool:
    """Whether weights of which that is known may not answer a request under ``policy``.

    Half-written ones never may. Others that were not read back may as long as the pool has no version,
    or if it admits them; but a policy that compares versions they cannot satisfy.
    """
    if trust is _VERIFIED:
        return False
    if trust is _UNCERTAIN:
        return True
    if settings.admit_unsynced and isinstance(policy, AnyVersion):
        return False
    # `unknown` of a pool that has a version has not shown it. `unsynced` stays so when nobody is left
    # that has it, because all were restarted.
    return trust is _UNSYNCED or fleet_max is not None


_OF_VERDICT: Mapping[Verdict, Reason | None] = {
    Verdict.ELIGIBLE: None,
    Verdict.STALE: Reason.STALE,
    Verdict.UNVERSIONED: Reason.UNVERSIONED,
}


def without_one(counts: Mapping[Reason, int], reason: Reason) -> Mapping[Reason, int]:
    """``counts`` with one engine less that is out for ``reason``."""
    fewer = {**counts, reason: counts.get(reason, 0) - 1}
    return {key: count for key, count in fewer.items() if count > 0}


def sentence(
    reason: Reason | None,
    engine: Facts,
    *,
    fleet_max: str | None,
    policy: VersionPolicy,
    role: Role,
    in_flight: int = 0,
) -> str:
    """``reason`` in words, for one engine and one request; ``None`` reads *eligible*."""
    version = "no version" if engine.version is None else f"version {engine.version}"
    match reason:
        case None:
            return "eligible"
        case Reason.ROLE:
            return f"computes {engine.row.role.value}, the request needs {role.value}"
        case Reason.ASLEEP:
            return f"has released the memory of its {' and '.join(engine.row.released)}"
        case Reason.UNSYNCED:
            pool = "has had one" if fleet_max is None else f"is at {fleet_max}"
            return f"shows {version} ({engine.trust.value}) while the pool {pool}"
        case Reason.STALE:
            newest = "" if fleet_max is None else f", the newest is {fleet_max}"
            return f"{version} is too old for {policy}{newest}"
        case Reason.UNVERSIONED:
            return f"has no version, which {policy} does not accept"
        case Reason.FULL:
            return f"{in_flight} in flight from this proxy, which is the limit"
        case _:
            return _FIXED[reason]


_FIXED: Mapping[Reason, str] = {
    Reason.FAILED: "known to be broken",
    Reason.UNCERTAIN: "its last refit failed half way; needs a whole reload",
    Reason.UNHEALTHY: "does not answer",
    Reason.PAUSED: "generation is paused",
    Reason.GATE_CLOSED: "closed for an operation",
    Reason.BREAKER_OPEN: "failed too often in a row; a single request will try it",
    Reason.EXCLUDED: "was tried already",
}
