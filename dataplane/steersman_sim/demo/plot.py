"""The run as a picture: what each engine received, what was done with it, and who waited."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from steersman_sim.demo.judge import Verdict
from steersman_sim.demo.promises import percent
from steersman_sim.demo.records import NEW, OLD, Activity, Arrival, Phase, Records, Weights

_STEPS = 40
"""Steps of the curves over the whole run."""
_HEADROOM = 2.1
"""Height of an engine's panel, as a multiple of an even share of the traffic."""
_RESOLUTION = 160

# Blue and vermilion of Okabe and Ito, each with a lighter shade; they differ in lightness too.
_COLOURS = {
    (OLD, True): "#0072B2",
    (OLD, False): "#A9D3EC",
    (NEW, True): "#D55E00",
    (NEW, False): "#F6C79B",
}
_HELD_COLOUR = "#8E5A7F"
_INK = "#222222"
_FAINT = "#6B6B6B"
_BAND = "#ECECEC"
_DRAIN_BAND = "#F7F7F7"

_LABELS = {
    Activity.PAUSED: "paused",
    Activity.REFIT: f"refit to {NEW}",
    Activity.ASLEEP: "asleep",
    Activity.WAKING: f"loads {NEW}",
}


def draw(records: Records, *, verdict: Verdict, path: Path) -> None:
    """Draw a run into a file whose suffix says in which format."""
    figure = make_figure(records, verdict=verdict)
    # Without a date the same run makes the same file.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, dpi=_RESOLUTION, metadata=metadata)


def make_figure(records: Records, *, verdict: Verdict) -> Figure:
    """One panel for each engine, and one for the requests that wait."""
    count = len(records.engines)
    height = 1.75 + 1.1 * count + 1.0
    # A figure of its own, without pyplot: no display, no state that outlives it.
    figure = Figure(figsize=(10.0, height), facecolor="white", layout=None)
    grid = figure.add_gridspec(
        count + 1,
        1,
        height_ratios=[1.0] * count + [0.8],
        hspace=0.3,
        left=0.105,
        right=0.985,
        top=1 - 1.2 / height,
        bottom=0.5 / height,
    )
    duration = (records.ended or records.began) - records.began
    ceiling = _ceiling(records, duration=duration)
    for position, engine in enumerate(records.engines):
        axes = figure.add_subplot(grid[position])
        _style(axes, duration=duration, label=engine)
        axes.set_ylim(0, ceiling)
        _draw_phases(axes, records, engine)
        _draw_arrivals(axes, records, engine, duration=duration, ceiling=ceiling)
        _draw_versions(axes, records, engine)
        _draw_rise(axes, records, explain=position == 1)
        axes.tick_params(labelbottom=False)
    axes = figure.add_subplot(grid[count])
    _style(axes, duration=duration, label="held in\nthe proxy")
    _draw_held(axes, records)
    axes.set_xlabel("seconds", color=_FAINT, fontsize=9)
    _draw_heading(figure, records, verdict=verdict, duration=duration, height=height)
    return figure


