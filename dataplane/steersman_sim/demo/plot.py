"""The run as a picture: what each engine received, what was done with it, and who waited."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from steersman_sim.demo.judge import Verdict
from steersman_sim.demo.panels import (
    COLOURS,
    DRAIN_BAND,
    FAINT,
    INK,
    ceiling_of,
    draw_arrivals,
    draw_held,
    draw_phases,
    draw_rise,
    draw_versions,
    style,
)
from steersman_sim.demo.promises import percent
from steersman_sim.demo.records import NEW, OLD, Records

_RESOLUTION = 160


def draw(records: Records, *, verdict: Verdict, path: Path) -> None:
    """Draw a run into a file whose suffix says in which format."""
    figure = make_figure(records, verdict=verdict)
    # With neither a date nor random ids the same run makes the same file.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with rc_context({"svg.hashsalt": "steersman"}):
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
    duration = _duration(records)
    ceiling = ceiling_of(records, duration=duration)
    for position, engine in enumerate(records.engines):
        axes = figure.add_subplot(grid[position])
        style(axes, duration=duration, label=engine)
        axes.set_ylim(0, ceiling)
        draw_phases(axes, records, engine)
        draw_arrivals(axes, records, engine, duration=duration, ceiling=ceiling)
        draw_versions(axes, records, engine)
        draw_rise(axes, records, engine, explain=position == 1)
        axes.tick_params(labelbottom=False)
    axes = figure.add_subplot(grid[count])
    style(axes, duration=duration, label="held in\nproxies")
    draw_held(axes, records)
    axes.set_xlabel("seconds", color=FAINT, fontsize=9)
    _draw_heading(figure, records, verdict=verdict, duration=duration, height=height)
    return figure


def _duration(records: Records) -> float:
    """Seconds until the last request was sent; the tail of late answers is not of interest."""
    return max((outcome.sent - records.began for outcome in records.outcomes), default=1.0)


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
        color=INK,
        va="center",
    )
    figure.text(
        0.012,
        1 - 0.55 / height,
        f"{verdict.sent} requests in {duration:.0f} s · {failed} failed · "
        f"{verdict.stale} on stale weights · {verdict.while_closed} to a closed engine · "
        f"{percent(verdict.stamped_share)} stamped with their weights",
        fontsize=10,
        color=INK,
        va="center",
    )
    figure.text(
        0.012,
        1 - 0.82 / height,
        "requests/s that each engine received",
        fontsize=9,
        color=FAINT,
        va="center",
    )
    handles = [
        Patch(color=COLOURS[version, latest_only], label=label)
        for version, latest_only, label in (
            (OLD, True, f"latest-only, on {OLD}"),
            (OLD, False, f"others, on {OLD}"),
            (NEW, True, f"latest-only, on {NEW}"),
            (NEW, False, f"others, on {NEW}"),
        )
    ]
    handles.append(Patch(facecolor=DRAIN_BAND, edgecolor="#CCCCCC", hatch="////", label="draining"))
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
