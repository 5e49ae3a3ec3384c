"""What the control socket tells the rest of the operator."""

from typing import Protocol

from steersman.table import Epoch
from steersman_operator.fleet.events import ProxyRef


class ControlListener(Protocol):
    """Called from the event loop, once for each thing that happened, and only while leading.

    May call the server back at once, for instance to publish the table that follows.
    """

    def joined(self, ref: ProxyRef) -> None:
        """A proxy has said hello; it has acknowledged nothing yet, whatever it did before."""
        ...

    def heard(self, ref: ProxyRef) -> None:
        """A proxy has answered from its routing loop."""
        ...

    def lost(self, ref: ProxyRef) -> None:
        """A proxy is silent, or its connection is gone. It may serve on."""
        ...

    def acked(self, ref: ProxyRef, epoch: Epoch) -> None:
        """A proxy has put a table in force that was sent to it in this term."""
        ...

    def nacked(self, ref: ProxyRef, epoch: Epoch, detail: str) -> None:
        """A proxy cannot use a table, and stays on the one before."""
        ...

    def in_flight(self, ref: ProxyRef, epoch: Epoch, counts: dict[str, int]) -> None:
        """What a proxy has in flight on watched engines, by the table of ``epoch``."""
        ...

    def observed_by_proxy(self, ref: ProxyRef, engine: str, kind: str, sample: str) -> None:
        """A proxy has seen something of an engine; advisory."""
        ...

    def seen(self, ref: ProxyRef, engine: str, version: str | None) -> None:
        """An engine's own answer to a client of a proxy has named another version than the table
        does; ``None``: it named one before, and has none any more. Advisory: it says what some answer
        was made by, not what the engine is now, and of an engine that may be gone.
        """
        ...

    def max_term_seen(self, term: int) -> None:
        """A proxy follows a later term than this operator's: to lead, it needs a later one."""
        ...
