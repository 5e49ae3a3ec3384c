"""The promises of docs/guarantees.md that a run can see, each kept or broken by a verdict."""

import msgspec

from steersman_sim.demo.judge import Verdict


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and what the run has to say about it."""

    name: str
    value: str
    kept: bool
    note: str = ""
    """What the value is counted from."""


def promises(verdict: Verdict) -> list[Promise]:
    """All promises, in the order of their weight."""
    failed = len(verdict.failures)
    return [
        Promise(
            name="failed requests",
            value=str(failed),
            kept=failed == 0,
            note=f"of {verdict.sent}",
        ),
        Promise(
            name="stale dispatches",
            value=str(verdict.stale),
            kept=verdict.stale == 0,
            note=f"of {verdict.latest_only} with latest-only, by the engines' journals",
        ),
        Promise(
            name="received while closed",
            value=str(verdict.while_closed),
            kept=verdict.while_closed == 0,
            note="by paused, refitted and sleeping engines, by their journals",
        ),
        Promise(
            name="stamped answers",
            value=percent(verdict.stamped_share),
            kept=verdict.unstamped + verdict.misstamped == 0,
            note="each names the engine and the weights that its journal names",
        ),
        Promise(
            name="unflagged mixed answers",
            value=str(verdict.unflagged),
            kept=verdict.unflagged == 0,
            note=f"{verdict.mixed} were mixed: every engine was drained before its refit",
        ),
        Promise(
            name="sent twice",
            value=str(verdict.duplicated),
            kept=verdict.duplicated == 0,
        ),
    ]


def percent(share: float) -> str:
    """A share as text that says 100 % only if nothing is missing."""
    if share >= 1.0:
        return "100 %"
    return f"{min(share * 100, 99.9):.1f} %"
