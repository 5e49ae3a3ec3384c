"""The state of the core: frozen structs, so that a step never changes what came before."""

from enum import StrEnum

import msgspec

from steersman.engine import Control, Gate, Trust
from steersman.table import Epoch
from steersman_operator.fleet.events import ProxyRef
from steersman_operator.fleet.facts import CallKind, Durable, Facts
from steersman_operator.fleet.spec import EngineSpec, PoolSpec, SourceKind, Weights


class Phase(StrEnum):
    """Where an operation stands. The first two touch no engine."""

    CLOSING = "Closing"
    """The gate is closed; the table that says so is on its way. Lasts no time of its own."""
    DRAINING = "Draining"
    """Waiting for the barrier."""
    CLAIMING = "Claiming"
    """The intent is being written."""
    EXECUTING = "Executing"
    """The engine is being called."""
    VERIFYING = "Verifying"
    """The engine is being looked at."""
    AWAITING = "AwaitingTrainer"
    """The trainer may write weights into the engine; it has to say when it is done."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One engine on its way to a goal. It ends by being reached, given up or superseded."""

    goal: Control
    phase: Phase
    started: float
    drain_until: float
    """When draining is given up; moved on by an abort."""
    aborted: bool = False
    """Whether the proxies were told to cut what still runs."""
    in_flight_allowed: bool = False
    """Whether the drain timed out and the operation goes on with requests in flight."""
    disturbed: bool = False
    """Whether a call was sent: from here on only verifying ends it."""
    call: CallKind | None = None
    number: int = 0
    """Of the command whose answer is awaited."""
    call_until: float = 0.0
    """When a call whose outcome is unknown cannot have an effect any more."""
    unknown: bool = False
    """Whether the outcome of ``call`` is unknown."""
    ended_at: float = 0.0
    """When the call ended, or its outcome was given up as unknown."""
    looked_at: float | None = None
    """When the last good look since then began."""
    ask_at: float = 0.0
    """When the engine may be asked for its load again."""
    idle_seen: tuple[float, ...] = ()
    """When the engine was asked and said that it is idle, since the barrier held."""
    tries: int = 0
    next_try: float = 0.0
    weights: Weights | None = None
    """What is to be loaded on the way to the goal; ``None`` once it is."""
    transferred: bool = False
    """Whether the trainer has said that its transfer is done."""
    version_before: str | None = None
    """What the engine showed before the call."""
    tags: tuple[str, ...] = ()
    """Memory tags of the call."""

    @property
    def load(self) -> CallKind | None:
        """The call that brings the weights in; ``None`` if there is nothing to bring in."""
        if self.weights is None:
            return None
        if self.weights.source is SourceKind.DISK:
            return CallKind.REFIT
        return CallKind.LABEL if self.transferred else CallKind.TRANSFER


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    spec: EngineSpec
    pool: str
    gate: Gate = Gate(open=False, count=0)
    closed_at: Epoch | None = None
    """The epoch of the table that closed the gate; ``None`` while it is open or never was."""
    facts: Facts = Facts()
    version: str | None = None
    trust: Trust = Trust.UNKNOWN
    reachable: bool = True
    misses: int = 0
    """Looks in a row that found nobody."""
    detail: str = ""
    """Why the last look had no answer, or what it could not read; a clause for a person."""
    known: bool = False
    """Whether it was looked at, or looking was given up, since this operator leads."""
    counted_version: str | None = None
    """What it contributes to the fleet max: the version that it last opened with."""
    op: Operation | None = None
    settled: Control = Control.ACTIVE
    """The state that it was last put into; an engine that has just started is active."""
    given_up: tuple[Control, int] | None = None
    """A goal, and the generation of the spec, that could not be reached and is not tried again."""
    returning: bool = False
    """Whether an operation that was given up has changed the engine, so that it has to be put back."""
    problem: str = ""
    """Why it was given up, or what is wrong with it."""
    external: bool = False
    """Found in another state than it was put into."""
    loaded: str = ""
    """The ``Weights.id`` that it was last brought to, or was found with."""
    adopts: bool = True
    """Whether it was met, or restarted, since the target was set: if it shows the target's version,
    it has the weights that are asked for, whatever the nonce."""
    unloadable: tuple[str, int] | None = None
    """A ``Weights.id``, and the generation of the spec, that could not be loaded and is not tried
    again."""
    cache_generation: int = 0
    """See :class:`~steersman.engine.EngineRow`."""
    durable: Durable | None = None
    """The durable record as it was last sent to the store."""
    stored_as: int = 0
    """The number of the command that sent it."""
    store_at: float | None = None
    """When it is sent again, after the store has refused it."""
    look_at: float = 0.0
    """When it is to be looked at next."""
    turn: float = 0.0
    """The last turn to be looked at that it was given; it may have been looked at before that."""
    looking: float | None = None
    """When the look under way began."""
    asking_load: float | None = None
    leaving: bool = False
    """Not in the spec any more; its row stays until the brake lets go."""


class ProxyState(msgspec.Struct, frozen=True, kw_only=True):
    """One proxy process."""

    ref: ProxyRef
    """The process that last said hello under this uid; the listed one if none has."""
    met: float = 0.0
    """When this operator first heard of the uid."""
    listed: bool = False
    """Whether the platform has accounted for it."""
    listed_boot: str = ""
    """The boot by the platform's account; empty if the platform does not tell boots apart."""
    connected: bool = False
    acked: Epoch | None = None
    heard: float | None = None
    """The last sign from its routing loop; ``None`` if there never was one."""
    in_flight: dict[str, tuple[int, Epoch]] = {}
    """By engine: how many, and under which table that was."""

    @property
    def disputed(self) -> bool:
        """Whether another process said hello than the platform has listed.

        Either the platform has not seen a restart yet, or the hello is an old one. Until they agree,
        nobody knows which of the two serves, and neither's word counts.
        """
        return self.listed_boot not in ("", self.ref.boot)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    now: float = 0.0
    term: int = 0
    leading: bool = False
    lease_until: float = 0.0
    epoch: Epoch = Epoch()
    published: bool = False
    """Whether this leader has published a table yet."""
    elected_at: float = 0.0
    durable: tuple[Durable, ...] = ()
    """What the leader before left of engines that the spec has not named yet."""
    spec_known: bool = False
    proxies_known: bool = False
    pools: dict[str, PoolSpec] = {}
    engines: dict[str, EngineState] = {}
    proxies: dict[str, ProxyState] = {}
    """By uid."""
    ended: tuple[str, ...] = ()
    """The uids of proxies that were listed and are no more, the latest last."""
    watched: tuple[str, ...] = ()
    brake_until: float | None = None
    numbers: int = 0
    """The last number given to a command."""
    promoted: dict[str, str] = {}
    """By pool: the fleet max in force."""
    look_due: float = 0.0
    """Before then no engine is to be looked at, and no look is overdue."""
    last_turn: float = 0.0
    """The last turn to be looked at that was given to an engine."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The core's own durations, in seconds."""

    grant: float = 10.0
    """A proxy that has not heard from the leader for so long starts nothing that needs its word."""
    fence_margin: float = 5.0
    """Waited beyond the grant before an unreachable proxy is counted out."""
    lease_margin: float = 5.0
    """No call to an engine is begun with less of the lease left."""
    call_timeout: float = 60.0
    verify_timeout: float = 60.0
    """How long an engine is looked at before an operation is given up."""
    look_every: float = 2.0
    """Between two looks at an engine with which nothing is the matter; longer in a large fleet."""
    looks_per_second: float = 40.0
    """At all such engines together."""
    look_soon: float = 0.2
    """The same while an operation waits for what is seen."""
    look_timeout: float = 10.0
    """A look without an answer for so long counts as a miss."""
    misses: int = 3
    """So many in a row make an engine unreachable."""
    first_look: float = 10.0
    """How long a new leader waits for engines that do not answer before it publishes."""
    idle_gap: float = 1.0
    """Between the two looks that prove an engine idle before it is put to sleep."""
    brake: float = 10.0
    """How long the removal of most of a fleet is held back."""
    retry: float = 1.0
    """Before what has failed is tried again; doubled each time."""
    retry_limit: float = 30.0
    abort_grace: float = 30.0
    """For which requests that were cut may still be counted."""
