"""The run at one moment, as the live table and the plain lines show it."""

import msgspec

from steersman_sim.demo.judge import Verdict
from steersman_sim.demo.proxy_status import FleetStatus
from steersman_sim.demo.records import NEW, Activity, Phase, Records

STATES = {
    Activity.DRAINING: "draining",
    Activity.PAUSED: "paused",
    Activity.REFIT: f"refit to {NEW}",
    Activity.ASLEEP: "asleep",
}
ACTIVE = "active"


class EngineLine(msgspec.Struct, kw_only=True, frozen=True):
    """One engine."""

    name: str
    state: str
    gate: str
    version: str
    in_flight: int
    """Requests of all proxies that run there now."""
    received: int
    while_closed: int


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that is shown."""

    elapsed: float
    step: str
    """What happens now, in words."""
    command: str
    """The command that runs or ran last; empty before the first."""
    engines: list[EngineLine]
    verdict: Verdict
    """Of what was read from the journals last."""
    sent: int
    held: int
    held_total: int


def snapshot(
    records: Records,
    *,
    status: FleetStatus,
    verdict: Verdict,
    step: str,
    command: str,
    now: float,
) -> Snapshot:
    """Put together what the several sources say."""
    lines = []
    for name in records.engines:
        url, count = records.urls[name], verdict.engines[name]
        lines.append(
            EngineLine(
                name=name,
                state=state_of(name, records.phases),
                gate="open" if status.some_gate(url, is_open=True) else "closed",
                version=status.version(url) or "",
                in_flight=status.in_flight(url),
                received=count.received,
                while_closed=count.while_closed,
            )
        )
    return Snapshot(
        elapsed=max(0.0, now - records.began),
        step=step + held_words(status.held),
        command=command,
        engines=lines,
        verdict=verdict,
        sent=len(records.outcomes),
        held=status.held,
        held_total=records.held_total,
    )


def state_of(engine: str, phases: list[Phase]) -> str:
    """What is being done with an engine."""
    return next(
        (STATES[p.activity] for p in phases if p.engine == engine and p.until is None), ACTIVE
    )


def held_words(count: int) -> str:
    """How many requests wait, as the end of a sentence."""
    if not count:
        return ""
    return f": {count} request{' is' if count == 1 else 's are'} held"
