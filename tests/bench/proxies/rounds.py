"""Interleaved rounds: each proxy once under a load, then each of them again.

What disturbs a shared machine comes and goes in seconds to minutes. One proxy after the other would
give each its own share of it; in turns, all get about the same, and what is left is seen in the
spread of the ratios of each round.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.bench.proxies.fleet import REST, Fleet, Running, fleet
from tests.bench.proxies.loads import Load, Sample
from tests.bench.proxies.pair import LoadFailedError, Pair
from tests.bench.proxies.peers import DIRECT, KEY, Found, Subject
from tests.bench.proxies.processes import Cores


@dataclass
class Series:
    """One proxy under one load, round by round."""

    samples: list[Sample | None] = field(default_factory=list)
    """By round; ``None`` where there is no figure at all."""
    errors: list[dict[str, int]] = field(default_factory=list)
    """By round: wrong answers by kind; empty is what is wanted."""
    notes: list[str] = field(default_factory=list)
    """Why there is no figure."""


@dataclass
class Measured:
    """All that was measured."""

    series: dict[str, dict[str, Series]] = field(default_factory=dict)
    """By load and proxy."""
    idle_mb: dict[str, list[float]] = field(default_factory=dict)
    """By proxy, one for each start of it."""


Tell = Callable[[str, str, Series], None]
"""Called with load, proxy and series after each run."""


def measure(
    subjects: Sequence[tuple[Subject, Found]],
    loads: Iterable[Load],
    *,
    pair: Pair,
    cores: Cores,
    rounds: int,
    restart: bool,
    tell: Tell,
) -> Measured:
    """Every load in ``rounds`` rounds; with ``restart`` by new processes for each load."""
    measured = Measured()
    with ExitStack() as stack:
        running: Fleet | None = None
        for load in loads:
            if restart or running is None:
                stack.close()
                running = stack.enter_context(
                    fleet(subjects, pair, cores, rest=REST if restart else 0.1)
                )
                for name, idle in running.idle_mb.items():
                    measured.idle_mb.setdefault(name, []).append(idle)
            measured.series[load.name] = _rounds(load, running, pair, rounds=rounds, tell=tell)
    return measured


def memory_at_rest(
    subjects: Sequence[tuple[Subject, Found]], *, pair: Pair, cores: Cores
) -> Measured:
    """Only the idle memory."""
    with fleet(subjects, pair, cores) as running:
        return Measured(idle_mb={name: [idle] for name, idle in running.idle_mb.items()})


def _rounds(
    load: Load, running: Fleet, pair: Pair, *, rounds: int, tell: Tell
) -> dict[str, Series]:
    series = {name: Series() for name in (*running.running, *running.failed)}
    for name, why in running.failed.items():
        series[name].notes.append(why)
    names = list(running.running)
    for number in range(rounds):
        # Direct first, as others subtract it; of the others another one each time.
        direct = [name for name in names if name == DIRECT]
        others = [name for name in names if name != DIRECT]
        shift = number % len(others) if others else 0
        at_direct: Sample | None = None
        for name in (*direct, *others[shift:], *others[:shift]):
            one, its = running.running[name], series[name]
            sample = _once(load, one, running, pair, its)
            if sample is not None:
                if name == DIRECT:
                    at_direct = sample
                _derive(sample, load, at_direct, running.idle_mb[name])
            its.samples.append(sample)
            tell(load.name, name, its)
    return series


def _once(load: Load, one: Running, running: Fleet, pair: Pair, its: Series) -> Sample | None:
    try:
        counted: dict[str, Any] = pair.load(
            load.work, one.port, key=KEY, proxy=one.pids(), engines=[running.engines.pid]
        )
    except LoadFailedError as why:
        its.notes.append(str(why))
        its.errors.append({"failed": 1})
        return None
    its.errors.append(counted["errors"])
    if not counted["chunks" if load.streams else "answers"]:
        its.notes.append("nothing was answered in the window")
        return None
    return load.sample(counted)


def _derive(sample: Sample, load: Load, direct: Sample | None, idle_mb: float) -> None:
    """Add what needs another measurement."""
    if not load.streams:
        return
    if direct is not None and "ttft_us" in direct and "ttft_us" in sample:
        sample["ttft_added_us"] = sample["ttft_us"] - direct["ttft_us"]
    if idle_mb:
        sample["rss_kb_per_stream"] = (sample["rss_mb"] - idle_mb) * 1e3 / load.work.connections
