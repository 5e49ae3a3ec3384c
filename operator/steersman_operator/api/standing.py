"""Where an engine stands, for people: one word, and one sentence where there is something to say.

The status, the conditions and every command take their words from here, so that they agree.
"""

import math

import msgspec

from steersman.engine import Control, Trust
from steersman_operator.fleet.aim import awaits_weights
from steersman_operator.fleet.barrier import Barrier, barrier, in_flight
from steersman_operator.fleet.endings import AWAITING_WEIGHTS as LOAD_WEIGHTS
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.readiness import disturbs_nobody, idle_enough, needs_clear
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, Operation, Phase, State, Timing
from steersman_operator.fleet.weights import wanted

PENDING = "Pending"
"""Nothing is under way yet, or the proxies have not been told of it."""
UNKNOWN = "Unknown"
"""Nobody has looked at it since this operator leads."""
UNREACHABLE = "Unreachable"
GIVEN_UP = "GivenUp"
"""It is not where it should be, and nothing more is tried."""
EXTERNAL = "External"
"""Somebody else has changed its state, and it is left alone."""
LEAVING = "Leaving"
"""Not in the spec any more."""
AWAITING_WEIGHTS = "AwaitingWeights"
"""Awake again, and paused until somebody has loaded weights into it."""
SETTLED = "Settled"

UNCERTAIN_WEIGHTS = (
    "its weights may be half written; ask for weights on disk, have a trainer transfer them whole, or "
    "restart it"
)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One engine in words."""

    engine: EngineState
    goal: Control
    """What the spec asks for."""
    phase: str
    """A phase of an operation, or one of the words above."""
    settled: bool
    """Whether it is in the state that is asked for, and nothing is under way."""
    in_place: bool
    """Whether it is also reachable, and takes requests if it is to serve."""
    open: bool
    """Whether its gate is open, and the proxies were told so."""
    withheld: str = ""
    """Why it gets no requests although its gate is open."""
    trouble: str = ""
    """Why it cannot be brought to where it should be."""
    waiting: str = ""
    """What the operation under way waits for."""

    @property
    def name(self) -> str:
        """What people call it."""
        return display_name(self.engine)

    @property
    def control(self) -> Control | None:
        """What it is; ``None`` if that is not known, as of one that does not answer any more."""
        return self.engine.facts.control if self.engine.reachable else None

    @property
    def takes_requests(self) -> bool:
        """Whether the proxies may send to it."""
        return self.open and not self.withheld

    @property
    def sentence(self) -> str:
        """The most important thing to say; empty if all is well."""
        if self.trouble:
            return self.trouble
        if self.waiting or self.withheld:
            return self.waiting or self.withheld
        return "" if self.phase == SETTLED else self.phase.lower()


def display_name(engine: EngineState) -> str:
    """The name of an engine in its manifest, or its id."""
    return engine.spec.name or engine.spec.id


def standing(
    engine: EngineState, pool: PoolSpec, *, state: State, timing: Timing, now: float
) -> Standing:
    """Put one engine into words."""
    goal = pool.goal(engine.spec.id)
    published = state.leading and state.published
    settled = (
        published
        and engine.op is None
        and engine.known
        and engine.facts.control is goal
        and engine.settled is goal
    )
    opened = published and engine.gate.open
    withheld = _withheld(engine, pool, state) if opened else ""
    phase = _phase(engine, pool, goal=goal, settled=settled)
    waiting = "" if engine.op is None else _waiting(engine, engine.op, pool, state, timing, now)
    if phase == PENDING and not published:
        waiting = Barrier(unpublished=True).sentence(now=now, proxies={})
    elif phase == PENDING and settled:
        waiting = _its_turn(pool)
    serves = goal is not Control.ACTIVE or (opened and not withheld)
    return Standing(
        engine=engine,
        goal=goal,
        phase=phase,
        settled=settled,
        in_place=settled and serves and engine.reachable,
        open=opened,
        withheld=withheld,
        trouble=_trouble(engine, pool, phase=phase),
        waiting=waiting,
    )


def _phase(engine: EngineState, pool: PoolSpec, *, goal: Control, settled: bool) -> str:
    if engine.op is not None:
        return engine.op.phase.value
    if not engine.reachable:
        return UNREACHABLE
    if not engine.known:
        return UNKNOWN
    if engine.leaving:
        return LEAVING
    if settled:
        if _not_loaded(engine, pool):
            return GIVEN_UP
        waits = goal is not Control.ASLEEP and wanted(engine, pool) is not None
        return PENDING if waits else SETTLED
    if _not_loaded(engine, pool):
        return GIVEN_UP
    if awaits_weights(engine, pool):
        return AWAITING_WEIGHTS
    if _gave_up(engine, pool) or engine.facts.released is None:
        return GIVEN_UP
    return EXTERNAL if engine.external else PENDING


def _withheld(engine: EngineState, pool: PoolSpec, state: State) -> str:
    """What routing says of its weights, as far as it does not depend on the request."""
    if engine.trust is Trust.UNCERTAIN:
        return "takes no requests, as its weights are uncertain"
    version = state.promoted.get(pool.name)
    if engine.trust is Trust.UNSYNCED and version is None and not pool.settings.admit_unsynced:
        return "takes no requests until it shows a version"
    if version is None or engine.trust is Trust.VERIFIED or pool.settings.admit_unsynced:
        return ""
    return f"takes no requests until it shows version {version}"


def _its_turn(pool: PoolSpec) -> str:
    version = "" if pool.weights is None else pool.weights.version
    if pool.rollout_paused:
        return f"to be given {version}; the rollout is paused"
    return f"waiting for its turn to be given {version} (maxUnavailable {pool.max_unavailable})"


def _not_loaded(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether the weights that are asked for could not be loaded and are not tried again."""
    target = pool.weights
    return target is not None and engine.unloadable == (target.id, pool.generation)


