"""What is told of each step; metrics are made from it."""

from collections.abc import Sequence

from steersman_operator.fleet.commands import Command
from steersman_operator.fleet.events import Event
from steersman_operator.fleet.state import State


class ShellObserver:
    """Takes note of steps; this one takes none."""

    def stepped(
        self, before: State, after: State, event: Event, commands: Sequence[Command]
    ) -> None:
        """One event has led from one state to the next."""
