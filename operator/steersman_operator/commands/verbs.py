"""``steersman pause``, ``resume``, ``sleep`` and ``wake``: ask for a state, and see it come."""

import argparse
from collections.abc import Callable

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.client import FleetClient
from steersman_operator.client.errors import OperatorRefused
from steersman_operator.commands.fleet import (
    EXIT_INTERRUPTED,
    EXIT_TIMEOUT,
    add_directory,
    client_of,
    duration,
    say,
    warn,
)
from steersman_operator.commands.kinds import (
    ENGINE,
    ROLLOUT_ENGINE,
    WORDS,
    NotFound,
    engine_in,
    find,
    pool_of,
)
from steersman_operator.commands.progress import (
    Progress,
    Verdict,
    Wish,
    named,
    news,
    progress_of,
    without_seconds,
)

NOT_FOUND = 404


class VerbCommand:
    """One verb: the state that it asks for, the word for having got there, and the verb that takes it
    back.
    """

    def __init__(
        self, verb: str, *, state: str, done: str, help_: str, undo: str | None = None
    ) -> None:
        self.help = help_
        self._verb = verb
        self._state = state
        self._done = done
        self._undo = undo

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_name(parser)
        self._parser = parser
        parser.add_argument("--engine", metavar="E", help="only this engine of it")
        add_directory(parser)
        parser.add_argument(
            "--timeout",
            type=duration,
            default=0.0,
            metavar="DURATION",
            help="how long to wait until it is so, such as 30s (default: as long as it takes)",
        )
        parser.add_argument("--no-wait", action="store_true", help="ask for it, and leave")
        parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")

    def run(self, args: argparse.Namespace) -> int:
        """Ask, and wait; 1 if it is refused or given up, 3 if it takes too long."""
        client = client_of(args)
        out: Callable[[str], None] = (lambda _: None) if args.quiet else say
        name = name_of_pool(self._parser, self._verb, args, engines=True)
        engine = engine_in(name, args.engine)
        try:
            edited = client.edit(name, verb=self._verb, engine=engine)
        except OperatorRefused as refused:
            return told_missing(refused, client, name, engine)
        wish = Wish(pool=name, engine=engine, state=self._state, generation=edited.generation)
        out(edited.message or f"{wish.what} is to be {self._state} now")
        if args.no_wait:
            return EXIT_OK
        try:
            return self._follow(client, wish, timeout=args.timeout or None, out=out)
        except KeyboardInterrupt:
            warn(f"\nNo longer waiting. {_goes_on(wish)}")
            return EXIT_INTERRUPTED

    def _follow(
        self,
        client: FleetClient,
        wish: Wish,
        *,
        timeout: float | None,
        out: Callable[[str], None],
    ) -> int:
        told = Told(out)
        progress = Progress(Verdict.WAITING, {})
        for status in client.watch(timeout=timeout, on_lost=out):
            wish = named(status, wish)
            progress = progress_of(status, wish)
            match progress.verdict:
                case Verdict.WAITING:
                    told.tell(progress)
                case Verdict.DONE:
                    for engine, line in news(status, wish).items():
                        out(f"{engine}: {line}")
                    none = "" if progress.lines else "; it has no engines"
                    out(f"{wish.what} {self._done}{none}")
                    return EXIT_OK
                case Verdict.FAILED:
                    warn(f"Error: {wish.what} is not {self._done}")
                    for engine, why in progress.lines.items():
                        warn(f"  {engine}: {why}")
                    if self._undo:
                        takes_back = f"`steersman {self._undo} {_target(wish)}` takes the wish back"
                        warn(f"It is not tried again by itself; {takes_back}.")
                    return EXIT_FAILED
                case Verdict.SUPERSEDED:
                    warn(f"Error: {progress.sentence}")
                    return EXIT_FAILED
        warn(f"Error: {wish.what} is not {self._done} after {timeout:g} s")
        for engine, line in progress.lines.items():
            warn(f"  {engine}: {line}" if engine else f"  {line}")
        warn(_goes_on(wish))
        return EXIT_TIMEOUT


class Told:
    """Prints what has changed since the last account, a line for each engine."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out = out
        self._lines: dict[str, str] = {}

    def tell(self, progress: Progress) -> None:
        """Print the lines that say something new."""
        for engine, line in progress.lines.items():
            heart = without_seconds(line)
            if self._lines.get(engine) != heart:
                self._lines[engine] = heart
                self._out(f"{engine}: {line}" if engine else line)


def bare_name(name: str) -> str:
    """A RolloutEngine's name; ``re/NAME`` is taken, too."""
    word, slash, rest = name.partition("/")
    return rest if slash and WORDS.get(word.lower()) is ROLLOUT_ENGINE else name


def add_name(parser: argparse.ArgumentParser) -> None:
    """Declare the RolloutEngine that a verb is about."""
    parser.add_argument("name", metavar="NAME", help="the RolloutEngine")
    # `pause re qwen`, as `get` and `describe` take it.
    parser.add_argument("more", nargs="*", help=argparse.SUPPRESS)


def name_of_pool(
    parser: argparse.ArgumentParser, verb: str, args: argparse.Namespace, *, engines: bool = False
) -> str:
    """The RolloutEngine that is meant; leaves if something else is. ``engines`` is whether the verb
    can also be about a single one.
    """
    words: list[str] = [word for part in (args.name, *args.more) for word in part.split("/")]
    kind = WORDS.get(words[0].lower())
    if len(words) != 1 and not (kind is ROLLOUT_ENGINE and len(words) == 2):
        if engines and kind is ENGINE and len(words) == 3:
            hint = f"for one engine write `{verb} {words[1]} --engine {words[2]}`"
        elif engines and kind is None and len(words) == 2 and not args.more:
            hint = f"for one engine write `{verb} {words[0]} --engine {words[1]}`"
        else:
            hint = f"name one RolloutEngine, as in `{verb} qwen`"
        parser.error(f"{' '.join((args.name, *args.more))!r}: {hint}")
    return words[-1]


def told_missing(
    refused: OperatorRefused, client: FleetClient, name: str, engine: str | None = None
) -> int:
    """Tell in the words of `get` what there is not, if that is why the operator has refused.

    :raises OperatorRefused: if it is not.
    """
    if refused.status != NOT_FOUND:
        raise refused
    status = client.status()
    try:
        pool = pool_of(status, name)
        if engine is not None:
            find(ENGINE, [one | {"pool": name} for one in pool["engines"]], engine)
    except NotFound as error:
        warn(f"Error: {error}")
        return EXIT_FAILED
    raise refused  # it is there by now


def _target(wish: Wish) -> str:
    return wish.pool if wish.engine is None else f"{wish.pool} --engine {wish.engine}"


def _goes_on(wish: Wish) -> str:
    return f"The operation goes on; see `steersman describe re {wish.pool}`."


pause = VerbCommand(
    "pause",
    state="Paused",
    done="paused",
    undo="resume",
    help_="pause a RolloutEngine, or one engine of it: no new requests, nothing generated",
)
resume = VerbCommand(
    "resume", state="Active", done="resumed", help_="let what is paused serve again"
)
sleep = VerbCommand(
    "sleep",
    state="Asleep",
    done="asleep",
    undo="wake",
    help_="put a RolloutEngine, or one engine of it, to sleep: its GPU memory is given back",
)
wake = VerbCommand("wake", state="Active", done="awake", help_="let what is asleep serve again")
