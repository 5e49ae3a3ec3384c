"""``steersman rollout``: see, hold and take back weights that are on their way to the engines."""

import argparse

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.client import FleetClient
from steersman_operator.client.errors import OperatorRefused
from steersman_operator.client.fleet import Status
from steersman_operator.commands.fleet import (
    EXIT_TIMEOUT,
    add_directory,
    client_of,
    end_of_reader,
    say,
    warn,
)
from steersman_operator.commands.following import (
    add_following,
    add_timeout,
    follow,
    followed,
    wish_of,
)
from steersman_operator.commands.kinds import NotFound, pool_of, reference_of
from steersman_operator.commands.progress import Verdict
from steersman_operator.commands.rollouts import RolloutWish, engines_of, rolled, stands
from steersman_operator.commands.tables import lines_of
from steersman_operator.commands.verbs import add_name, name_of_pool, told_missing

STATUS, PAUSE, RESUME, UNDO = "status", "pause", "resume", "undo"

HELP = {
    STATUS: "show how far the weights have come, and follow them",
    PAUSE: "close no further engine for new weights; one that has begun is finished",
    RESUME: "go on with what is paused",
    UNDO: "go back to the weights of before",
}


class RolloutCommand:
    """Four verbs about the rollout of weights."""

    help = "follow, pause, resume or undo the rollout of weights (`steersman rollout status NAME`)"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verbs and their arguments."""
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        self._parsers = {
            verb: verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
            for verb, text in HELP.items()
        }
        for inner in self._parsers.values():
            add_name(inner)
        status, undo = self._parsers[STATUS], self._parsers[UNDO]
        add_directory(status)
        status.add_argument(
            "-w",
            "--watch",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="follow it until it is done (the default), or show how it is now",
        )
        add_timeout(status)
        for verb in (PAUSE, RESUME):
            add_directory(self._parsers[verb])
        undo.add_argument(
            "--to", metavar="V", help="the version to go back to (default: the one before)"
        )
        add_following(undo)

    def run(self, args: argparse.Namespace) -> int:
        """Do it; 1 if it is refused or given up, 3 if it takes too long."""
        client = client_of(args)
        name = name_of_pool(self._parsers[args.verb], f"rollout {args.verb}", args)
        try:
            match args.verb:
                case "status":
                    return _status(client, name, args)
                case "undo":
                    return _undo(client, name, args)
                case verb:
                    say(client.rollout(name, verb=verb).message)
                    return EXIT_OK
        except OperatorRefused as refused:
            return told_missing(refused, client, name)
        except NotFound as error:
            warn(f"Error: {error}")
            return EXIT_FAILED
        except BrokenPipeError:
            return end_of_reader()


def _status(client: FleetClient, name: str, args: argparse.Namespace) -> int:
    status = client.status()
    pool_of(status, name)
    wish = RolloutWish(pool=name)
    if args.watch:
        return follow(client, wish, timeout=args.timeout or None)
    return _shown(status, wish)


def _shown(status: Status, wish: RolloutWish) -> int:
    """Print how it is now; 3 if something is still to come."""
    progress = rolled(status, wish)
    engines = engines_of(pool_of(status, wish.pool))
    if engines:
        rows = [["ENGINE", "VERSION", "TRUST", "PHASE", "WAITING FOR"]]
        rows += [
            [one["name"], one["version"] or "-", one["trust"], one["phase"], stands(one) or "-"]
            for one in engines
        ]
        for line in lines_of(rows):
            say(line)
    say(progress.sentence)
    match progress.verdict:
        case Verdict.DONE:
            return EXIT_OK
        case Verdict.WAITING:
            return EXIT_TIMEOUT
    return EXIT_FAILED


def _undo(client: FleetClient, name: str, args: argparse.Namespace) -> int:
    # An operator that is asked twice must not go back twice.
    since = reference_of(pool_of(client.status(), name))
    asked = client.rollout(name, verb=UNDO, to=args.to, since=since)
    if not args.quiet:
        say(asked.message)
    return followed(client, wish_of(name, asked), args)


command = RolloutCommand()
