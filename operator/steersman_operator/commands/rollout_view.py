"""What is printed while new weights are on their way: lines, and in a terminal a bar below them."""

import os
import sys
from types import TracebackType
from typing import Protocol, Self

from steersman_operator.commands.fleet import say
from steersman_operator.commands.progress import without_seconds
from steersman_operator.commands.rollouts import Rolled


class RolloutView(Protocol):
    """Shows a rollout."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; what was said stays."""
        ...

    def say(self, text: str) -> None:
        """A line."""
        ...

    def tell(self, progress: Rolled) -> None:
        """This is how far it has come."""
        ...


def view_of(*, quiet: bool) -> RolloutView:
    """How it is shown to whoever reads the output."""
    if quiet:
        return Silent()
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Bar() if terminal else Plain()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to end."""

    def say(self, text: str) -> None:
        """No line."""

    def tell(self, progress: Rolled) -> None:
        """Nothing."""


class Plain(Silent):
    """Prints what has changed since the last account: a line for each engine, and one for all."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def say(self, text: str) -> None:
        """A line."""
        say(text)

    def tell(self, progress: Rolled) -> None:
        """The lines that say something new."""
        for engine, line in progress.lines.items():
            self._tell(engine, f"{engine}: {line}")
        self._tell("", progress.sentence)

    def _tell(self, about: str, line: str) -> None:
        heart = without_seconds(line)
        if line and self._told.get(about) != heart:
            self._told[about] = heart
            self.say(line)


class Bar(Plain):
    """The same above a bar, which says all of it."""

    def __init__(self) -> None:
        # Only whoever sits at a terminal has to wait for it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        super().__init__()
        self._progress = Progress(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The bar goes, the lines stay."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, soft_wrap=True)

    def tell(self, progress: Rolled) -> None:
        """The lines that say something new, and the bar."""
        for engine, line in progress.lines.items():
            self._tell(engine, f"{engine}: {line}")
        self._progress.update(
            self._task,
            completed=progress.done,
            total=progress.total or None,
            description=progress.sentence,
        )
