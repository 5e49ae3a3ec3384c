"""Faults that a test injects into a route: late, wrong, lost and fatal answers.

A fault is armed for a route (a path, or ``*`` for all but the side channel) and for a number of
requests. ``when`` says whether it strikes instead of the handler (``before``) or after the handler
has done its work (``after``): ``{"when": "after", "drop": true}`` is a control call that took
effect and whose answer was lost; ``{"status": 200, "body": {...}}`` before it is a lie.

``refit`` in the place of a route means every request that loads weights, by whatever route. Such a
request can also be struck in the middle of the load (``midway``), or lie about what it has done.
"""

import enum
from typing import Any

import msgspec


class When(enum.Enum):
    """At which moment a fault strikes."""

    BEFORE = "before"
    AFTER = "after"
    TOKENS = "tokens"
    """During generation, when a sequence has ``after_tokens`` output tokens."""
    MIDWAY = "midway"
    """When half of the weights are written. After a latency or a drop the load goes on."""


class Lie(enum.Enum):
    """What a request that loads weights does not do, and answers as if it had."""

    NOTHING = "nothing"
    """It does nothing."""
    WEIGHTS = "weights"
    """It shows the new version and keeps the old weights."""
    VERSION = "version"
    """It has the new weights and goes on showing the old version."""


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What happens to a request. The fields combine in the order latency, hang, drop, die, answer."""

    latency: float = 0.0
    """Wall seconds to wait first."""
    hang: bool = False
    """Never answer."""
    drop: bool = False
    """Reset the connection."""
    die: bool = False
    """Reset all connections and end the engine."""
    status: int | None = None
    """Answer with this status and ``body``."""
    body: Any = None
    """JSON; a string is sent as plain text."""
    times: int | None = None
    """How many requests it strikes; ``None`` for all."""
    when: When = When.BEFORE
    after_tokens: int = 0
    """For ``when: tokens``: the output length at which it strikes (hang, drop or die)."""
    lie: Lie | None = None
    """For a load of weights: what is claimed and not done."""
    refuse_flush: bool = False
    """For an update of SGLang: the flush that it asks for is refused, whether anything runs or not."""

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            ValueError: a token fault that is none of hang, drop, die; one in the middle of a load
                that does nothing; a time or count below 0.
        """
        ends = self.hang or self.drop or self.die
        if self.when is When.TOKENS and not ends:
            raise ValueError("a fault after tokens must hang, drop or die")
        if self.when is When.MIDWAY and not (ends or self.status or self.latency):
            raise ValueError("a fault midway must hang, drop, die, answer or take time")
        if self.latency < 0 or (self.times is not None and self.times < 1):
            raise ValueError("latency must not be negative, times must be at least 1")
        if self.status is not None and not 200 <= self.status <= 599:
            raise ValueError("status must be 200 to 599")


REFIT = "refit"
"""Stands for all requests that load weights."""

PRESETS: dict[str, Fault] = {
    "half-way": Fault(when=When.MIDWAY, status=500, body="Internal Server Error", times=1),
    "refuse-flush": Fault(refuse_flush=True, times=1),
    "lie": Fault(lie=Lie.NOTHING, times=1),
    "lie-weights": Fault(lie=Lie.WEIGHTS, times=1),
    "lie-version": Fault(lie=Lie.VERSION, times=1),
    "hang": Fault(hang=True, times=1),
    "hang-midway": Fault(when=When.MIDWAY, hang=True, times=1),
    "lose-answer": Fault(when=When.AFTER, drop=True, times=1),
    "die": Fault(die=True, times=1),
    "die-midway": Fault(when=When.MIDWAY, die=True, times=1),
    "die-after": Fault(when=When.AFTER, die=True, times=1),
}
"""Faults of one request, by the names under which they can be armed."""

_LOADING = frozenset(
    "/update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed "
    "/update_weights_from_ipc /update_weights".split()
)

Wanted = Fault | str
"""A fault, or the name of a preset."""


class Faults:
    """The faults that are armed now."""

    def __init__(self) -> None:
        self._armed: dict[str, list[Fault]] = {}

    def arm(self, route: str, fault: Wanted) -> None:
        """Let a fault strike requests of a route (a path, ``refit`` or ``*``), after those armed
        before.

        Raises:
            ValueError: there is no preset of this name.
        """
        if isinstance(fault, str):
            if fault not in PRESETS:
                raise ValueError(f"no fault is called {fault!r}; there are {', '.join(PRESETS)}")
            fault = msgspec.structs.replace(PRESETS[fault])
        self._armed.setdefault(route, []).append(fault)

    def disarm(self, route: str | None = None) -> None:
        """Remove the faults of a route, or all."""
        if route is None:
            self._armed.clear()
        else:
            self._armed.pop(route, None)

    def strike(self, path: str, body: bytes = b"") -> Fault | None:
        """The fault that a request meets; counts it."""
        if not self._armed:
            return None
        routes = (path, REFIT, "*") if loads_weights(path, body) else (path, "*")
        for route in routes:
            faults = self._armed.get(route)
            if not faults:
                continue
            fault = faults[0]
            if fault.times is not None:
                fault.times -= 1
                if fault.times == 0:
                    faults.pop(0)
            return fault
        return None

    def to_json(self) -> dict[str, Any]:
        """What is armed, by route."""
        return {r: msgspec.to_builtins(f) for r, f in self._armed.items() if f}

    def arm_json(self, body: bytes) -> None:
        """Arm from ``{route: fault | [fault, …] | null}``, where a fault is an object or the name of
        a preset; ``null`` disarms the route.

        Raises:
            msgspec.MsgspecError: the body has another shape.
            ValueError: it names a preset that there is not.
        """
        wanted = msgspec.json.decode(body, type=dict[str, Wanted | list[Wanted] | None])
        for route, value in wanted.items():
            if value is None:
                self.disarm(route)
            else:
                for fault in value if isinstance(value, list) else [value]:
                    self.arm(route, fault)

    def arm_text(self, text: str) -> None:
        """Arm from ``ROUTE=FAULT``, where the fault is JSON or the name of a preset.

        Raises:
            ValueError: it is neither.
        """
        route, _, value = text.partition("=")
        if not route or not value:
            raise ValueError(f"a fault is ROUTE=NAME or ROUTE=JSON, not {text!r}")
        try:
            self.arm(route, msgspec.json.decode(value, type=Fault) if value[0] == "{" else value)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{value}: {error}") from None


def loads_weights(path: str, body: bytes) -> bool:
    """Whether a request loads weights into the engine."""
    return path in _LOADING or (path == "/collective_rpc" and b'"reload_weights"' in body)
