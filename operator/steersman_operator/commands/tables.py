"""Tables as plain text: aligned by spaces, never wrapped or cut, the same for people and pipes."""

import os
import sys
from collections.abc import Sequence

Row = list[str]

GAP = "   "

_GOOD, _MOVING, _BAD = "32", "33", "31"

_COLOURS = {
    **dict.fromkeys(("Settled", "verified"), _GOOD),
    **dict.fromkeys(
        (
            *("Closing", "Draining", "Claiming", "Executing", "AwaitingTrainer", "Verifying"),
            *("Pending", "AwaitingWeights", "Leaving"),
        ),
        _MOVING,
    ),
    **dict.fromkeys(
        ("GivenUp", "External", "Unreachable", "Unknown", "uncertain", "unsynced"), _BAD
    ),
}
"""By cell, where the output is a terminal."""


def is_coloured() -> bool:
    """Whether the reader is a person at a terminal that shows colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not plain


def widths_of(rows: Sequence[Row]) -> list[int]:
    """How wide the columns are."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def line_of(row: Row, widths: Sequence[int], *, coloured: bool = False) -> str:
    """One line; cells that are too long push the others."""
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    cells[-1] = row[-1]
    if coloured:
        cells = [_paint(cell) for cell in cells]
    line = GAP.join(cells)
    return line if coloured else line.rstrip()


def lines_of(rows: Sequence[Row], *, indent: str = "") -> list[str]:
    """A whole table; the first row is its header."""
    coloured, widths = is_coloured(), widths_of(rows)
    lines = [line_of(row, widths, coloured=coloured) for row in rows]
    if coloured:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    return [indent + line for line in lines]


def _paint(cell: str) -> str:
    colour = _COLOURS.get(cell.rstrip())
    return cell if colour is None else f"\x1b[{colour}m{cell}\x1b[0m"


def age(seconds: float | None) -> str:
    """A duration in few characters, as Kubernetes shows ages."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"
