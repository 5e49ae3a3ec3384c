"""Arithmetic over rounds: medians, ratios and the goals. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench.proxies.loads import Sample
from tests.bench.proxies.peers import GATEWAYS, STEERSMAN

Samples = Mapping[str, Mapping[str, Sequence[Sample | None]]]
"""By load, proxy and round."""


@dataclass(frozen=True)
class Spread:
    """One figure over the rounds."""

    median: float
    lowest: float
    highest: float

    def document(self) -> dict[str, float]:
        return {
            "median": _short(self.median),
            "lowest": _short(self.lowest),
            "highest": _short(self.highest),
        }


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def by_round(rounds: Sequence[Sample | None], figure: str) -> list[float | None]:
    """One figure of each round; ``None`` where it is not there."""
    return [None if one is None else one.get(figure) for one in rounds]


def middle(samples: Samples, load: str, proxy: str, figure: str) -> float | None:
    """The median over the rounds that have the figure."""
    values = [x for x in by_round(samples.get(load, {}).get(proxy, ()), figure) if x is not None]
    return median(values) if values else None


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> dict[str, float] | None:
    """``ours`` to ``theirs``: of the medians, and the median and extremes of the rounds' own ratios.

    The two differ when the machine changed its speed between rounds; a verdict that only one of them
    supports is none. ``None`` if there is no round with both.
    """
    pairs = [
        (mine, other)
        for mine, other in zip(ours, theirs, strict=False)
        if mine is not None and other
    ]
    if not pairs:
        return None
    of_pairs = spread([mine / other for mine, other in pairs])
    of_medians = median(mine for mine, _ in pairs) / median(other for _, other in pairs)
    return {
        "of_medians": _short(of_medians),
        "of_pairs": _short(of_pairs.median),
        "lowest": _short(of_pairs.lowest),
        "highest": _short(of_pairs.highest),
    }


def ratios(samples: Samples) -> list[dict[str, Any]]:
    """CPU of Steersman to that of each other proxy under each load."""
    found = []
    for load, proxies in samples.items():
        ours = by_round(proxies.get(STEERSMAN, ()), "cpu_us")
        for name, rounds in proxies.items():
            theirs = by_round(rounds, "cpu_us")
            if name != STEERSMAN and (one := ratio(ours, theirs)) is not None:
                found.append({"load": load, "figure": "cpu_us", "to": name, **one})
    return found


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One target: a figure of Steersman's at most, or at least, a limit.

    The limit is ``factor`` times the lowest of the figures of ``against``, plus ``plus``; without
    ``against`` it is ``plus``.
    """

    what: str
    load: str
    figure: str
    against: tuple[str, ...] = ()
    factor: float = 1.0
    plus: float = 0.0
    at_least: bool = False

    def judge(self, value: float | None, others: Mapping[str, float | None]) -> dict[str, Any]:
        """The verdict as it stands in the JSON; ``met`` is ``None`` where a figure is missing."""
        verdict: dict[str, Any] = {
            "what": self.what,
            "load": self.load,
            "figure": self.figure,
            "against": list(self.against),
        }
        missing = [name for name in self.against if others.get(name) is None]
        if value is None or missing:
            lacking = [*([STEERSMAN] if value is None else []), *missing]
            return {**verdict, "met": None, "why": f"not measured: {', '.join(lacking)}"}
        known = [other for name in self.against if (other := others[name]) is not None]
        limit = self.plus + (self.factor * min(known) if known else 0.0)
        met = value >= limit if self.at_least else value <= limit
        verdict |= {"value": _short(value), "limit": _short(limit)}
        if known and self.figure == "cpu_us":
            verdict |= {"ratio": _short(value / min(known)), "allowed": self.factor}
        return {**verdict, "met": met}


def _cpu(load: str, words: str, against: str, factor: float) -> Goal:
    what = f"CPU per {words} at most {factor:g} of {against}'s"
    return Goal(what=what, load=load, figure="cpu_us", against=(against,), factor=factor)


_SMALL, _BIG = "buffered 1 KB request, 32 connections", "request of 32 KiB in, 64 KiB out"
_CHUNK = "SSE chunk, 200 streams × 50/s"

GOALS: Sequence[Goal] = (
    _cpu("buffered", _SMALL, "vllm-router", 0.5),
    _cpu("buffered", _SMALL, "smg", 0.25),
    _cpu("large", _BIG, "vllm-router", 0.6),
    _cpu("large", _BIG, "smg", 0.35),
    _cpu("sse-200", _CHUNK, "vllm-router", 0.9),
    _cpu("sse-200", _CHUNK, "smg", 0.75),
    Goal(
        what=f"CPU per {_CHUNK} not above the cheapest Rust gateway's",
        load="sse-200",
        figure="cpu_us",
        against=GATEWAYS,
    ),
    Goal(
        what="1,000 streams × 50/s carried whole on one core",
        load="sse-1000",
        figure="carried",
        plus=0.99,
        at_least=True,
    ),
    Goal(what="memory at most 55 MB idle", load="idle", figure="rss_mb", plus=55.0),
    Goal(
        what="memory at most 15 kB a stream, 1,000 streams × 50/s",
        load="sse-1000",
        figure="rss_kb_per_stream",
        plus=15.0,
    ),
    Goal(
        what="p50 added to TTFT at 200 streams × 50/s not above vllm-router's and 0.2 ms",
        load="sse-200",
        figure="ttft_added_us",
        against=("vllm-router",),
        plus=200.0,
    ),
    Goal(
        what="p50 added to TTFT at 200 streams × 50/s not above smg's",
        load="sse-200",
        figure="ttft_added_us",
        against=("smg",),
    ),
)


def judge(samples: Samples, goals: Sequence[Goal] = GOALS) -> list[dict[str, Any]]:
    """The verdicts, by the medians of the rounds."""
    verdicts = []
    for goal in goals:
        others = {name: middle(samples, goal.load, name, goal.figure) for name in goal.against}
        ours = middle(samples, goal.load, STEERSMAN, goal.figure)
        verdicts.append(goal.judge(ours, others))
    return verdicts


def _short(value: float) -> float:
    """Four significant digits: more than the spread leaves true."""
    return float(f"{value:.4g}")