def synced(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether an engine has the weights that are asked for; so it has if none are."""
    target = pool.weights
    if target is None:
        return True
    return (
        engine.facts.sound
        and engine.loaded == target.id
        and engine.version == target.version
        and engine.trust is Trust.VERIFIED
    )


def _gave_up(engine: EngineState, pool: PoolSpec) -> bool:
    """Whether what the spec asks for now was tried and is not tried again."""
    return engine.given_up == (pool.goal(engine.spec.id), pool.generation)


def _trouble(engine: EngineState, pool: PoolSpec, *, phase: str) -> str:
    if not engine.reachable:
        why = engine.detail or "does not answer"
        return f"{why}; {engine.problem}" if engine.problem else why
    if engine.problem and (engine.op is not None or phase == GIVEN_UP):
        # A problem of the past is kept until the next operation; it says nothing of a settled engine.
        return engine.problem
    if phase == AWAITING_WEIGHTS:
        return UNCERTAIN_WEIGHTS if engine.facts.uncertain else LOAD_WEIGHTS
    if engine.problem and _not_loaded(engine, pool):
        return engine.problem
    if phase == EXTERNAL:
        found = engine.facts.control
        return (
            f"found {'unknown' if found is None else found.value}, was put {engine.settled.value}; "
            f"left alone, as drift is {pool.drift.value}"
        )
    return ""


def _waiting(
    engine: EngineState,
    operation: Operation,
    pool: PoolSpec,
    state: State,
    timing: Timing,
    now: float,
) -> str:
    match operation.phase:
        case Phase.CLOSING | Phase.DRAINING:
            return _draining(engine, operation, pool, state, timing, now)
        case Phase.CLAIMING:
            text = "writing down what is about to be done"
        case Phase.EXECUTING:
            call = "the call" if operation.call is None else operation.call.value
            text = f"waiting for the engine to answer: {call}"
        case Phase.AWAITING:
            version = "" if operation.weights is None else operation.weights.version
            # In minutes, so that the status does not change every second.
            left = max(1, math.ceil((operation.call_until - now) / 60))
            return f"the trainer may transfer {version}, and has about {left} min to commit it"
        case _ if operation.call in (CallKind.REFIT, CallKind.LABEL) and operation.weights:
            text = "looking whether it shows " + operation.weights.version
        case _:
            text = "looking whether it has become " + operation.goal.value
    return text + _going_on(engine, operation, pool, state)


def _draining(
    engine: EngineState,
    operation: Operation,
    pool: PoolSpec,
    state: State,
    timing: Timing,
    now: float,
) -> str:
    next_ = (
        "waiting before the next try" if now < operation.next_try else "about to call the engine"
    )
    if disturbs_nobody(engine, operation):
        return next_
    stands = barrier(
        engine,
        proxies=state.proxies,
        on_unreachable=pool.on_unreachable,
        now=now,
        since=state.elected_at,
        timing=timing,
    )
    clear = needs_clear(operation, pool)
    if not clear:
        # What is in flight is not waited for.
        stands = Barrier(unacked=stands.unacked, unpublished=stands.unpublished)
    if not (stands.clear if clear else stands.acknowledged):
        return stands.sentence(now=now, proxies=state.proxies)
    if clear and not idle_enough(operation, timing=timing):
        idle = "all proxies have let go; waiting for the engine to say that it is idle"
        return f"{idle} ({engine.detail})" if engine.detail else idle
    return next_ + _going_on(engine, operation, pool, state)


def _going_on(engine: EngineState, operation: Operation, pool: PoolSpec, state: State) -> str:
    """How many requests are disturbed by an operation that does not wait for them."""
    if needs_clear(operation, pool) or disturbs_nobody(engine, operation):
        return ""
    if engine.closed_at is None:
        return ", going on with what is in flight"
    counts = [
        in_flight(proxy, engine.spec.id, engine.closed_at) for proxy in state.proxies.values()
    ]
    known = sum(count or 0 for count in counts)
    if None in counts:
        return f", going on with at least {known} in flight"
    return f", going on with {known} in flight" if known else ""
