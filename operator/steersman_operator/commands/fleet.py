"""What the commands about a running fleet share: which fleet, durations, and how they end."""

import argparse
import contextlib
import os
import sys

from steersman.cli import EXIT_OK
from steersman.durations import EXAMPLES, parse_duration
from steersman_operator.client import FleetClient, fleet_directory
from steersman_operator.client.fleet import DIRECTORY_VARIABLE

EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Declare the option that says which fleet is meant."""
    parser.add_argument(
        "-f",
        "--dir",
        metavar="DIR",
        help=f"the directory of the fleet (default: ${DIRECTORY_VARIABLE}, else the current one)",
    )


def client_of(args: argparse.Namespace) -> FleetClient:
    """Who talks to the fleet that is meant."""
    return FleetClient(fleet_directory(args.dir))


def duration(text: str) -> float:
    """A duration of the command line, in seconds; for argparse."""
    seconds = 0.0 if text == "0" else parse_duration(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, such as {EXAMPLES}")
    return seconds


def say(text: str) -> None:
    """A line of the command's own output, seen at once also through a pipe."""
    print(text, flush=True)


def warn(text: str) -> None:
    """A line for the person, not for what reads the output."""
    print(text, file=sys.stderr, flush=True)


def end_of_reader() -> int:
    """The exit code once whoever reads the output has read enough, as ``head`` does."""
    # The interpreter writes what is left at its end, and would complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK
