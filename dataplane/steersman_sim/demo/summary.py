"""The end of a run in plain text."""

from collections.abc import Iterable, Mapping

from steersman_sim.demo.judge import Verdict
from steersman_sim.demo.promises import Promise, promises
from steersman_sim.demo.records import Arrival, Records

_FAILURES_SHOWN = 5


def summary(records: Records, *, verdict: Verdict) -> str:
    """What was received where, each promise, and the conclusion in the last line."""
    lines = [*_engines(records, verdict), "", *_traffic(records, verdict), ""]
    lines += _promises(promises(verdict))
    if verdict.failures:
        lines += ["", "failed requests:"]
        lines += [f"  {failure}" for failure in verdict.failures[:_FAILURES_SHOWN]]
        if len(verdict.failures) > _FAILURES_SHOWN:
            lines.append(f"  … and {len(verdict.failures) - _FAILURES_SHOWN} more")
    return "\n".join([*lines, "", conclusion(verdict)])


def all_kept(verdict: Verdict) -> bool:
    """Whether the run kept every promise. A run without an answer has shown nothing."""
    return (
        verdict.answered > 0
        and verdict.waiting == 0
        and all(promise.kept for promise in promises(verdict))
    )


def conclusion(verdict: Verdict) -> str:
    """The last line."""
    if all_kept(verdict):
        return "All promises kept."
    broken = [promise.name for promise in promises(verdict) if not promise.kept]
    if verdict.waiting:
        broken.append(f"{verdict.waiting} requests without an answer")
    if not verdict.answered:
        broken.append("no request was answered")
    return f"PROMISES BROKEN: {', '.join(broken)}."


def _engines(records: Records, verdict: Verdict) -> list[str]:
    by_version = answered_by(records.arrivals)
    versions = sorted({version for _, version in by_version})
    head = ["engine", "received", *(f"by weights {version}" for version in versions)]
    head.append("while closed")
    rows = []
    for name in records.engines:
        count = verdict.engines[name]
        made = [str(by_version.get((name, version), 0)) for version in versions]
        rows.append([name, str(count.received), *made, str(count.while_closed)])
    return _aligned([head, *rows])


def answered_by(arrivals: Iterable[Arrival]) -> Mapping[tuple[str, str], int]:
    """How many answers each engine made with each version (the last one, if mixed)."""
    counts: dict[tuple[str, str], int] = {}
    for arrival in arrivals:
        if arrival.request is not None and arrival.versions:
            key = (arrival.engine, arrival.versions[-1])
            counts[key] = counts.get(key, 0) + 1
    return counts


def _traffic(records: Records, verdict: Verdict) -> list[str]:
    seconds = (records.ended or records.began) - records.began
    waits = (
        f"{records.held_total} were held in the proxies; the longest wait from a client to an engine "
        f"was {verdict.longest_wait:.2f} s."
    )
    return [f"{verdict.sent} requests in {seconds:.1f} s, {verdict.answered} answered.", waits]


def _promises(found: list[Promise]) -> list[str]:
    cells = [
        [promise.name, promise.value, "kept" if promise.kept else "BROKEN", promise.note]
        for promise in found
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip()
        for row in cells
    ]


def _aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [f"{row[0]:<{widths[0]}}"]
            + [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
