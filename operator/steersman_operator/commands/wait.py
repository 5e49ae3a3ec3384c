"""``steersman wait``: until a condition, a state or a version is there."""

import argparse
import difflib

import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK
from steersman_operator.api.conditions import ConditionType
from steersman_operator.client import FleetClient
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
    Item,
    NotFound,
    engine_in,
    find,
    pool_of,
)
from steersman_operator.commands.progress import AWAKE, Verdict, Wish, concerned, progress_of
from steersman_operator.commands.verbs import bare_name

STATES = ("Active", "Paused", "Asleep")
FORMS = "condition=Ready, condition=Degraded=False, state=Paused or version=7"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is waited for."""

    kind: str
    """``condition``, ``state`` or ``version``."""
    value: str
    status: str = "True"
    """Of a condition."""


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is there; ``why`` says what is missing."""

    met: bool
    hopeless: bool = False
    why: str = ""


def target(text: str) -> Target:
    """What ``--for`` means; for argparse."""
    kind, _, rest = text.partition("=")
    value, _, status = rest.partition("=")
    match kind:
        case "condition" if value:
            return Target(
                kind=kind,
                value=_one_of(value, [one.value for one in ConditionType], "condition"),
                status=_one_of(status or "True", ["True", "False"], "status of a condition"),
            )
        case "state" if value and not status:
            return Target(kind=kind, value=_one_of(value, STATES, "state"))
        case "version" if rest:
            return Target(kind=kind, value=rest)
    raise argparse.ArgumentTypeError(f"{text!r} cannot be waited for; it can be {FORMS}")


def _one_of(text: str, words: "list[str] | tuple[str, ...]", what: str) -> str:
    for word in words:
        if word.lower() == text.lower():
            return word
    near = difflib.get_close_matches(text, words, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(words)}"
    raise argparse.ArgumentTypeError(f"{text!r} is not a {what}; {hint}")


class WaitCommand:
    """Waits."""

    help = "wait until a RolloutEngine has a condition, a state or a version"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("name", metavar="NAME", help="the RolloutEngine")
        parser.add_argument(
            "--for", dest="target", type=target, required=True, metavar="WHAT", help=FORMS
        )
        parser.add_argument("--engine", metavar="E", help="only this engine of it")
        add_directory(parser)
        parser.add_argument(
            "--timeout",
            type=duration,
            default=30.0,
            metavar="DURATION",
            help="how long at most; 0 is as long as it takes (default: 30s)",
        )
        self._parser = parser

    def run(self, args: argparse.Namespace) -> int:
        """Wait; 1 if it cannot come any more, 3 if it takes too long."""
        if args.engine is not None and args.target.kind == "condition":
            self._parser.error("a condition is of a whole RolloutEngine; leave --engine out")
        try:
            return _wait(client_of(args), args)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _wait(client: FleetClient, args: argparse.Namespace) -> int:
    wanted: Target = args.target
    name = bare_name(args.name)
    engine = engine_in(name, args.engine)
    what = _what(name, engine)
    met = Met(met=False, why="the operator does not answer")
    lost = ""

    def gone(text: str) -> None:
        nonlocal lost
        lost = text

    errors: list[str] = []
    # What has just been saved is what is waited for.
    for status in client.watch(timeout=args.timeout or None, on_lost=gone, read=True):
        lost = ""
        before, errors = errors, _manifest_errors(status, name)
        for error in errors:
            if error not in before:
                warn(f"Warning: {error}")
        met = _look(status, wanted, pool=name, engine=engine)
        if met.met:
            say(f"{what} {_words(wanted)}")
            return EXIT_OK
        if met.hopeless:
            warn(f"Error: {what} does not come to {_words(wanted, noun=True)}: {met.why}")
            return EXIT_FAILED
    warn(
        f"Error: timed out after {args.timeout:g} s waiting for {_words(wanted, noun=True)} of {what}"
    )
    if lost or met.why:
        warn(f"  {lost or met.why}")
    for error in errors:
        warn(f"  {error}")
    return EXIT_TIMEOUT


def _manifest_errors(status: Item, pool: str) -> list[str]:
    """What keeps the newest version of the pool's file out; of all files if there is no such pool."""
    for found in status["pools"]:
        if found["name"] == pool:
            return list(found["manifest_errors"])
    return list(status["errors"])


def _what(pool: str, engine: str | None) -> str:
    return Wish(pool=pool, engine=engine, state="").what


def _words(wanted: Target, *, noun: bool = False) -> str:
    match wanted.kind:
        case "condition":
            text = f"{wanted.value}={wanted.status}"
            return f"condition {text}" if noun else f"condition met: {text}"
        case "state":
            return f"state {wanted.value}" if noun else f"is {wanted.value}"
        case _:
            return f"version {wanted.value}" if noun else f"has version {wanted.value}"


def _look(status: Item, wanted: Target, *, pool: str, engine: str | None) -> Met:
    """Judge one account of the fleet.

    :raises NotFound: if there is no such thing, and the operator knows everything by now.
    """
    try:
        found = pool_of(status, pool)
        members = [one | {"pool": pool} for one in found["engines"]]
        engines = find(ENGINE, members, engine) if engine else members
    except NotFound as error:
        if status["operator"]["published"]:
            raise
        return Met(met=False, why=f"the operator has just started; {error}")
    match wanted.kind:
        case "condition":
            return _condition(found, wanted)
        case "state":
            return _state(status, found, wanted, engine)
        case _:
            return _version(engines, wanted)


def _condition(pool: Item, wanted: Target) -> Met:
    for one in pool["conditions"]:
        if one["type"] == wanted.value:
            why = f"it is {one['status']}"
            if one["message"]:
                why += f": {one['message']}"
            return Met(met=one["status"] == wanted.status, why=why)
    return Met(met=False, why="the operator does not tell it")


def _state(status: Item, pool: Item, wanted: Target, engine: str | None) -> Met:
    wish = Wish(pool=pool["name"], engine=engine, state=wanted.value)
    progress = progress_of(status, wish)
    if progress.verdict is Verdict.SUPERSEDED:
        # Nobody has asked for it yet; somebody may.
        goal = pool["state"] if engine is None else concerned(pool, wish)[0]["desired"].capitalize()
        return Met(met=False, why=f"it is to be {goal}")
    why = "; ".join(f"{name}: {line}" for name, line in progress.lines.items())
    awaiting = any(line.startswith(AWAKE) for line in progress.lines.values())
    return Met(
        met=progress.verdict is Verdict.DONE and not awaiting,
        hopeless=progress.verdict is Verdict.FAILED,
        why=why,
    )


def _version(engines: list[Item], wanted: Target) -> Met:
    missing = [
        one for one in engines if one["version"] != wanted.value or one["trust"] != "verified"
    ]
    if not engines:
        return Met(met=False, why="it has no engines")
    shown = "; ".join(
        f"{one['pool']}/{one['name']}: {one['version'] or 'no version'}, {one['trust']}"
        for one in missing[:5]
    )
    more = f"; and {len(missing) - 5} more" if len(missing) > 5 else ""
    return Met(met=not missing, why=shown + more)


command = WaitCommand()
