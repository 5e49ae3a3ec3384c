"""The section ``routing``, which a proxy's configuration and a RolloutEngine have in common."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from pydantic import PlainValidator

from steersman.documents.document import KeyPath
from steersman.documents.model import Model
from steersman.documents.values import (
    Duration,
    Kind,
    Policy,
    Positive,
    PositiveDuration,
    Size,
    Whole,
    choice,
)
from steersman.settings import (
    BreakerSettings,
    HoldSettings,
    PoolSettings,
    RoutingPolicy,
    Timeouts,
)

S = TypeVar("S", bound=msgspec.Struct)

Choice = Annotated[
    RoutingPolicy,
    PlainValidator(choice(RoutingPolicy)),
    Kind(", ".join(f"`{policy}`" for policy in RoutingPolicy)),
]


class Hold(Model):
    """Waiting in the proxy while engines are being changed or full."""

    timeout: Duration | None = None
    """How long one request may wait; 0 switches holding off."""
    max_requests: Whole | None = None
    """How many requests of a pool may wait at a time."""
    max_bytes: Size | None = None
    """Sum of the bodies of the waiting requests of a pool."""
    slice: Positive | None = None
    """How many waiting requests are released in one turn of the event loop."""


class ExchangeTimeouts(Model):
    """Limits of one exchange with an engine; time spent waiting in the proxy counts in none."""

    connect: PositiveDuration | None = None
    """To make a connection."""
    answer_head: PositiveDuration | None = None
    """From the end of the request to the head of the answer."""
    stream_idle: PositiveDuration | None = None
    """Between two parts of an answer's body."""
    client_stall: PositiveDuration | None = None
    """How long a client may take nothing while there is something for it."""
    stale: PositiveDuration | None = None
    """From the choice of an engine to the end of the answer, whatever still moves. Above all the
    others: what they do not end, a slow trickle for example, ends here."""


class Breaker(Model):
    """Leaving an engine alone whose requests fail in a row: refused or broken connections, broken
    answers, timeouts, and answers of 500 and above other than 503.
    """

    enabled: bool | None = None
    """Whether engines are taken out."""
    failures: Positive | None = None
    """So many failures in a row take an engine out."""
    cooldown: PositiveDuration | None = None
    """For so long; then a single request tries it, and decides."""


class Routing(Model):
    """How engines are chosen. In `pools.NAME.routing` a missing key is inherited from here."""

    policy: Choice | None = None
    """How one of the eligible engines is chosen."""
    version_policy: Policy | None = None
    """Which weight versions a request accepts if it does not say itself: `any`, `latest-only`,
    `min-version:<v>` or `max-staleness:<k>`."""
    max_in_flight_per_engine: Whole | None = None
    """Requests that this proxy sends to one engine at a time; 0 is no limit."""
    admit_unsynced: bool | None = None
    """Whether engines that have not shown the pool's version take `any` requests."""
    sticky_pause: bool | None = None
    """Whether a request with a routing key waits for its own engine while that is being changed,
    instead of going to the next-ranked one."""
    hold: Hold = Hold()
    """Waiting for an engine."""
    timeouts: ExchangeTimeouts = ExchangeTimeouts()
    """Limits of one exchange."""
    breaker: Breaker = Breaker()
    """Leaving an engine alone that fails."""


def pool_settings(routing: Routing, *, base: PoolSettings) -> PoolSettings:
    """``base`` with everything that ``routing`` sets."""
    changed: PoolSettings = _laid_over(base, routing, without=("hold", "timeouts", "breaker"))
    hold: HoldSettings = _laid_over(base.hold, routing.hold)
    timeouts: Timeouts = _laid_over(base.timeouts, routing.timeouts)
    breaker: BreakerSettings = _laid_over(base.breaker, routing.breaker)
    return msgspec.structs.replace(changed, hold=hold, timeouts=timeouts, breaker=breaker)


def _laid_over(base: S, section: Model, *, without: Sequence[str] = ()) -> S:
    values = {name: getattr(section, name) for name in type(section).model_fields}
    return msgspec.structs.replace(
        base,
        **{
            name: value
            for name, value in values.items()
            if value is not None and name not in without
        },
    )


class Finding(NamedTuple):
    """A sentence about the key ``path``; ``other`` is the key that it contradicts."""

    path: KeyPath
    message: str
    other: KeyPath = ()


def routing_contradictions(settings: PoolSettings) -> Iterator[Finding]:
    """Settings that cannot both be meant; the paths begin at the section ``routing``."""
    hold, timeouts = settings.hold, settings.timeouts
    if hold.timeout > 0 and hold.max_requests == 0:
        yield Finding(
            ("hold", "maxRequests"),
            f"is 0, but hold.timeout is {hold.timeout:g} s; "
            "to switch holding off, set hold.timeout to 0",
            ("hold", "timeout"),
        )
    if timeouts.connect > timeouts.answer_head:
        yield Finding(
            ("timeouts", "connect"),
            f"is {timeouts.connect:g} s, longer than timeouts.answerHead "
            f"({timeouts.answer_head:g} s)",
            ("timeouts", "answerHead"),
        )
    key, longest = max(
        (
            ("connect", timeouts.connect),
            ("answerHead", timeouts.answer_head),
            ("streamIdle", timeouts.stream_idle),
            ("clientStall", timeouts.client_stall),
        ),
        key=lambda limit: limit[1],
    )
    if timeouts.stale <= longest:
        yield Finding(
            ("timeouts", "stale"),
            f"is {timeouts.stale:g} s, not above timeouts.{key} ({longest:g} s); it is meant to end "
            "what the other timeouts do not",
            ("timeouts", key),
        )
