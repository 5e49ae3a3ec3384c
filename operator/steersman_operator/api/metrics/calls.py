"""Calls to engines: how each ended, and how long it took."""

from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import Metric

from steersman.engine import Runtime
from steersman_operator.api.metrics.instruments import Instruments
from steersman_operator.api.metrics.tally import Tally
from steersman_operator.fleet.commands import Call
from steersman_operator.fleet.events import CallEnded
from steersman_operator.fleet.facts import CallKind, Outcome

REMEMBERED = 4096
"""Calls whose end is waited for. One that is never told of is forgotten when there are more."""


class _Began(msgspec.Struct, frozen=True):
    runtime: Runtime
    kind: CallKind
    at: float


class CallTally:
    """Counts calls when they have ended."""

    def __init__(self, instruments: Instruments) -> None:
        self._histogram = instruments.call
        self._ended = Tally(
            "engine_calls", "Calls to engines that ended, by how.", "runtime", "kind", "outcome"
        )
        self._under_way: dict[int, _Began] = {}
        """By the number of the command."""

    def began(self, call: Call, *, now: float) -> None:
        """A call is made."""
        self._under_way[call.number] = _Began(call.runtime, call.kind, now)
        if len(self._under_way) > REMEMBERED:
            del self._under_way[next(iter(self._under_way))]

    def ended(self, event: CallEnded, *, now: float) -> None:
        """A call has ended, even if nobody waits for it any more."""
        call = self._under_way.pop(event.number, None)
        if call is None:
            return
        runtime, kind = call.runtime.value, call.kind.value
        self._ended.add(runtime, kind, event.outcome.value)
        self._histogram.labels(runtime, kind).observe(max(0.0, now - call.at))

    def metrics(self) -> Iterator[Metric]:
        """The counter; the histogram is the library's."""
        yield self._ended.family(
            (runtime.value, kind.value, outcome.value)
            for runtime in Runtime
            for kind in CallKind
            for outcome in Outcome
        )
