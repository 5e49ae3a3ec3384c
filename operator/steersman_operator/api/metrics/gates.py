"""Gates: how often they closed and opened, and why they closed."""

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

from prometheus_client.metrics_core import Metric

from steersman_operator.api.metrics.tally import Tally
from steersman_operator.fleet.events import Elected, Event
from steersman_operator.fleet.state import EngineState


class Closing(StrEnum):
    """Why a gate closed."""

    OPERATION = "operation"
    """The engine is to become something else."""
    UNREACHABLE = "unreachable"
    """Several looks in a row found nobody."""
    UNKNOWN = "unknown"
    """Which memory is released is not known."""
    EXTERNAL = "external"
    """It was found in another state than it was put into."""
    ELECTION = "election"
    """A new term began; a gate opens in it once its engine was looked at."""
    REMOVED = "removed"
    """The engine was taken out of its pool, or is at another address now."""


class GateTally:
    """Counts the changes of all gates."""

    def __init__(self) -> None:
        self._closed = Tally("gate_closures", "Gates that closed, by why.", "pool", "reason")
        self._opened = Tally("gate_openings", "Gates that opened.", "pool")

    def changed(
        self,
        old: EngineState | None,
        new: EngineState | None,
        *,
        event: Event,
        notes: Sequence[str],
    ) -> None:
        """An engine came, went, or is another one than before the step."""
        was_open = old is not None and old.gate.open
        if new is None or (old is not None and old.pool != new.pool):
            # The row of the other pool begins as if it were a new one.
            if was_open and old is not None:
                self._closed.add(old.pool, Closing.REMOVED.value)
            was_open = False
        if new is None:
            return
        before = 0 if old is None else old.gate.count
        if isinstance(event, Elected):
            changes = int(was_open)  # gates are counted anew in each term
        elif old is not None and old.pool != new.pool:
            changes = int(new.gate.open)
        else:
            changes = max(0, new.gate.count - before)
        # They alternate, so that the first of them and their number say it all.
        closings = (changes + was_open) // 2
        if closings:
            self._closed.add(new.pool, _why(old, new, event, notes).value, by=closings)
        if changes > closings:
            self._opened.add(new.pool, by=changes - closings)

    def keep(self, pools: Collection[str]) -> None:
        """Forget the pools that are not among these."""
        self._closed.keep(pools)
        self._opened.keep(pools)

    def metrics(self, pools: Collection[str]) -> Iterator[Metric]:
        """All series of the pools that there are."""
        yield self._closed.family((pool, reason.value) for pool in pools for reason in Closing)
        yield self._opened.family((pool,) for pool in pools)


def _why(old: EngineState | None, new: EngineState, event: Event, notes: Sequence[str]) -> Closing:
    if isinstance(event, Elected):
        return Closing.ELECTION
    if old is not None and old.spec.url != new.spec.url:
        return Closing.REMOVED
    if new.op is not None or "Closing" in notes:
        return Closing.OPERATION
    if not new.reachable:
        return Closing.UNREACHABLE
    if new.facts.released is None:
        return Closing.UNKNOWN
    return Closing.EXTERNAL
