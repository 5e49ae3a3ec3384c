"""The run on a terminal: a table that is drawn again several times a second."""

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from steersman_sim.demo.options import PROXIES, DemoOptions
from steersman_sim.demo.promises import promises
from steersman_sim.demo.records import NEW, OLD
from steersman_sim.demo.snapshot import ACTIVE, EngineLine, Snapshot

_VERSION_STYLES = {OLD: "bright_blue", NEW: "yellow"}
_WIDTH = 84


class LiveView:
    """Shows snapshots in place."""

    def __init__(self, options: DemoOptions, *, console: Console) -> None:
        self._options = options
        self._width = min(_WIDTH, console.width)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "LiveView":
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture standing."""
        self._live.__exit__(None, None, None)

    def say(self, step: str, *, at: float) -> None:
        """A step began; the next snapshot has it too."""

    def show(self, shown: Snapshot) -> None:
        """Draw a snapshot."""
        panel = render(shown, options=self._options, width=self._width)
        self._live.update(panel, refresh=True)


def render(shown: Snapshot, *, options: DemoOptions, width: int = _WIDTH) -> RenderableType:
    """A snapshot as one panel of ``width`` columns."""
    elapsed = Text(f"{shown.elapsed:5.1f} s", style="dim")
    progress = Table.grid(expand=True, padding=(0, 1))
    progress.add_column(ratio=1)
    progress.add_column(justify="right")
    bar = ProgressBar(total=options.duration, completed=min(shown.elapsed, options.duration))
    progress.add_row(bar, elapsed)
    return Panel(
        Group(
            progress,
            _engines(shown.engines),
            _counts(shown),
            Text(),
            Text.assemble(("$ ", "dim"), (shown.command, "cyan")) if shown.command else Text(),
            Text.assemble(("▸ ", "bold yellow"), (shown.step, "bold")),
        ),
        title="[bold]Steersman[/bold]",
        subtitle=f"{options.engines} engines · {PROXIES} proxies · {options.rate:g} requests/s",
        width=width,
        padding=(1, 2),
    )


def _engines(lines: list[EngineLine]) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1), pad_edge=False)
    for heading in ("engine", "state", "gate"):
        table.add_column(heading)
    for heading in ("weights", "in flight", "requests", "received\nwhile closed"):
        table.add_column(heading, justify="right")
    for line in lines:
        is_open = line.gate == "open"
        table.add_row(
            line.name,
            Text(line.state, style="green" if line.state == ACTIVE else "bold magenta"),
            Text(line.gate, style="green" if is_open else "bold red"),
            Text(line.version, style=f"bold {_VERSION_STYLES.get(line.version, '')}"),
            str(line.in_flight),
            str(line.received),
            Text(str(line.while_closed), style="bold red" if line.while_closed else "green"),
        )
    return table


def _counts(shown: Snapshot) -> Table:
    """The traffic at the left, the promises at the right."""
    verdict = shown.verdict
    traffic = _pairs()
    traffic.add_row("requests sent", str(shown.sent))
    traffic.add_row("answered", str(verdict.answered))
    traffic.add_row("mixed answers", str(verdict.mixed))
    traffic.add_row("held now", Text(str(shown.held), style="bold magenta" if shown.held else ""))
    traffic.add_row("held in total", str(shown.held_total))
    traffic.add_row("longest wait", f"{verdict.longest_wait:.1f} s")
    kept = _pairs()
    for promise in promises(verdict):
        style = "green" if promise.kept else "bold red"
        kept.add_row(promise.name, Text(promise.value, style=style))
    both = Table.grid(expand=True)
    both.add_column(ratio=1)
    both.add_column(ratio=1)
    both.add_row(traffic, kept)
    return both


def _pairs() -> Table:
    pairs = Table.grid(padding=(0, 2))
    pairs.add_column(style="dim", width=23)
    pairs.add_column(justify="right", width=6)
    return pairs
