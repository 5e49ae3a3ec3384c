"""The run as lines of text: one for each step, and one a second."""

from collections.abc import Callable

from steersman_sim.demo.promises import percent
from steersman_sim.demo.snapshot import ACTIVE, EngineLine, Snapshot

Write = Callable[[str], None]


class PlainView:
    """Writes lines."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._second = 0

    def __enter__(self) -> "PlainView":
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""

    def say(self, step: str, *, at: float) -> None:
        """Tell that a step began."""
        self._write(f"{at:6.1f} s  {step}")

    def show(self, shown: Snapshot) -> None:
        """Write a snapshot, if a second has passed since the last one."""
        if shown.elapsed >= self._second + 1:
            self._second = int(shown.elapsed)
            self._write(line_of(shown))


def line_of(shown: Snapshot) -> str:
    """A snapshot in one line."""
    verdict = shown.verdict
    engines = "  ".join(_engine(line) for line in shown.engines)
    return (
        f"{shown.elapsed:6.1f} s    sent {shown.sent:<5} failed {len(verdict.failures)}  "
        f"stale {verdict.stale}  stamped {percent(verdict.stamped_share)}  held {shown.held:<3} "
        f"[{engines}]"
    )


def _engine(line: EngineLine) -> str:
    """The weights and how many run, or what is done with the engine."""
    if line.state == ACTIVE:
        return f"{line.version}: {line.in_flight} running"
    return f"{line.version}: {line.state}"
