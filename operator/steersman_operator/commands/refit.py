"""``steersman refit`` and ``publish``: ask for weights, and say that they are transferred."""

import argparse
from datetime import UTC, datetime

from steersman.errors import InvalidVersion
from steersman.versions import parse_version
from steersman_operator.client.errors import OperatorRefused
from steersman_operator.commands.fleet import client_of, say
from steersman_operator.commands.following import add_following, followed, wish_of
from steersman_operator.commands.rollouts import RolloutWish
from steersman_operator.commands.verbs import add_name, name_of_pool, told_missing


def version(text: str) -> str:
    """A weight version; for argparse."""
    try:
        return parse_version(text)
    except InvalidVersion as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class RefitCommand:
    """Asks for weights, and follows them to every engine."""

    help = "have the engines of a RolloutEngine load other weights, or the same once more"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_name(parser)
        self._parser = parser
        parser.add_argument(
            "--version",
            type=version,
            metavar="V",
            help="the version of the weights (default: the present one, loaded once more)",
        )
        parser.add_argument(
            "--path",
            metavar="P",
            help="where the engines read them; without it they are those that V means already, else "
            "those that a trainer transfers",
        )
        parser.add_argument(
            "--checksum", metavar="C", help="what an engine that computes one must come to"
        )
        parser.add_argument(
            "--again", action="store_true", help="load them also where they are loaded"
        )
        add_following(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Ask, and follow; 1 if it is refused or given up, 3 if it takes too long."""
        if args.version is None and (args.path or args.checksum):
            self._parser.error("--path and --checksum are of a --version; name it, too")
        client = client_of(args)
        name = name_of_pool(self._parser, "refit", args)
        # Made here, so that an operator that is asked twice loads it once.
        nonce = _nonce() if args.again or args.version is None else None
        try:
            asked = client.refit(
                name, version=args.version, path=args.path, checksum=args.checksum, nonce=nonce
            )
        except OperatorRefused as refused:
            return told_missing(refused, client, name)
        if not args.quiet:
            say(asked.message)
        return followed(client, wish_of(name, asked), args)


class PublishCommand:
    """Says that a trainer has transferred weights, and follows the engines until they serve."""

    help = "say that a trainer has transferred the weights that a RolloutEngine waits for"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_name(parser)
        self._parser = parser
        parser.add_argument(
            "--version", type=version, metavar="V", required=True, help="the version of the weights"
        )
        add_following(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Say it, and follow; 1 if nobody waits for it or it is given up, 3 if it takes too long."""
        client = client_of(args)
        name = name_of_pool(self._parser, "publish", args)
        try:
            client.publish(name, args.version)
        except OperatorRefused as refused:
            return told_missing(refused, client, name)
        if not args.quiet:
            say(f"{args.version} of {name} is published")
        return followed(client, RolloutWish(pool=name, version=args.version), args)


def _nonce() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


refit = RefitCommand()
publish = PublishCommand()
