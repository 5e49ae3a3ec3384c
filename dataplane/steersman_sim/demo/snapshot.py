"""The run at one moment, as the live table and the plain lines show it."""

from collections.abc import Mapping

import msgspec

from steersman_sim.demo.judge import Verdict
from steersman_sim.demo.proxy_status import Status
from steersman_sim.demo.records import NEW, Activity, Phase, Records
from steersman_sim.demo.table import Row

STATES = {
    Activity.DRAINING: "draining",
    Activity.PAUSED: "paused",
    Activity.REFIT: f"refit to {NEW}",
    Activity.ASLEEP: "asleep",
    Activity.WAKING: f"loading {NEW}",
}
ACTIVE = "active"


class EngineLine(msgspec.Struct, kw_only=True, frozen=True):
    """One engine."""

    name: str
    state: str
    gate: str
    version: str
    in_flight: int
    """Requests of the proxy that run there now."""
    received: int
    while_closed: int


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that is shown."""

    elapsed: float
    step: str
    """What happens now, in words."""
    engines: list[EngineLine]
    verdict: Verdict
    """Of what was read from the journals last."""
    sent: int
    held: int
    held_total: int


def snapshot(
    records: Records,
    *,
    rows: Mapping[str, Row],
    status: Status | None,
    verdict: Verdict,
    step: str,
    now: float,
) -> Snapshot:
    """Put together what the several sources say."""
    lines = []
    for name in records.engines:
        row, count = rows[name], verdict.engines[name]
        seen = None if status is None else status.engine(name)
        lines.append(
            EngineLine(
                name=name,
                state=state_of(name, records.phases),
                gate=row.gate,
                version=row.version,
                in_flight=0 if seen is None else seen.in_flight,
                received=count.received,
                while_closed=count.while_closed,
            )
        )
    held = 0 if status is None else status.held
    return Snapshot(
        elapsed=max(0.0, now - records.began),
        step=step + held_words(held),
        engines=lines,
        verdict=verdict,
        sent=len(records.outcomes),
        held=held,
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
