"""The command ``steersman``: one program whose subcommands come from the installed extras.

Subcommands are found through the entry-point group ``steersman.commands``. Each entry point names
the extra that it needs, so that a missing library ends in one line that says what to install
instead of a traceback.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from steersman import __version__
from steersman.errors import SteersmanError

GROUP = "steersman.commands"

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


class Command(Protocol):
    """One subcommand. An entry point of the group ``steersman.commands`` refers to an instance."""

    @property
    def help(self) -> str:
        """One line for the list of subcommands."""
        ...

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work; return the exit code. A :class:`SteersmanError` becomes one line and 1."""
        ...


def _load(entry: EntryPoint) -> Command:
    """Import a subcommand, turning a missing library into the name of the extra that brings it."""
    try:
        command: Command = entry.load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("steersman"):
            raise
        extra = ",".join(entry.extras) or "all"
        raise SystemExit(
            f"steersman {entry.name}: the library {error.name!r} is not installed; "
            f"install it with: pip install 'steersman[{extra}]'"
        ) from None
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code (0 done, 1 failed, 2 wrong usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    parser = argparse.ArgumentParser(
        prog="steersman",
        description="Version- and state-aware routing of RL rollout traffic to inference engines.",
    )
    parser.add_argument("--version", action="version", version=f"steersman {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only the wanted subcommand is imported: `steersman check` must not pay for, or fail on, the
    # libraries of `steersman demo`. Help on the whole program imports what it can.
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    chosen: Command | None = None
    for name, entry in sorted(entries.items()):
        if name == wanted:
            chosen = _load(entry)
            subparser = subparsers.add_parser(
                name, help=chosen.help, description=chosen.help, allow_abbrev=False
            )
            chosen.configure(subparser)
        elif wanted is None:
            subparsers.add_parser(name, help=_help_of(entry))
        else:
            subparsers.add_parser(name)
    args = parser.parse_args(arguments)
    assert chosen is not None, "argparse accepts only the names given to it"
    try:
        return chosen.run(args)
    except SteersmanError as error:
        print(f"steersman {args.command}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def _help_of(entry: EntryPoint) -> str:
    try:
        return _load(entry).help
    except SystemExit as missing:
        return str(missing).partition("; ")[2]


if __name__ == "__main__":
    raise SystemExit(main())