def _style(axes: Axes, *, duration: float, label: str) -> None:
    axes.set_xlim(0, duration)
    axes.text(-0.105, 0.5, label, transform=axes.transAxes, va="center", color=_INK, fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    axes.tick_params(colors=_FAINT, labelsize=8, length=3)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def _ceiling(records: Records, *, duration: float) -> float:
    """The top of the engines' panels: room for the ordinary, not for the bursts of a release."""
    rate = sum(arrival.request is not None for arrival in records.arrivals) / max(duration, 0.001)
    return max(1.0, _HEADROOM * rate / len(records.engines))


def _draw_phases(axes: Axes, records: Records, engine: str) -> None:
    """Shade what is done with the engine."""
    for phase in records.phases:
        if phase.engine != engine:
            continue
        since, until = _span(phase, records)
        draining = phase.activity is Activity.DRAINING
        axes.axvspan(
            since,
            until,
            facecolor=_DRAIN_BAND if draining else _BAND,
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
    return phase.since - records.began, end - records.began


def _draw_arrivals(
    axes: Axes, records: Records, engine: str, *, duration: float, ceiling: float
) -> None:
    """Requests per second, stacked by weights and version policy."""
    latest = {outcome.number for outcome in records.outcomes if outcome.latest_only}
    mine = [a for a in records.arrivals if a.engine == engine and a.request is not None]
    edges = _edges(records, engine, duration=duration)
    widths = np.diff(edges)
    below = np.zeros(len(widths))
    for (version, latest_only), colour in _COLOURS.items():
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
        axes.text(
            edges[peak + 1] + 0.006 * duration,
            0.9 * ceiling,
            f"▲ {below[peak]:.0f}/s: the held ones go first",
            fontsize=8.5,
            color=_INK,
            va="center",
            zorder=4,
        )


def _edges(records: Records, engine: str, *, duration: float) -> np.ndarray:
    """The bounds of the steps: about equal, and never across the bounds of a closure.

    A step that were half inside would show requests where there were none.
    """
    bounds = {0.0, duration}
    for closure in records.closures:
        if closure.engine == engine:
            bounds |= {
                at - records.began
                for at in (closure.since, closure.until)
                if at is not None and 0 < at - records.began < duration
            }
    ordered = sorted(bounds)
    parts = [
        np.linspace(
            since, until, max(1, round((until - since) / duration * _STEPS)), endpoint=False
        )
        for since, until in pairwise(ordered)
    ]
    return np.append(np.concatenate(parts), duration)


def _made_by(arrival: Arrival) -> str | None:
    return arrival.versions[-1] if arrival.versions else None


def _draw_versions(axes: Axes, records: Records, engine: str) -> None:
    """Say from when on the engine serves which weights."""
    for weights in records.weights:
        if weights.engine != engine:
            continue
        at = max(0.0, weights.since - records.began)
        colour = _COLOURS.get((weights.version, True), _INK)
        if at > 0:
            axes.axvline(at, color=colour, linewidth=1.4, zorder=3)
        axes.annotate(
            f"weights {weights.version}",
            (at, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=8.5,
            fontweight="bold",
            color=colour,
            va="bottom",
            zorder=4,
        )


def _draw_rise(axes: Axes, records: Records, *, explain: bool) -> None:
    """Mark from when on the new weights are the newest, which moves ``latest-only`` requests."""
    first = min((w for w in records.weights if w.version == NEW), key=_since, default=None)
    if first is None:
        return
    at = first.since - records.began
    axes.axvline(at, color=_COLOURS[NEW, True], linewidth=1, linestyle=(0, (3, 3)), zorder=3)
    if explain:
        axes.annotate(
            f"{NEW} is the newest from here on: latest-only goes to {first.engine} alone",
            (at, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=8.5,
            color=_COLOURS[NEW, True],
            va="bottom",
        )


def _since(weights: Weights) -> float:
    return weights.since


def _draw_held(axes: Axes, records: Records) -> None:
    """How many requests waited in the proxy."""
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
            color=_INK,
            va="center",
        )


def _draw_heading(
    figure: Figure, records: Records, *, verdict: Verdict, duration: float, height: float
) -> None:
    """Title, what came out, and the legend."""
    failed = len(verdict.failures)
    figure.text(
        0.012,
        1 - 0.27 / height,
        "Rolling new weights through a fleet under traffic",
        fontsize=14,
        fontweight="bold",
        color=_INK,
        va="center",
    )
    figure.text(
        0.012,
        1 - 0.55 / height,
        f"{verdict.sent} requests in {duration:.0f} s · {failed} failed · "
        f"{verdict.stale} on stale weights · {verdict.while_closed} to a closed engine · "
        f"{percent(verdict.stamped_share)} stamped with their weights",
        fontsize=10,
        color=_INK,
        va="center",
    )
    figure.text(
        0.012,
        1 - 0.82 / height,
        "requests/s that each engine received",
        fontsize=9,
        color=_FAINT,
        va="center",
    )
    handles = [
        Patch(color=_COLOURS[version, latest_only], label=label)
        for version, latest_only, label in (
            (OLD, True, f"latest-only, on {OLD}"),
            (OLD, False, f"others, on {OLD}"),
            (NEW, True, f"latest-only, on {NEW}"),
            (NEW, False, f"others, on {NEW}"),
        )
    ]
    handles.append(
        Patch(facecolor=_DRAIN_BAND, edgecolor="#CCCCCC", hatch="////", label="draining")
    )
    figure.legend(
        handles=handles,
        loc="center right",
        bbox_to_anchor=(0.99, 1 - 0.82 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.3,
        handletextpad=0.5,
        borderpad=0,
    )
