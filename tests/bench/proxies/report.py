"""The JSON of a run, and the tables that the README and ``docs/benchmarks.md`` show of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.proxies.figures import by_round, judge, ratios, spread
from tests.bench.proxies.loads import UNITS, Load, Sample
from tests.bench.proxies.peers import DIRECT, STEERSMAN, Found, Missing, Subject
from tests.bench.proxies.rounds import Measured

IDLE = "idle"
EVERY_ROUND = ("cpu_us", "ttft_added_us")
"""Figures of which the JSON has each round, as ratios of rounds are made of them."""


def samples_of(measured: Measured) -> dict[str, dict[str, list[Sample | None]]]:
    """By load, proxy and round; memory at rest is the load ``idle``."""
    samples = {
        load: {name: list(one.samples) for name, one in proxies.items()}
        for load, proxies in measured.series.items()
    }
    idle: dict[str, list[Sample | None]] = {
        name: [{"rss_mb": rss} for rss in times]
        for name, times in measured.idle_mb.items()
        if name != DIRECT
    }
    return {**samples, IDLE: idle} if idle else samples


def results(
    subjects: Sequence[tuple[Subject, Found | Missing]], loads: Sequence[Load], measured: Measured
) -> dict[str, Any]:
    """What the JSON has below ``results`` and beside it."""
    samples = samples_of(measured)
    proxies = []
    for subject, found in subjects:
        row: dict[str, Any] = {"name": subject.name, "settings": subject.settings}
        if isinstance(found, Found):
            proxies.append({**row, "version": found.version})
        else:
            proxies.append({**row, "not_installed": found.why})
    rows = []
    for load, by_proxy in samples.items():
        for name, rounds in by_proxy.items():
            row = {"load": load, "proxy": name, "figures": _figures(rounds)}
            series = measured.series.get(load, {}).get(name)
            if series is not None:
                wrong = {n: e for n, e in enumerate(series.errors, 1) if e}
                if wrong:
                    row["rounds_with_errors"] = wrong
                if series.notes:
                    row["notes"] = series.notes
            rows.append(row)
    return {
        "units": UNITS,
        "proxies": proxies,
        "loads": [{"name": load.name, "title": load.title, **vars(load.work)} for load in loads],
        "ratios": ratios(samples),
        "targets": judge(samples),
        "results": rows,
    }


def _figures(rounds: Sequence[Sample | None]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in rounds if one for name in one)
    figures: dict[str, Any] = {}
    for name in names:
        each = by_round(rounds, name)
        figures[name] = spread([x for x in each if x is not None]).document()
        if name in EVERY_ROUND and len(each) > 1:
            figures[name]["rounds"] = [None if x is None else round(x, 2) for x in each]
    return figures


def missed(document: Mapping[str, Any]) -> list[str]:
    """What is wrong, as sentences: targets that are missed, and wrong answers from Steersman."""
    targets = [
        f"{target['what']}: {_measured(target)}"
        for target in document["targets"]
        if target["met"] is False
    ]
    errors = [
        f"wrong answers under {row['load']}: {row['rounds_with_errors']}"
        for row in document["results"]
        if row["proxy"] == STEERSMAN and "rounds_with_errors" in row
    ]
    return targets + errors


# --------------------------------------------------------------------------------------- tables

COLUMNS: Sequence[tuple[str, str, str]] = (
    ("1 KB answers, 32 connections", "buffered", "cpu_us"),
    ("1 KB, 256 connections", "buffered-256", "cpu_us"),
    ("32 KiB in, 64 KiB out", "large", "cpu_us"),
    ("chunk, 200 streams × 50/s", "sse-200", "cpu_us"),
    ("chunk, 1,000 streams × 50/s (carried)", "sse-1000", "cpu_us"),
    ("added to TTFT, 200 streams", "sse-200", "ttft_added_us"),
    ("RSS idle", IDLE, "rss_mb"),
    ("RSS a stream", "sse-1000", "rss_kb_per_stream"),
)


def main_table(document: Mapping[str, Any]) -> str:
    """One row for each proxy, also for those that were not installed; Markdown."""
    lines = [
        "| CPU of the proxy, µs | " + " | ".join(title for title, _, _ in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for proxy in document["proxies"]:
        name = proxy["name"]
        if name == DIRECT:
            continue
        if "not_installed" in proxy:
            lines.append(f"| {name} | not installed |" + " |" * (len(COLUMNS) - 1))
            continue
        version = proxy["version"].partition(" ")[0].partition("-")[0]
        title = f"{name} {version}" if not name.startswith(STEERSMAN) else name
        cells = [_cell(document, name, load, figure) for _, load, figure in COLUMNS]
        if name == STEERSMAN:
            title, cells = f"**{title}**", [f"**{cell}**" for cell in cells]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _row(document: Mapping[str, Any], load: str, proxy: str) -> Mapping[str, Any] | None:
    for row in document["results"]:
        if row["load"] == load and row["proxy"] == proxy:
            found: Mapping[str, Any] = row
            return found
    return None


def _cell(document: Mapping[str, Any], proxy: str, load: str, figure: str) -> str:
    row = _row(document, load, proxy)
    if row is None or figure not in row["figures"]:
        return "–"
    value = row["figures"][figure]["median"]
    match figure:
        case "cpu_us":
            text = f"{value:.0f}" if value >= 100 else f"{value:.1f}"
        case "ttft_added_us":
            text = f"{value / 1e3:.2f} ms"
        case "rss_mb":
            text = f"{value:.0f} MB"
        case _:
            text = f"{value:.0f} kB"
    if load == "sse-1000" and figure == "cpu_us":
        text += f" ({min(1.0, row['figures']['carried']['median']):.0%})"
    return text + (" ⚠" if "rounds_with_errors" in row else "")


def summary(document: Mapping[str, Any]) -> str:
    """CPU under each load, and Steersman's as a ratio; for a terminal."""
    lines = []
    for row in document["results"]:
        cpu = row["figures"].get("cpu_us")
        if row["load"] == IDLE:
            rss = row["figures"]["rss_mb"]["median"]
            lines.append(f"{IDLE:13} {row['proxy']:18} {rss:7.1f} MB")
        if cpu is None or row["proxy"] == DIRECT:
            continue
        to = next(
            (
                f"   steersman to it: {one['of_medians']:.3f} (rounds {one['of_pairs']:.3f}, "
                f"{one['lowest']:.3f} to {one['highest']:.3f})"
                for one in document["ratios"]
                if (one["load"], one["to"]) == (row["load"], row["proxy"])
            ),
            "",
        )
        lines.append(
            f"{row['load']:13} {row['proxy']:18} {cpu['median']:7.1f} µs CPU "
            f"({cpu['lowest']:.1f} to {cpu['highest']:.1f}){to}"
        )
    return "\n".join(lines)


def target_table(document: Mapping[str, Any]) -> str:
    """The goals, each with its figure; Markdown."""
    lines = ["| Target | Measured | |", "|---|---:|---|"]
    words = {True: "met", False: "**missed**"}
    for target in document["targets"]:
        if target["met"] is None:
            lines.append(f"| {target['what']} | – | {target['why']} |")
            continue
        lines.append(f"| {target['what']} | {_measured(target)} | {words[target['met']]} |")
    return "\n".join(lines)


def _measured(target: Mapping[str, Any]) -> str:
    if "ratio" in target:
        return f"{target['ratio']:.2f}"
    value, limit = target["value"], target["limit"]
    match target["figure"]:
        case "carried":
            return f"{min(1.0, value):.1%}"
        case "ttft_added_us":
            return f"{value / 1e3:.2f} ms, allowed {limit / 1e3:.2f} ms"
        case "rss_mb":
            return f"{value:.0f} MB"
        case _:
            return f"{value:.1f} kB"


def provenance(document: Mapping[str, Any]) -> str:
    """Where, when and how: one sentence."""
    machine = document["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python "
        f"{machine['python']}; commit {document['commit']}; {document['rounds']} interleaved rounds; "
        f"`{document['command']}`"
    )
