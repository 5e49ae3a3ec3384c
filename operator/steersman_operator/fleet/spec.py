"""What people want of a fleet, in the form that the core works on.

Made from RolloutEngine resources, or from the same YAML in a directory. Durations are in seconds.
"""

from enum import StrEnum

import msgspec

from steersman.engine import Control, Role, Runtime
from steersman.settings import PoolSettings


class Drift(StrEnum):
    """What happens when an engine is found in another state than it was put into."""

    OBSERVE = "Observe"
    """Its gate is closed and a condition says so; nothing is reverted (trainers pause engines)."""
    ENFORCE = "Enforce"
    """It is put back."""


class OnTimeout(StrEnum):
    """What happens when an engine is not drained in time."""

    FAIL = "Fail"
    """The operation is given up and the gate opens again."""
    ABORT = "Abort"
    """The proxies cut what still runs, then the operation goes on."""
    PROCEED = "ProceedInFlight"
    """The operation goes on with requests in flight; never with sleep."""


class OnUnreachable(StrEnum):
    """What happens when a proxy cannot be reached."""

    WAIT = "Wait"
    FENCE = "Fence"
    """Proxies stop starting requests a grant time after their last contact; then they are counted
    out."""


class RolloutMode(StrEnum):
    """Whether requests in flight are waited for."""

    QUIESCE = "Quiesce"
    IN_PLACE = "InPlace"


class PauseMode(StrEnum):
    """What an engine does with the requests that it has when it is paused."""

    KEEP = "Keep"
    """Freeze them with their KV memory."""
    RECOMPUTE = "Recompute"
    """Put them back into the queue; their KV memory is dropped and computed anew."""
    ABORT = "Abort"
    """End them with what they have."""


class PromoteAt(StrEnum):
    """When a new version begins to count for the fleet max."""

    FIRST_OPEN = "FirstOpen"
    """When the first engine opens with it."""
    ALL_OPEN = "AllOpen"
    """When every engine of the pool that is not failed or uncertain has it."""


class SourceKind(StrEnum):
    """Who brings new weights into an engine."""

    DISK = "Disk"
    """The engine reads them from a path, told by the operator."""
    EXTERNAL = "External"
    """The trainer transfers them; the operator makes room for it and waits."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the engines of a pool are to have."""

    version: str
    """As engines report it."""
    source: SourceKind
    path: str = ""
    """Of weights on disk, as the engines see it."""
    nonce: str = ""
    """Another one asks for the same weights to be loaded once more."""
    checksum: str = ""
    """What an engine that can compute one must have afterwards; empty if that is not looked at."""

    @property
    def id(self) -> str:
        """Differs where an engine has to be loaded anew."""
        return f"{self.version}\n{self.nonce}"


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine to be managed."""

    id: str
    name: str = ""
    """The name that people gave it, if they did; commands and pages show it."""
    url: str
    runtime: Runtime = Runtime.UNKNOWN
    role: Role = Role.PLAIN
    zone: str | None = None
    boot_id: str | None = None
    """The identity of the running process, where the platform knows it better than the engine."""


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: a RolloutEngine."""

    name: str
    models: tuple[str, ...]
    default: bool = False
    settings: PoolSettings = PoolSettings()
    engines: tuple[EngineSpec, ...] = ()
    state: Control = Control.ACTIVE
    overrides: dict[str, Control] = {}
    """By engine id: a state of its own."""
    generation: int = 0
    """Goes up with each change of the spec; an operation that failed is tried again then."""
    drift: Drift = Drift.OBSERVE
    mode: RolloutMode = RolloutMode.QUIESCE
    pause_mode: PauseMode = PauseMode.ABORT
    max_unavailable: str = "1"
    """A number or a percentage of the pool's engines; a percentage rounds down, to at least 1."""
    promote_at: PromoteAt = PromoteAt.FIRST_OPEN
    drain_timeout: float = 600.0
    on_timeout: OnTimeout = OnTimeout.FAIL
    on_unreachable: OnUnreachable = OnUnreachable.WAIT
    ordinals: dict[str, int] = {}
    weights: Weights | None = None
    """The weights that the engines are to have; ``None`` leaves them as they are."""
    rollout_paused: bool = False
    """Whether no further engine is closed for new weights; what has begun is finished."""
    refit_timeout: float = 300.0
    """For an engine to load weights from disk."""
    trainer_timeout: float = 1800.0
    """How long an engine waits for the trainer's transfer before its weights count as unknown."""

    def goal(self, engine: str) -> Control:
        """The state that an engine of this pool is to be in."""
        return self.overrides.get(engine, self.state)

    def unavailable_limit(self) -> int:
        """How many engines may be closed at once by operations that the plan may spread out."""
        text = self.max_unavailable.strip()
        if text.endswith("%"):
            return max(1, len(self.engines) * int(text[:-1]) // 100)
        return max(1, int(text))
