"""What is noted down during a run: the material of the judge, the table on screen and the plot.

All times are seconds of the monotonic clock. The engines' journals use the same clock, which all
processes of a machine share on Linux and macOS, so what a client did and what an engine received
can be put in order.
"""

from enum import StrEnum

import msgspec

OLD, NEW = "7", "8"
"""The weight versions before and after the refit."""


class Kind(StrEnum):
    """What is asked of an engine."""

    GENERATE = "buffered /generate"
    STREAM = "streamed /generate"
    CHAT = "streamed chat"


class Outcome(msgspec.Struct, kw_only=True):
    """One request, as its client saw it."""

    number: int
    kind: Kind
    latest_only: bool
    """Whether it carried ``x-smg-version-policy: latest-only``."""
    session: str | None
    """Its routing key."""
    sent: float
    ended: float | None = None
    """``None`` while the client waits."""
    error: str | None = None
    """Why it failed, in words; ``None`` if the answer was whole."""
    worker: str | None = None
    """The stamp that names the engine."""
    version: str | None = None
    """The stamp that names the weights."""
    mixed: bool = False
    """The stamp that says that several weights made the answer."""


class Arrival(msgspec.Struct, kw_only=True, frozen=True):
    """One request, as an engine's journal has it."""

    engine: str
    at: float
    """When its head was read."""
    request: int | None
    """The number of the :class:`Outcome`; ``None`` for requests that are not of our traffic."""
    path: str
    versions: tuple[str, ...] = ()
    """The weights that really made the answer, in order; empty until it is made."""


class FleetMax(msgspec.Struct, kw_only=True, frozen=True):
    """From when on a version certainly was the newest one, for every request chosen afterwards."""

    version: str
    since: float
    """When every proxy had said that such a table is in force."""


class Closure(msgspec.Struct, kw_only=True):
    """A time in which an engine must receive nothing.

    It begins when the command that closes the engine has returned, and ends right before the one that
    opens it is started.
    """

    engine: str
    since: float
    until: float | None = None
    opened: float | None = None
    """When a proxy was first seen to have opened the gate: a moment after it did, and later than
    ``until``. For the picture, not for the judge."""


class Activity(StrEnum):
    """What is done with an engine behind its closed gate."""

    DRAINING = "draining"
    PAUSED = "paused"
    REFIT = "refit"
    ASLEEP = "asleep"


class Phase(msgspec.Struct, kw_only=True):
    """A time in which something is done with an engine."""

    engine: str
    activity: Activity
    since: float
    until: float | None = None


class Weights(msgspec.Struct, kw_only=True, frozen=True):
    """From when on an engine serves a version."""

    engine: str
    version: str
    since: float


class Held(msgspec.Struct, kw_only=True, frozen=True):
    """How many requests waited in all proxies at a moment."""

    at: float
    count: int


class Records(msgspec.Struct, kw_only=True):
    """Everything of one run."""

    engines: tuple[str, ...]
    """Names, in the order of the manifest."""
    urls: dict[str, str]
    """Base URL by name."""
    began: float
    """When the traffic began."""
    ended: float | None = None
    """When the last answer had come."""
    outcomes: list[Outcome] = []
    arrivals: list[Arrival] = []
    maxima: list[FleetMax] = []
    closures: list[Closure] = []
    phases: list[Phase] = []
    weights: list[Weights] = []
    held: list[Held] = []
    held_total: int = 0
    """How many requests had waited in the proxies, by their own count."""
