"""The judge: from what clients saw and what engines received to promises kept or broken.

It trusts neither the proxies' stamps nor their counters, nor the operator's word. Which engine got a request, when, and which
weights answered it are taken from the engines' journals.

Whatever cannot be known to the millisecond is decided for the proxies: a request may have been chosen
just before a table came into force and arrive just after. ``FLIGHT`` bounds that time.
"""

from collections.abc import Iterable, Sequence

import msgspec

from steersman.versions import Order, VersionOrder
from steersman_sim.demo.records import Arrival, Closure, FleetMax, Outcome, Records

FLIGHT = 0.5
"""Seconds that a request may need from its selection in the proxy to its arrival at the engine."""

_ORDER = VersionOrder()


class EngineCount(msgspec.Struct, kw_only=True):
    """What one engine received."""

    received: int = 0
    while_closed: int = 0


class Verdict(msgspec.Struct, kw_only=True):
    """The counts of a run, so far."""

    sent: int
    answered: int
    failures: list[str]
    """Why each failed request failed."""
    waiting: int
    """Sent, and neither answered nor failed."""
    latest_only: int
    """Requests with ``latest-only`` that reached an engine."""
    stale: int
    """Of those, the ones that reached an engine older than the fleet max in force."""
    unstamped: int
    """Answers that do not name their engine or their weights."""
    misstamped: int
    """Answers that name others than the journals do."""
    mixed: int
    unflagged: int
    """Answers that several weights made, without the flag."""
    duplicated: int
    """Requests that reached more than one engine, or one engine twice."""
    longest_wait: float
    """The longest time from a client's sending to the arrival at an engine, in seconds."""
    engines: dict[str, EngineCount]

    @property
    def stamped_share(self) -> float:
        """The share of answers with right stamps; 1 when there is none yet."""
        wrong = self.unstamped + self.misstamped
        return 1.0 - wrong / self.answered if self.answered else 1.0

    @property
    def while_closed(self) -> int:
        """Requests that engines received while closed."""
        return sum(count.while_closed for count in self.engines.values())


def judge(records: Records) -> Verdict:
    """Judge what has been noted down so far."""
    engines = {name: EngineCount() for name in records.engines}
    arrived: dict[int, list[Arrival]] = {}
    for arrival in records.arrivals:
        count = engines[arrival.engine]
        count.received += arrival.request is not None
        count.while_closed += is_closed(arrival, records.closures)
        if arrival.request is not None:
            arrived.setdefault(arrival.request, []).append(arrival)
    verdict = Verdict(
        sent=len(records.outcomes),
        answered=0,
        failures=[],
        waiting=0,
        latest_only=0,
        stale=0,
        unstamped=0,
        misstamped=0,
        mixed=0,
        unflagged=0,
        duplicated=0,
        longest_wait=0.0,
        engines=engines,
    )
    for outcome in records.outcomes:
        arrivals = arrived.get(outcome.number, ())
        _count_way(verdict, outcome, arrivals, maxima=records.maxima)
        if outcome.ended is None:
            verdict.waiting += 1
        elif outcome.error is not None:
            verdict.failures.append(outcome.error)
        else:
            verdict.answered += 1
            _count_stamps(verdict, outcome, arrivals, urls=records.urls)
    return verdict


def is_closed(arrival: Arrival, closures: Iterable[Closure]) -> bool:
    """Whether an engine must not have received a request at that time."""
    return any(
        closure.engine == arrival.engine
        and closure.since < arrival.at
        and (closure.until is None or arrival.at < closure.until)
        for closure in closures
    )


def newest_in_force(maxima: Iterable[FleetMax], *, at: float) -> str | None:
    """The fleet max that certainly was in force at a time; ``None`` before the first."""
    return _ORDER.newest(entry.version for entry in maxima if entry.since <= at)


def is_stale(outcome: Outcome, arrival: Arrival, *, maxima: Iterable[FleetMax]) -> bool:
    """Whether a ``latest-only`` request reached an engine older than the fleet max in force.

    The engine was chosen after the client had sent the request, and at most ``FLIGHT`` before it
    arrived. Weights that are not known yet are not stale.
    """
    if not outcome.latest_only or not arrival.versions:
        return False
    chosen = max(outcome.sent, arrival.at - FLIGHT)
    newest = newest_in_force(maxima, at=chosen)
    return newest is not None and _ORDER.compare(arrival.versions[0], newest) is Order.OLDER


def _count_way(
    verdict: Verdict,
    outcome: Outcome,
    arrivals: Sequence[Arrival],
    *,
    maxima: Iterable[FleetMax],
) -> None:
    """Count what became of a request up to the engine."""
    if not arrivals:
        return
    verdict.duplicated += len(arrivals) > 1
    verdict.latest_only += outcome.latest_only
    verdict.stale += any(is_stale(outcome, arrival, maxima=maxima) for arrival in arrivals)
    verdict.longest_wait = max(verdict.longest_wait, arrivals[0].at - outcome.sent)


def _count_stamps(
    verdict: Verdict, outcome: Outcome, arrivals: Sequence[Arrival], *, urls: dict[str, str]
) -> None:
    """Compare an answer's stamps with the journals, where those are read already."""
    verdict.mixed += outcome.mixed
    if outcome.worker is None or outcome.version is None:
        verdict.unstamped += 1
        return
    for arrival in arrivals[-1:]:
        if outcome.worker not in (arrival.engine, urls[arrival.engine]):
            verdict.misstamped += 1
        elif arrival.versions:
            verdict.misstamped += outcome.version != arrival.versions[-1]
            verdict.unflagged += len(set(arrival.versions)) > 1 and not outcome.mixed
