"""``steersman replay``: let a recorded run of the fleet core happen again, step by step."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.fleet.commands import Command, Publish
from steersman_operator.fleet.events import Event
from steersman_operator.fleet.record import Record, RecordUnreadable, Replayed
from steersman_operator.fleet.state import EngineState, State

LONGEST = 160
"""Characters of one value that are shown."""


class ReplayCommand:
    """Replay a record."""

    help = "replay what --record wrote, and show each step of the operator"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("file", metavar="FILE", help="what `--record FILE` wrote")
        parser.add_argument(
            "--at", type=int, metavar="N", help="show only step N, with everything there is"
        )
        parser.add_argument(
            "--show",
            choices=("engines", "commands"),
            help="with each step, also the engines that it changed, or its commands in full",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Replay; 1 if a state is another one than the record says."""
        try:
            data = Path(args.file).read_bytes()
        except OSError as error:
            raise RecordUnreadable(f"{args.file}: {error.strerror}") from None
        record = Record.read(data, name=args.file)
        if record.cut_off:
            print(f"{args.file}: the last line is incomplete and left out", file=sys.stderr)
        if args.at is not None and not 1 <= args.at <= len(record.events):
            raise RecordUnreadable(f"{args.file} has steps 1 to {len(record.events)}")
        before = record.header.state
        for replayed in record.replay():
            last = replayed.differs or replayed.number == args.at
            if args.at is None or last:
                _print_step(replayed)
                if last or args.show == "commands":
                    _print_lines(_command(command) for command in replayed.commands)
                if last or args.show == "engines":
                    _print_lines(_engines(before, replayed.state, everything=last))
            if replayed.differs:
                print(
                    f"step {replayed.number}: the record says that the state was "
                    f"{replayed.recorded}, here it is {replayed.digest}",
                    file=sys.stderr,
                )
                return EXIT_FAILED
            if replayed.number == args.at:
                return EXIT_OK
            before = replayed.state
        return EXIT_OK


def _print_step(replayed: Replayed) -> None:
    commands = ", ".join(_short(command) for command in replayed.commands)
    event = replayed.event
    print(f"{replayed.number:6} {event.now:12.3f} {replayed.digest} {_event(event)}", end="")
    print(f" -> {commands}" if commands else "")


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"       {line}")


def _event(event: Event) -> str:
    """The name of an event, and what it says besides its time."""
    return _named(event, leave_out=("now",))


def _short(command: Command) -> str:
    engine = getattr(command, "engine", None)
    name = type(command).__name__
    match command:
        case Publish(table=table):
            return f"{name} {table.epoch}"
        case _:
            kind = getattr(command, "kind", None) or getattr(command, "reason", None)
            return " ".join(str(word) for word in (name, kind, engine) if word)


def _command(command: Command) -> str:
    match command:
        case Publish(table=table):
            rows = ", ".join(
                f"{row.id}={'open' if row.gate.open else 'closed'}/{row.control.value}"
                for row in table.engines
            )
            return f"Publish {table.epoch}{' urgent' if command.urgent else ''}: {rows}"
        case _:
            return _named(command)


def _engines(before: State, after: State, *, everything: bool) -> list[str]:
    return [
        _engine(engine)
        for name, engine in after.engines.items()
        if everything or engine is not before.engines.get(name)
    ]


def _engine(engine: EngineState) -> str:
    control = engine.facts.control
    parts = [
        f"{engine.spec.id}:",
        "open" if engine.gate.open else f"closed at {engine.closed_at or '-'}",
        "unknown" if control is None else control.value,
        f"(paused {engine.facts.paused}, released {engine.facts.released})",
        f"settled {engine.settled.value}",
        f"version {engine.version or '-'} {engine.trust.value}",
    ]
    if not engine.reachable:
        parts.append("unreachable")
    if engine.op is not None:
        parts.append(_named(engine.op))
    if engine.problem:
        parts.append(f"problem: {engine.problem}")
    return " ".join(parts)


def _named(value: msgspec.Struct, *, leave_out: tuple[str, ...] = ()) -> str:
    """A struct in one line; fields that are as by default are not told."""
    fields = []
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        if field.name in leave_out or content == field.default:
            continue
        text = str(content)
        fields.append(f"{field.name}={text if len(text) <= LONGEST else text[:LONGEST] + '…'}")
    return f"{type(value).__name__}({', '.join(fields)})"


command = ReplayCommand()
