"""Faults that a test injects into a route: late, wrong, lost and fatal answers.

A fault is armed for a route (a path, or ``*`` for all but the side channel) and for a number of
requests. ``when`` says whether it strikes instead of the handler (``before``) or after the handler
has done its work (``after``): ``{"when": "after", "drop": true}`` is a control call that took
effect and whose answer was lost; ``{"status": 200, "body": {...}}`` before it is a lie.
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

    def __post_init__(self) -> None:
        """Refuse contradictions.

        Raises:
            ValueError: a token fault that is none of hang, drop, die; a time or count below 0.
        """
        if self.when is When.TOKENS and not (self.hang or self.drop or self.die):
            raise ValueError("a fault after tokens must hang, drop or die")
        if self.latency < 0 or (self.times is not None and self.times < 1):
            raise ValueError("latency must not be negative, times must be at least 1")
        if self.status is not None and not 200 <= self.status <= 599:
            raise ValueError("status must be 200 to 599")


class Faults:
    """The faults that are armed now."""

    def __init__(self) -> None:
        self._armed: dict[str, list[Fault]] = {}

    def arm(self, route: str, fault: Fault) -> None:
        """Let a fault strike requests of a route (a path or ``*``), after those armed before."""
        self._armed.setdefault(route, []).append(fault)

    def disarm(self, route: str | None = None) -> None:
        """Remove the faults of a route, or all."""
        if route is None:
            self._armed.clear()
        else:
            self._armed.pop(route, None)

    def strike(self, path: str) -> Fault | None:
        """The fault that a request of ``path`` meets; counts it."""
        if not self._armed:
            return None
        for route in (path, "*"):
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
        """Arm from ``{route: fault | [fault, …] | null}``; ``null`` disarms the route.

        Raises:
            msgspec.MsgspecError: the body has another shape.
        """
        wanted = msgspec.json.decode(body, type=dict[str, Fault | list[Fault] | None])
        for route, value in wanted.items():
            if value is None:
                self.disarm(route)
            else:
                for fault in value if isinstance(value, list) else [value]:
                    self.arm(route, fault)
