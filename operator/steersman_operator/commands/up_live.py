"""What ``steersman up`` draws in a terminal: the fleet as it is, and what happened last."""

import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from steersman_operator.commands.kinds import wrong_of
from steersman_operator.commands.up_plain import PlainView, is_serving
from steersman_operator.commands.up_table import engines_of
from steersman_operator.standalone.settings import UpSettings

EVENTS = 8
"""Lines of what happened that are shown."""


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
            parts += [_headline(self._status, self._settings), Text()]
            parts += engines_of(self._status, width=self._live.console.width)
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
