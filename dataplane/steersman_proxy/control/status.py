"""What ``/status`` and the metrics tell of the control socket."""

import msgspec

from steersman.table import Epoch


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to one operator address."""

    address: str
    state: str
    """``down``, ``asking``, ``waiting`` or ``joined``."""
    detail: str
    """Why it is not joined, as far as is known."""


class ControlStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How this proxy follows the operator. Numbers count from the start; durations in seconds."""

    fresh: bool
    """Whether the leader was in contact within the grant time."""
    silent: float | None
    """Since the leader was last proven to have heard this proxy; ``None`` before the first time."""
    term: int
    """The latest that was ever seen."""
    epoch: Epoch | None
    """Of the table in force."""
    digest: str
    leader_epoch: Epoch | None
    """Of the leader's newest table, as it said last."""
    leader: str | None
    """The address of the operator that is followed."""
    api_url: str | None
    age: float | None
    """Since the table in force was made."""
    reconnects: int
    """Sessions after the first."""
    applied: int
    """Tables that were put in force."""
    apply_seconds: float
    """Sum of the time that it took."""
    nacks: int
    """Tables that could not be used."""
    bad_frames: int
    last_problem: str
    """Why the newest table that could not be used could not; empty if the last one was good."""
    links: tuple[LinkStatus, ...]
