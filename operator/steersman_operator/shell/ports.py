"""What the shell needs of the world, as narrow interfaces."""

from collections.abc import Sequence
from typing import Protocol

from steersman.table import Table
from steersman_operator.fleet.commands import AskLoad, Call, Look
from steersman_operator.fleet.events import Event
from steersman_operator.fleet.facts import Durable, Observation, Outcome


class TablePublisher(Protocol):
    """The proxies' side of the control socket."""

    def publish(self, table: Table, *, urgent: bool, peers: Sequence[str] = ()) -> None:
        """Send a table to every proxy; the newest replaces one that is still waiting."""
        ...

    def watch(self, engines: Sequence[str]) -> None:
        """Have the requests in flight on these engines reported."""
        ...

    def cut(self, engine: str, reason: str) -> None:
        """Have the requests in flight on an engine ended."""
        ...


class CallResult(Protocol):
    """How a call to an engine ended."""

    @property
    def outcome(self) -> Outcome:
        """Whether it was carried out, as far as that is known."""
        ...

    @property
    def detail(self) -> str:
        """One sentence."""
        ...


class EngineCaller(Protocol):
    """The engines. Nothing here raises for an engine's fault."""

    async def perform(self, call: Call) -> CallResult:
        """Change an engine."""
        ...

    async def look(self, command: Look) -> Observation:
        """Read what an engine is."""
        ...

    async def ask_load(self, command: AskLoad) -> int | None:
        """How many requests an engine has; ``None`` if it cannot say."""
        ...


class IntentStore(Protocol):
    """Durable records, one an engine.

    What is asked for of one engine is done in the order in which it was asked for: a later record is
    never overtaken by an earlier one, and may replace it before that was ever written. Of a change
    that failed nobody knows whether it is there; no later change makes it.
    """

    async def write(self, record: Durable) -> None:
        """Write a record; returns when it will be there whatever happens.

        :raises StoreConflict: if another operator has taken over, or this one leads in a later term.
        :raises OSError: if it cannot be written.
        """
        ...

    async def forget(self, engine: str) -> None:
        """Remove a record; raises as :meth:`write` does."""
        ...


class EventRecorder(Protocol):
    """Writes down what happened, for ``steersman replay``."""

    def record(self, event: Event) -> None:
        """Called before the event is acted on."""
        ...
