"""How far a wish has come: shared by the verbs and by ``steersman wait``."""

import re
from enum import Enum
from typing import NamedTuple

import msgspec

from steersman_operator.commands.kinds import ENGINE, ROLLOUT_ENGINE, Item, NotFound, find

FEW = 16
"""Engines that are told of one by one; of more the numbers are told."""

WORDS = {"AwaitingTrainer": "waiting for the trainer"}
"""Phases that are more than one word; of the others the word itself is shown."""

AWAKE = "awake, but "
"""Begins the line of an engine that waits for weights."""


_SECONDS = re.compile(r"\b\d+ s\b")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a RolloutEngine, or one engine of it, is to be in."""

    pool: str
    state: str
    """As in a manifest: ``Active``, ``Paused`` or ``Asleep``."""
    engine: str | None = None
    generation: int = 0
    """An account of the fleet with a smaller one is older than the wish."""

    @property
    def what(self) -> str:
        """Who it is about."""
        if self.engine is None:
            return f"{ROLLOUT_ENGINE.name}/{self.pool}"
        return f"{ENGINE.name}/{self.pool}/{self.engine}"


class Verdict(Enum):
    """Where a wish stands."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    """Some engine is not there and nothing more is tried."""
    SUPERSEDED = "superseded"
    """Somebody wants something else by now."""


class Progress(NamedTuple):
    """How far it has come; ``lines`` are for people, by the engine that they are about."""

    verdict: Verdict
    lines: dict[str, str]
    sentence: str = ""


def progress_of(status: Item, wish: Wish) -> Progress:
    """Judge one account of the fleet."""
    pool = next((one for one in status["pools"] if one["name"] == wish.pool), None)
    if pool is None or pool["generation"] < wish.generation:
        if pool is None and status["operator"]["published"]:
            return _superseded(f"{ROLLOUT_ENGINE.name}/{wish.pool} is gone")
        return Progress(Verdict.WAITING, {"": reading(wish.pool)})
    try:
        engines = concerned(pool, wish)
    except NotFound as error:
        return _superseded(str(error))
    wanted = pool["state"] if wish.engine is None else engines[0]["desired"].capitalize()
    if wanted != wish.state:
        return _superseded(
            f"{wish.what} is not to be {wish.state} any more: somebody has asked for {wanted}"
        )
    failed = {name_in(pool, one): _why(pool, one) for one in engines if _failed(pool, one)}
    moving = [one for one in engines if not _done(one) and not _failed(pool, one)]
    if moving:
        return Progress(Verdict.WAITING, _lines(pool, engines, wish))
    if failed:
        return Progress(Verdict.FAILED, failed)
    return Progress(Verdict.DONE, _lines(pool, engines, wish))


def without_seconds(line: str) -> str:
    """A line without what changes in it by itself."""
    return _SECONDS.sub("", line)


def reading(pool: str) -> str:
    """The line while the account of the fleet is older than the wish."""
    return f"{pool}: the operator is reading it"


def concerned(pool: Item, wish: Wish) -> list[Item]:
    """The engines that the wish is about: the one that is named, or all without a state of their own.

    :raises NotFound: if the named one is not there.
    """
    engines = [one | {"pool": pool["name"]} for one in pool["engines"] if not one["leaving"]]
    if wish.engine is not None:
        return find(ENGINE, engines, wish.engine)
    return [one for one in engines if one["desired"].capitalize() == pool["state"]]


def name_in(pool: Item, engine: Item) -> str:
    """What an engine is called in a line."""
    return f"{pool['name']}/{engine['name']}"


def line_about(engine: Item) -> str:
    """Where one engine stands, in one line."""
    phase, problem, waiting = engine["phase"], engine["problem"], engine["waiting"]
    trouble = problem if problem != waiting else ""
    match phase:
        case "Settled":
            return ", but ".join(filter(None, (engine["control"], engine["withheld"])))
        case "Unreachable" | "External":
            return str(problem)
        case "Unknown":
            return "not seen yet"
        case "AwaitingWeights":
            return f"{AWAKE}{problem}"
        case "GivenUp":
            return f"given up: {problem}" if problem else "given up"
    word = phase.lower()
    if phase in WORDS:
        word = "" if waiting else WORDS[phase]
    if engine["becoming"] not in (None, engine["desired"]):
        word = f"going back to {engine['becoming']}, {word}"
    return ", ".join(part for part in (word, trouble, waiting) if part)


def has_news(engine: Item) -> bool:
    """Whether there is more to say of an engine than its state."""
    return bool(engine["phase"] != "Settled" or engine["withheld"])


def named(status: Item, wish: Wish) -> Wish:
    """The wish with the engine's own name, if it was given by its address."""
    if wish.engine is None:
        return wish
    for pool in status["pools"]:
        if pool["name"] == wish.pool:
            for one in pool["engines"]:
                if wish.engine != one["name"] and wish.engine in (one["id"], one["url"]):
                    return msgspec.structs.replace(wish, engine=one["name"])
    return wish


def news(status: Item, wish: Wish) -> dict[str, str]:
    """What is still to be said of engines that have got where they were to be, by engine."""
    pool = next(one for one in status["pools"] if one["name"] == wish.pool)
    engines = [one for one in concerned(pool, wish) if has_news(one)]
    if len(engines) <= FEW:
        return _lines(pool, engines, wish)
    first = engines[0]
    text = f"{name_in(pool, first)} and {len(engines) - 1} more: {line_about(first)}"
    return {wish.what: text}


def _superseded(sentence: str) -> Progress:
    return Progress(Verdict.SUPERSEDED, {}, sentence)


def _done(engine: Item) -> bool:
    if engine["phase"] == "AwaitingWeights":
        return True  # nothing more is done by the operator, and it says what is to be done
    opened = bool(engine["desired"] != "active" or engine["gate"] == "open")
    there = bool(engine["phase"] == "Settled" and engine["control"] == engine["desired"])
    return there and opened


def _failed(pool: Item, engine: Item) -> bool:
    """Whether nobody will bring it there any more."""
    match engine["phase"]:
        case "Settled":
            return not _done(engine) and str(engine["trust"]) == "uncertain"
        case "External":
            return str(pool["drift"]) != "Enforce"
        case phase:
            return str(phase) == "GivenUp"


def _why(pool: Item, engine: Item) -> str:
    if engine["phase"] == "External":
        return f"{engine['problem']}; pause and resume it to take it back"
    if engine["phase"] == "Settled":
        return "its weights are uncertain, it stays closed"
    return line_about(engine)


def _lines(pool: Item, engines: list[Item], wish: Wish) -> dict[str, str]:
    if len(engines) <= FEW:
        return {name_in(pool, one): line_about(one) for one in engines}
    counts: dict[str, int] = {}
    for one in engines:
        phase = one["phase"]
        word = one["control"] if phase == "Settled" else WORDS.get(phase, phase.lower())
        counts[word] = counts.get(word, 0) + 1
    parts = [f"{count} {word}" for word, count in sorted(counts.items())]
    return {wish.what: f"{', '.join(parts)} of {len(engines)}"}
