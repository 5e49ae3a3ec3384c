"""Following new weights to every engine, for ``refit``, ``publish`` and ``rollout``."""

import argparse

import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.client import FleetClient, Refitted
from steersman_operator.commands.fleet import (
    EXIT_INTERRUPTED,
    EXIT_TIMEOUT,
    add_directory,
    duration,
    warn,
)
from steersman_operator.commands.progress import Verdict
from steersman_operator.commands.rollout_view import RolloutView, view_of
from steersman_operator.commands.rollouts import Rolled, RolloutWish, rolled

EXTERNAL = "External"


def add_following(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a verb that follows what it has asked for."""
    add_directory(parser)
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="follow it until it is done (the default), or ask for it and leave",
    )
    add_timeout(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Declare how long a rollout is followed."""
    parser.add_argument(
        "--timeout",
        type=duration,
        default=0.0,
        metavar="DURATION",
        help="how long to follow it, such as 10m (default: as long as it takes)",
    )


def wish_of(pool: str, asked: Refitted) -> RolloutWish:
    """What to follow after the operator has taken up a wish for weights."""
    target = asked.target or {"version": None, "nonce": "", "source": ""}
    return RolloutWish(
        pool=pool,
        version=target["version"],
        nonce=target["nonce"],
        generation=asked.generation,
        transfer=target["source"] == EXTERNAL,
    )


def followed(client: FleetClient, wish: RolloutWish, args: argparse.Namespace) -> int:
    """Follow a wish that the operator has taken up; returns the exit code."""
    if not args.wait:
        return EXIT_OK
    return follow(client, wish, timeout=args.timeout or None, quiet=args.quiet)


def follow(
    client: FleetClient, wish: RolloutWish, *, timeout: float | None, quiet: bool = False
) -> int:
    """Show how far it has come until it is done, given up or another's; returns the exit code."""
    try:
        with view_of(quiet=quiet) as view:
            last, told = _followed(client, wish, timeout=timeout, view=view)
            if last.verdict is Verdict.DONE:
                if told:
                    view.tell(msgspec.structs.replace(last, sentence=""))
                view.say(last.sentence)
    except KeyboardInterrupt:
        warn(f"\nNo longer waiting. {_goes_on(wish)}")
        return EXIT_INTERRUPTED
    match last.verdict:
        case Verdict.DONE:
            return EXIT_OK
        case Verdict.WAITING:
            version = wish.version or "the weights that are asked for"
            warn(f"Error: not every engine of {wish.what} has {version} after {timeout:g} s")
            for engine, line in last.lines.items():
                warn(f"  {engine}: {line}")
            warn(_goes_on(wish))
            return EXIT_TIMEOUT
    warn(f"Error: {last.sentence}")
    for engine, line in last.lines.items():
        warn(f"  {engine}: {line}")
    if last.verdict is Verdict.FAILED:
        warn(
            f"It is not tried again by itself; `steersman refit {wish.pool} --again` does, and "
            f"`steersman rollout undo {wish.pool}` goes back."
        )
    return EXIT_FAILED


def _followed(
    client: FleetClient, wish: RolloutWish, *, timeout: float | None, view: RolloutView
) -> tuple[Rolled, bool]:
    """How far it has come in the end, and whether anything was told on the way."""
    last, told = Rolled(Verdict.WAITING), False
    for status in client.watch(timeout=timeout, on_lost=view.say):
        last = rolled(status, wish)
        if last.verdict is not Verdict.WAITING:
            break
        view.tell(last)
        told = told or bool(last.lines)
    return last, told


def _goes_on(wish: RolloutWish) -> str:
    return f"The rollout goes on; see `steersman rollout status {wish.pool}`."
