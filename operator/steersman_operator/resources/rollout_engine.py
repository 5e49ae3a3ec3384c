"""RolloutEngine: a set of identical engines serving one model.

Each attribute's docstring is its line in ``docs/configuration/rolloutengine.md``.
"""

from typing import ClassVar

from pydantic import Field

from steersman.documents.model import Model
from steersman.documents.names import EngineUrl, RoleName, RuntimeName, Text
from steersman.documents.routing import Routing
from steersman.documents.urls import authority
from steersman.documents.values import Whole
from steersman.engine import Role, Runtime
from steersman_operator.fleet.spec import (
    Drift,
    OnTimeout,
    OnUnreachable,
    PauseMode,
    PoolSpec,
    PromoteAt,
    RolloutMode,
)
from steersman_operator.resources.group import ResourceName
from steersman_operator.resources.values import (
    DriftName,
    EngineName,
    OnTimeoutName,
    OnUnreachableName,
    PauseModeName,
    PromoteAtName,
    RolloutModeName,
    Seconds,
    Share,
    State,
    StateName,
)

DEFAULTS = PoolSpec(name="", models=())


class StaticEngine(Model):
    """One engine by its address."""

    name: EngineName | None = None
    """What people, `overrides` and the commands call it; unique in the pool. By default host and
    port of the URL. What is recorded of an engine goes by host and port, so a name may be changed
    at any time."""
    url: EngineUrl
    """Base URL, without a path. An engine belongs to one pool: of two that name it, the one that has
    it keeps it as long as it names it. `localhost` is the same engine as `127.0.0.1`."""
    role: RoleName = Role.PLAIN
    """The part of a request that it computes."""
    zone: Text | None = None
    """Failure domain or rack, for people."""
    runtime: RuntimeName | None = None
    """The engine's software; by default that of `spec.runtime`."""

    @property
    def id(self) -> str:
        """The identity of the engine: its address, as names are changed."""
        address = authority(self.url)
        port = address.removeprefix("localhost")
        # Two identities of one engine would be two gates, and each of two pools would call it.
        return f"127.0.0.1{port}" if port != address and port[:1] in ("", ":") else address

    @property
    def shown(self) -> str:
        """What it is called: without a name, its address as it is written."""
        return self.name or authority(self.url)


class Endpoints(Model):
    """Where the engines are."""

    static: list[StaticEngine] = Field(default_factory=list)
    """The engines, one entry each."""


class Override(Model):
    """A state of its own for one engine; wins over `spec.state`."""

    engine: EngineName
    """The name of an engine in `endpoints.static`."""
    state: StateName
    """The state that it is to have."""


class WeightVersionRef(Model):
    """The weights that the engines are to have."""

    name: ResourceName
    """The name of a WeightVersion of the same model."""


class Rollout(Model):
    """How new weights are brought to the engines."""

    max_unavailable: Share = DEFAULTS.max_unavailable
    """How many engines the operator may close at once for what can be spread out: a number or a
    percentage of the pool's engines, rounded down, at least 1. It counts every closed engine. What
    you ask for with `state` and `overrides` is done as told, all engines at once."""
    mode: RolloutModeName = RolloutMode.QUIESCE
    """`Quiesce` waits until an engine has no requests; `InPlace` changes it with requests in
    flight."""
    pause_mode: PauseModeName = PauseMode.ABORT
    """What an engine does with the requests that it still has when it is paused: `Keep` freezes
    them with their KV memory, `Recompute` puts them back into its queue, `Abort` ends them."""
    promote_at: PromoteAtName = PromoteAt.FIRST_OPEN
    """When a new version begins to be the newest of the pool: once the first engine opens with it,
    or once all have."""
    paused: bool = False
    """Whether no further engine is closed for new weights; one that has begun is finished.
    `steersman rollout pause` and `rollout resume` write it."""
    refit_timeout_seconds: Seconds = int(DEFAULTS.refit_timeout)
    """How long an engine may take to load weights from disk. After it nobody knows whether it has, and
    it is loaded once more."""
    trainer_timeout_seconds: Seconds = int(DEFAULTS.trainer_timeout)
    """How long an engine stays closed for the trainer to transfer `external` weights. After it what
    the engine holds counts as unknown, and it takes no requests until it was loaded anew."""


class Drain(Model):
    """Waiting until an engine has no requests, before it is changed."""

    timeout_seconds: Seconds = int(DEFAULTS.drain_timeout)
    """How long to wait."""
    on_timeout: OnTimeoutName = OnTimeout.FAIL
    """What then: `Fail` gives the change up and opens the engine again, `Abort` has the proxies cut
    what still runs, `ProceedInFlight` goes on regardless (not with `Asleep`, as an engine that
    gives up its memory can crash under requests)."""


class EngineAuth(Model):
    """Keys that the engines ask for. Files, so that the resource can be shown to anybody."""

    holds_secrets: ClassVar[bool] = True

    data_key_file: str | None = None
    """A file whose only key is the engines' `--api-key`; relative to the directory of this file."""
    admin_key_file: str | None = None
    """A file whose only key is SGLang's `--admin-api-key`, for routes that change an engine;
    without it the data key is used."""


class RolloutEngineSpec(Model):
    """What the engines are, and what is wanted of them."""

    model: Text
    """The name under which clients ask for the model. A model belongs to one pool: of two that name
    it, the one that has it keeps it as long as it names it."""
    default: bool = False
    """Whether requests without a model go here; at most one pool, which keeps it in the same way."""
    runtime: RuntimeName = Runtime.UNKNOWN
    """The engines' software; `unknown` asks each engine."""
    endpoints: Endpoints = Endpoints()
    """Where the engines are."""
    state: StateName = State.ACTIVE
    """What the engines are to be: serving, paused, or asleep with their memory given up. `steersman
    pause`, `resume`, `sleep` and `wake` write it."""
    drift: DriftName = Drift.OBSERVE
    """What happens if somebody else pauses an engine or puts it to sleep: `Observe` sends it no
    requests and says so, `Enforce` reverts it."""
    weight_version_ref: WeightVersionRef | None = None
    """The weights that the engines are to have; without, whatever they have. `steersman refit` and
    `rollout undo` write it. If it cannot be followed, the weights of before stay what is wanted."""
    refit_nonce: Text | None = None
    """Another text here asks for the same weights to be loaded once more. `steersman refit --again`
    writes it."""
    version_history_limit: Whole = 10
    """How far back `steersman rollout undo` can go, and how many WeightVersions that `steersman
    refit` has made and that are no longer used are kept."""
    overrides: list[Override] = Field(default_factory=list)
    """States of single engines."""
    rollout: Rollout = Rollout()
    """How new weights are brought to the engines."""
    drain: Drain = Drain()
    """Waiting until an engine has no requests."""
    on_unreachable_proxy: OnUnreachableName = OnUnreachable.WAIT
    """What happens if a proxy cannot be reached: `Wait` changes no engine until it can; under
    `Fence` such a proxy stops sending to the pool by itself, and the operator goes on after that
    time."""
    routing: Routing = Routing()
    """How the proxies choose an engine."""
    engine_auth: EngineAuth = EngineAuth()
    """Keys that the engines ask for."""
