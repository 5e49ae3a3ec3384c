"""What the core wants done. Commands are carried out in order; their outcomes come back as events."""

import msgspec

from steersman.engine import Runtime
from steersman.table import Table
from steersman_operator.fleet.facts import CallKind, Durable
from steersman_operator.fleet.spec import PauseMode, Weights


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Publish(_Command, frozen=True, kw_only=True, tag=True):
    """Send the table to every proxy. ``urgent`` (a gate has closed) must not wait for others."""

    table: Table
    urgent: bool = False


class Watch(_Command, frozen=True, kw_only=True, tag=True):
    """Have every proxy report what it has running on these engines, from now on only these."""

    engines: tuple[str, ...]


class CutRequests(_Command, frozen=True, kw_only=True, tag=True):
    """Have every proxy end what it still has running on an engine."""

    engine: str
    reason: str


class Look(_Command, frozen=True, kw_only=True, tag=True):
    """Read an engine's control state, version and boot; answered by ``Observed``."""

    engine: str
    url: str
    runtime: Runtime


class AskLoad(_Command, frozen=True, kw_only=True, tag=True):
    """Ask an engine how many requests it has; answered by ``LoadSeen``."""

    engine: str
    url: str
    runtime: Runtime


class Store(_Command, frozen=True, kw_only=True, tag=True):
    """Write a durable record, with a precondition that nobody else wrote; answered by ``Stored``."""

    number: int
    record: Durable


class Forget(_Command, frozen=True, kw_only=True, tag=True):
    """Remove the durable record of an engine that is not managed any more."""

    engine: str


class Call(_Command, frozen=True, kw_only=True, tag=True):
    """Change an engine; answered by ``CallEnded``. Never retried by whoever carries it out."""

    number: int
    engine: str
    url: str
    runtime: Runtime
    kind: CallKind
    pause_mode: PauseMode
    tags: tuple[str, ...] = ()
    """Memory tags of a sleep or a wake."""
    boot_id: str | None = None
    """The boot that it is meant for; another one must not get it."""
    weights: Weights | None = None
    """Of a refit, or of a label."""
    timeout: float = 60.0


class Note(_Command, frozen=True, kw_only=True, tag=True):
    """Something happened that people want to know: an Event in Kubernetes, a line of the log."""

    engine: str | None
    pool: str | None
    reason: str
    """One CamelCase word."""
    message: str
    warning: bool = False


Command = Publish | Watch | CutRequests | Look | AskLoad | Store | Forget | Call | Note
