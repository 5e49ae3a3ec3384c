"""What the fleet table says of one engine.

Two axes of control are kept apart: whether generation is *paused*, and which memory tags are
*released*. A single state loses one of them: pause, sleep, wake must end paused, and a staged wake
(weights first, KV memory later) is not awake half way.
"""

from enum import StrEnum

import msgspec


class Runtime(StrEnum):
    """The engine's software; decides the dialect of its control routes."""

    SGLANG = "sglang"
    VLLM = "vllm"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """Which part of a request the engine computes."""

    PLAIN = "plain"
    PREFILL = "prefill"
    DECODE = "decode"


class Control(StrEnum):
    """The control state that people see; derived from the two axes."""

    ACTIVE = "active"
    PAUSED = "paused"
    ASLEEP = "asleep"


class Trust(StrEnum):
    """How sure we are of the engine's weights."""

    VERIFIED = "verified"
    """The version was read back from the engine."""
    UNSYNCED = "unsynced"
    """The pool has a version, and this engine has not shown it."""
    UNCERTAIN = "uncertain"
    """A refit failed half way; the weights may be half written."""
    UNKNOWN = "unknown"
    """Nothing was read yet."""


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """Whether new requests are admitted. ``count`` goes up at every opening and closing."""

    open: bool = True
    count: int = 0


class EngineRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One row of the fleet table: one inference server reachable at one base URL.

    Fields are only ever added at the end; readers ignore what they do not know, so that proxies and
    operators of neighbouring releases understand each other.
    """

    id: str
    """Stable for the life of the engine's pod: pod UID and port, or the name in a table file."""
    url: str
    """Base URL, dialable, without a trailing slash, a rank or a path of ours."""
    pool: str
    role: Role = Role.PLAIN
    runtime: Runtime = Runtime.UNKNOWN
    zone: str | None = None
    gate: Gate = Gate()
    paused: bool = False
    released: tuple[str, ...] = ()
    """Memory tags given up by a sleep, such as ``weights`` and ``kv_cache``."""
    version: str | None = None
    """Weight version; ``None`` if the engine's weights have no name."""
    trust: Trust = Trust.UNKNOWN
    failed: bool = False
    """The engine is known to be broken; it serves nothing and its version does not count."""
    boot_id: str | None = None
    """Changes when the engine's process starts anew; ``None`` if it was never learnt."""
    cache_generation: int = 0
    """Raised at every change of the engine's weights and every flush of its cache: what was known of
    its KV blocks is void. Engines tell of both late or not at all, so the writer's word counts."""

    @property
    def control(self) -> Control:
        """The state that people see: memory given up is asleep, whether or not it is paused too."""
        if self.released:
            return Control.ASLEEP
        return Control.PAUSED if self.paused else Control.ACTIVE
