"""How the requests of one pool are routed: the settings that go with a pool into the table.

A RolloutEngine's ``spec.routing`` becomes this, and so does the ``routing`` section of a proxy's
configuration file. All durations are in seconds, all sizes in bytes.
"""

from enum import StrEnum

import msgspec

from steersman.policy import AnyVersion, VersionPolicy


class RoutingPolicy(StrEnum):
    """How one engine is chosen among the eligible ones."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    POWER_OF_TWO = "power_of_two"
    LOAD_ONLY = "load_only"
    STICKY = "sticky"
    CONSISTENT_HASHING = "consistent_hashing"


class HoldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of waiting in the proxy while the engines are being changed or full."""

    timeout: float = 600.0
    """How long one request may wait; 0 switches holding off."""
    max_requests: int = 16384
    max_bytes: int = 2 * 1024**3
    """Sum of the bodies of all waiting requests of the pool."""
    slice: int = 64
    """How many waiting requests are released in one turn of the event loop."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one exchange with an engine. Time spent waiting in the proxy counts in none."""

    connect: float = 5.0
    answer_head: float = 1800.0
    """From the end of the request to the head of the answer."""
    stream_idle: float = 300.0
    """Between two parts of an answer's body."""
    client_stall: float = 120.0
    """How long a client may take nothing while the proxy has something for it."""
    stale: float = 7200.0
    """From the choice of an engine to the end of the answer, whatever still moves; above all others,
    so that it ends only what none of them did."""


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an engine whose requests fail in a row is left alone, and for how long."""

    enabled: bool = True
    failures: int = 5
    """So many failures in a row take an engine out."""
    cooldown: float = 30.0
    """For so long; then one request is sent as a probe."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one pool."""

    policy: RoutingPolicy = RoutingPolicy.POWER_OF_TWO
    version_policy: VersionPolicy = AnyVersion()
    hold: HoldSettings = HoldSettings()
    timeouts: Timeouts = Timeouts()
    max_in_flight_per_engine: int = 0
    """Requests that this proxy sends to one engine at a time; 0 is no limit."""
    admit_unsynced: bool = False
    """Whether engines that have not shown the pool's version take ``any`` requests."""
    sticky_pause: bool = False
    """Whether a request with a routing key waits for its own engine while that is being changed,
    instead of going to the next-ranked one."""
    fence: bool = False
    """Whether a proxy that is out of contact with its operator starts nothing in the pool. The
    operator may then count it out; it says so in the table, never a proxy's own file."""
    breaker: BreakerSettings = BreakerSettings()
