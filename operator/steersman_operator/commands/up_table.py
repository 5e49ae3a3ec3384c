"""The table of engines that ``steersman up`` draws, made to fit the terminal."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2
"""Characters between two columns."""

ROOM = 24
"""Characters that sentences need beside the table; with less they are told below it."""

NARROW = 4
"""Characters that a column keeps however narrow the terminal is."""

SENTENCE = "WHAT IS WAITED FOR"

_CONTROL = {"active": "green", "paused": "yellow", "asleep": "blue", "unknown": "red"}
_GATE = {"open": "green", "closed": "yellow"}


class _Column(NamedTuple):
    title: str
    cells: list[Text]

    @property
    def needed(self) -> int:
        """How wide it has to be."""
        width = max(len(self.title), *(cell.cell_len for cell in self.cells), 0)
        return min(width, ROOM) if self.title == SENTENCE else width

    def cut(self, excess: int) -> "_Column":
        """So much narrower, by the beginnings of its cells: engines differ in their ends."""
        width = max(self.needed - excess, NARROW, len(self.title))
        return _Column(
            self.title,
            [
                cell if cell.cell_len <= width else Text("…" + cell.plain[1 - width :])
                for cell in self.cells
            ],
        )


def engines_of(status: dict[str, Any], *, width: int) -> list[RenderableType]:
    """The engines in ``width`` characters: a table, and below it the sentences that have no room in it.

    What says least is left out first; no word is broken, and names that are too long lose their
    beginning.
    """
    pools = status["pools"]
    if not pools:
        return [Text("no RolloutEngine yet", style="yellow")]
    all_columns = {column.title: column for column in _columns(status)}
    columns = dict(all_columns)
    at_rest = all(one["desired"] == one["control"] for pool in pools for one in pool["engines"])
    for title in (
        *(["WANTED"] if at_rest else []),
        SENTENCE,
        *(["POOL"] if len(pools) == 1 else []),
        *("GATE", "WANTED", "PHASE"),
    ):
        if _needed(columns) <= width:
            break
        columns.pop(title, None)
    if (excess := _needed(columns) - width) > 0:
        columns["ENGINE"] = columns["ENGINE"].cut(excess)
    parts: list[RenderableType] = [_table([*columns.values()])]
    if SENTENCE not in columns:
        names = [f"{pool['name']}/{one['name']}" for pool in pools for one in pool["engines"]]
        parts += [
            Text(f"{name}: {sentence}")
            for name, sentence in zip(names, all_columns[SENTENCE].cells, strict=True)
            if sentence.plain
        ]
    return parts


def _needed(columns: dict[str, _Column]) -> int:
    """How many characters they take."""
    return sum(column.needed + GAP for column in columns.values()) - GAP


def _columns(status: dict[str, Any]) -> list[_Column]:
    rows = [
        _row(pool, engine, first=number == 0)
        for pool in status["pools"]
        for number, engine in enumerate(pool["engines"])
    ]
    titles = ["POOL", "ENGINE", "WANTED", "STATE", "GATE", "PHASE", "VERSION", SENTENCE]
    return [_Column(title, [row[at] for row in rows]) for at, title in enumerate(titles)]


def _row(pool: dict[str, Any], engine: dict[str, Any], *, first: bool) -> list[Text]:
    version = Text(engine["version"] or "-")
    if engine["version"] is not None and engine["version"] == pool["fleet_max"]:
        version.stylize("green")
    return [
        Text(pool["name"] if first else "", style="bold"),
        Text(engine["name"]),
        Text(engine["desired"]),
        Text(engine["control"], style=_CONTROL.get(engine["control"], "")),
        Text(engine["gate"], style=_GATE[engine["gate"]]),
        Text(engine["phase"]),
        version,
        Text(engine["problem"] or engine["withheld"]),
    ]


def _table(columns: Sequence[_Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        if column.title == SENTENCE:
            table.add_column(column.title)
        else:
            # A floor for each, or the sentences would take from them.
            table.add_column(column.title, no_wrap=True, min_width=column.needed)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table
