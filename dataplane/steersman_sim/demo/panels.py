"""The panels of the picture: one for each engine, and one for the requests that wait."""

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from steersman_sim.demo.records import NEW, OLD, Activity, Arrival, Phase, Records

_STEPS = 40
"""Steps of the curves over the whole run."""
_ORDINARY = 97
"""The panels are as high as this percentile of the steps; higher ones are cut."""

# Blue and vermilion of Okabe and Ito, each with a lighter shade; they differ in lightness too.
COLOURS = {
    (OLD, True): "#0072B2",
    (OLD, False): "#A9D3EC",
    (NEW, True): "#D55E00",
    (NEW, False): "#F6C79B",
}
_HELD_COLOUR = "#8E5A7F"
INK = "#222222"
FAINT = "#6B6B6B"
_BAND = "#ECECEC"
DRAIN_BAND = "#F7F7F7"

_LABELS = {
    Activity.PAUSED: "paused",
    Activity.REFIT: f"refit to {NEW}",
    Activity.ASLEEP: "asleep",
}


def style(axes: Axes, *, duration: float, label: str) -> None:
    """What all panels have in common: frame, ticks, and the name at the left."""
    axes.set_xlim(0, duration)
    axes.text(-0.105, 0.5, label, transform=axes.transAxes, va="center", color=INK, fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    axes.tick_params(colors=FAINT, labelsize=8, length=3)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def ceiling_of(records: Records, *, duration: float) -> float:
    """The top of the engines' panels: room for the ordinary, not for the bursts of a release."""
    steps: list[float] = []
    for engine in records.engines:
        edges = edges_of(records, engine, duration=duration)
        times = [a.at - records.began for a in _requests(records, engine)]
        steps += list(np.histogram(times, bins=edges)[0] / np.diff(edges))
    return max(1.0, 1.2 * float(np.percentile(steps, _ORDINARY)))


def _requests(records: Records, engine: str) -> list[Arrival]:
    return [a for a in records.arrivals if a.engine == engine and a.request is not None]


def draw_phases(axes: Axes, records: Records, engine: str) -> None:
    """Shade what is done with the engine."""
    for phase in records.phases:
        if phase.engine != engine:
            continue
        since, until = _span(phase, records)
        draining = phase.activity is Activity.DRAINING
        axes.axvspan(
            since,
            until,
            facecolor=DRAIN_BAND if draining else _BAND,
            edgecolor="#D9D9D9" if draining else "none",
            hatch="////" if draining else None,
            linewidth=0,
            zorder=0,
        )
        label = _LABELS.get(phase.activity)
        if label is None:
            continue
        wide = until - since > 0.075 * axes.get_xlim()[1]
        axes.text(
            (since + until) / 2,
            0.5,
            label if wide else label.replace(" ", "\n", 1),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold",
            color="#444444",
            linespacing=1.1,
        )


def _span(phase: Phase, records: Records) -> tuple[float, float]:
    end = phase.until or records.ended or phase.since
    opened = openings(records, phase.engine).get(end, end)
    return phase.since - records.began, opened - records.began


def openings(records: Records, engine: str) -> dict[float, float]:
    """When an engine was opened, by when that was noticed: the first request came in between."""
    times = [arrival.at for arrival in _requests(records, engine)]
    return {
        closure.opened: min(
            (at for at in times if closure.until <= at < closure.opened), default=closure.opened
        )
        for closure in records.closures
        if closure.engine == engine and closure.until is not None and closure.opened is not None
    }


def draw_arrivals(
    axes: Axes, records: Records, engine: str, *, duration: float, ceiling: float
) -> None:
    """Requests per second, stacked by weights and version policy."""
    latest = {outcome.number for outcome in records.outcomes if outcome.latest_only}
    mine = _requests(records, engine)
    edges = edges_of(records, engine, duration=duration)
    widths = np.diff(edges)
    below = np.zeros(len(widths))
    for (version, latest_only), colour in COLOURS.items():
        times = [
            arrival.at - records.began
            for arrival in mine
            if _made_by(arrival) == version and (arrival.request in latest) is latest_only
        ]
        counts, _ = np.histogram(times, bins=edges)
        above = below + counts / widths
        axes.stairs(above, edges, baseline=below, fill=True, color=colour, linewidth=0, zorder=2)
        below = above
    peak = int(np.argmax(below))
    if below[peak] > 1.3 * ceiling:
        # A release of held requests would flatten everything else; its height is told instead.
        axes.annotate(
            f"▲ {below[peak]:.0f}/s: the held ones go first",
            (edges[peak], 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            va="bottom",
        )


def edges_of(records: Records, engine: str, *, duration: float) -> np.ndarray:
    """The bounds of the steps: about equal, and never across the bounds of a closure, the begin of a
    drain or the rise of the newest version.

    A step that were half inside would show requests where there were none.
    """
    opened = openings(records, engine)
    times = {phase.since for phase in records.phases if phase.engine == engine}
    for closure in records.closures:
        if closure.engine == engine:
            times |= {closure.since, closure.until or closure.since}
            times |= {opened[closure.opened]} if closure.opened in opened else set()
    inside = {time - records.began for time in times if 0 < time - records.began < duration}
    rise = _rise(records, engine)
    if rise is not None and 0 < rise < duration:
        inside.add(rise)
    ordered = sorted({0.0, duration, *inside})
    parts = [
        np.linspace(
            since, until, max(1, round((until - since) / duration * _STEPS)), endpoint=False
        )
        for since, until in pairwise(ordered)
    ]
    return np.append(np.concatenate(parts), duration)


def _made_by(arrival: Arrival) -> str | None:
    return arrival.versions[-1] if arrival.versions else None


def draw_versions(axes: Axes, records: Records, engine: str) -> None:
    """Say from when on the engine serves which weights."""
    for weights in records.weights:
        if weights.engine != engine:
            continue
        since = openings(records, engine).get(weights.since, weights.since)
        at = max(0.0, since - records.began)
        colour = COLOURS.get((weights.version, True), INK)
        if at > 0:
            axes.axvline(at, color=colour, linewidth=1.4, zorder=3)
        axes.annotate(
            f"weights {weights.version}",
            (at, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right" if at > 0.92 * axes.get_xlim()[1] else "left",
            fontsize=8.5,
            fontweight="bold",
            color=colour,
            va="bottom",
            zorder=4,
        )


def draw_rise(axes: Axes, records: Records, engine: str, *, explain: bool) -> None:
    """Mark from when on the new weights are the newest, which takes ``latest-only`` requests away
    from the engines that do not have them yet.
    """
    at = _rise(records, engine)
    if at is None:
        return
    axes.axvline(at, color=COLOURS[NEW, True], linewidth=1, linestyle=(0, (3, 3)), zorder=3)
    if explain:
        first = next(weights.engine for weights in records.weights if weights.version == NEW)
        axes.annotate(
            f"{NEW} is the newest from here on: latest-only goes to {first} alone",
            (at, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=8.5,
            color=COLOURS[NEW, True],
            va="bottom",
        )


def _rise(records: Records, engine: str) -> float | None:
    """When another engine made the new weights the newest, in seconds of the run."""
    first = next((weights.engine for weights in records.weights if weights.version == NEW), None)
    if first in {None, engine}:
        return None
    return next((m.since - records.began for m in records.maxima if m.version == NEW), None)


def draw_held(axes: Axes, records: Records) -> None:
    """How many requests waited in the proxies."""
    times = np.array([held.at - records.began for held in records.held] or [0.0])
    counts = np.array([held.count for held in records.held] or [0])
    axes.fill_between(times, counts, step="post", color=_HELD_COLOUR, linewidth=0, zorder=2)
    top = int(counts.max())
    axes.set_ylim(0, max(4.0, top * 1.3))
    if top:
        after = int(len(counts) - 1 - counts[::-1].argmax()) + 1
        axes.annotate(
            f"up to {top} wait for the newest weights",
            (times[min(after, len(times) - 1)], top),
            xytext=(8, -1),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            va="center",
        )
