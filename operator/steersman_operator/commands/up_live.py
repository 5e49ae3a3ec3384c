"""What ``steersman up`` draws in a terminal: the fleet as it is, and what happened last."""

import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steersman_operator.commands.kinds import wrong_of
from steersman_operator.commands.up_plain import PlainView, is_serving
from steersman_operator.standalone.settings import UpSettings

EVENTS = 8
"""Lines of what happened that are shown."""

_CONTROL = {"active": "green", "paused": "yellow", "asleep": "blue", "unknown": "red"}
_GATE = {"open": "green", "closed": "yellow"}


class LiveView:
    """Draws the fleet again at each change."""

    def __init__(self, console: Console) -> None:
        self._live = Live(Text("starting"), console=console, auto_refresh=False, transient=False)
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._status: dict[str, Any] | None = None
        self._settings = UpSettings()
        self._lines = _Lines(self._events)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last picture."""
        self._live.stop()

    def say(self, text: str) -> None:
        """One of the lines of what happened."""
        self._lines.say(text)
        self._draw()

    def show(self, status: dict[str, Any], settings: UpSettings) -> None:
        """Draw the status."""
        self._status, self._settings = status, settings
        self._lines.show(status, settings)
        self._draw()

    def _draw(self) -> None:
        parts: list[Any] = []
        if self._status is not None:
            parts += [_headline(self._status, self._settings), Text(), _engines(self._status)]
            parts += [Text(sentence, style="red") for sentence in wrong_of(self._status)[:5]]
            parts.append(Text())
        parts += [
            Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self._events
        ]
        self._live.update(Group(*parts), refresh=True)


class _Lines(PlainView):
    """What a plain view would print, kept with the time."""

    def __init__(self, events: deque[str]) -> None:
        super().__init__()
        self._kept = events

    def say(self, text: str) -> None:
        """Keep a line."""
        self._kept.append(f"{time.strftime('%H:%M:%S')}  {text}")


def _headline(status: dict[str, Any], settings: UpSettings) -> Text:
    serving = is_serving(status, settings)
    text = Text()
    text.append(
        "serving on " if serving else "starting ", style="bold green" if serving else "bold"
    )
    text.append(settings.endpoint, style="bold")
    acked = sum(proxy["acked"] == status["operator"]["epoch"] for proxy in status["proxies"])
    text.append(f"   table {status['operator']['epoch']}")
    text.append(f"   acknowledged by {acked} of {len(status['proxies'])} proxies")
    return text


def _engines(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "POOL",
        "ENGINE",
        "WANTED",
        "STATE",
        "GATE",
        "PHASE",
        "VERSION",
        "WHAT IS WAITED FOR",
    ):
        table.add_column(title, no_wrap=title != "WHAT IS WAITED FOR")
    for pool in status["pools"]:
        for number, engine in enumerate(pool["engines"]):
            version = Text(engine["version"] or "-")
            if engine["version"] is not None and engine["version"] == pool["fleet_max"]:
                version.stylize("green")
            table.add_row(
                Text(pool["name"] if number == 0 else "", style="bold"),
                engine["name"],
                engine["desired"],
                Text(engine["control"], style=_CONTROL.get(engine["control"], "")),
                Text(engine["gate"], style=_GATE[engine["gate"]]),
                engine["phase"],
                version,
                Text(engine["problem"]),
            )
    if not status["pools"]:
        table.add_row(Text("no RolloutEngine yet", style="yellow"))
    return table
