"""How far new weights have come: shared by ``refit``, ``publish`` and ``rollout``."""

import msgspec

from steersman_operator.commands.kinds import ROLLOUT_ENGINE, Item
from steersman_operator.commands.progress import FEW, Verdict, line_about, name_in, reading

AWAITING_TRAINER = "AwaitingTrainer"

FOLLOWED = frozenset({"GivenUp", "External"})
"""Phases in which nothing happens by itself any more."""


class RolloutWish(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a RolloutEngine is to have."""

    pool: str
    version: str | None = None
    """``None`` is whatever it is to have."""
    nonce: str | None = None
    """Of the wish to load it once more; ``None`` is any."""
    generation: int = 0
    """An account of the fleet with a smaller one is older than the wish."""
    transfer: bool = False
    """Whether it is enough that the engines wait for the trainer."""

    @property
    def what(self) -> str:
        """Who it is about."""
        return f"{ROLLOUT_ENGINE.name}/{self.pool}"


class Rolled(msgspec.Struct, frozen=True):
    """How far it has come."""

    verdict: Verdict
    sentence: str = ""
    """All of it in one line, for people."""
    lines: dict[str, str] = {}
    """By the engine that they are about; of a large pool by the pool."""
    done: int = 0
    total: int = 0


def rolled(status: Item, wish: RolloutWish) -> Rolled:
    """Judge one account of the fleet."""
    pool = next((one for one in status["pools"] if one["name"] == wish.pool), None)
    if pool is None or pool["generation"] < wish.generation:
        if pool is None and status["operator"]["published"]:
            return Rolled(Verdict.SUPERSEDED, f"{wish.what} is gone")
        return Rolled(Verdict.WAITING, reading(wish.pool))
    target = pool["target"]
    other = _other(target, wish)
    if other:
        return Rolled(Verdict.SUPERSEDED, other)
    if target is None:
        return Rolled(Verdict.DONE, f"{wish.what} names no weights; nothing is to be rolled out")
    return _judged(pool, target, wish)


def engines_of(pool: Item) -> list[Item]:
    """The engines that a rollout is about."""
    return [one for one in pool["engines"] if not one["leaving"]]


def is_synced(engine: Item) -> bool:
    """Whether an engine has the weights that its pool is to have."""
    return bool(engine["synced"])


def stands(engine: Item) -> str:
    """Where one engine stands, in a few words; empty if there is nothing more to do."""
    if is_synced(engine) and _has_opened(engine):
        return ""
    if not is_synced(engine) and _is_deferred(engine):
        return "asleep, gets them when it is woken"
    if not is_synced(engine) and engine["phase"] == "Settled":
        return "waiting for its turn" if engine["trust"] != "uncertain" else "given up"
    return line_about(engine)


def _other(target: Item | None, wish: RolloutWish) -> str:
    """What somebody else has asked for meanwhile."""
    if wish.version is None or target is None:
        gone = wish.version is not None
        return f"{wish.what} is not to have {wish.version} any more" if gone else ""
    if target["version"] != wish.version:
        asked = f"somebody has asked for {target['version']}"
        return f"{wish.what} is not to have {wish.version} any more: {asked}"
    if wish.nonce not in (None, target["nonce"]):
        return f"somebody has asked {wish.what} to load {wish.version} once more"
    return ""


def _judged(pool: Item, target: Item, wish: RolloutWish) -> Rolled:
    version, engines = target["version"], engines_of(pool)
    synced = [one for one in engines if is_synced(one)]
    deferred = [one for one in engines if not is_synced(one) and _is_deferred(one)]
    ready = [one for one in engines if one["phase"] == AWAITING_TRAINER]
    transfer = wish.transfer and len(synced) < len(engines)
    there = [*synced, *ready] if transfer else [one for one in synced if _has_opened(one)]
    missing = [one for one in engines if one not in there and one not in deferred]
    failed = [one for one in missing if _failed(pool, one)]
    lines = _lines(pool, engines)
    asleep = f"; {len(deferred)} asleep, and load it when they are woken" if deferred else ""
    counts = f"{len(synced)} of {len(engines)} engines have {version}"
    if len(missing) > len(failed):
        if transfer:
            counts = f"{len(there)} of {len(engines)} engines wait for the transfer of {version}"
        paused = ", and it is paused" if pool["rollout_paused"] else ""
        sentence = f"Waiting for rollout to finish: {counts}{paused}..."
        return Rolled(Verdict.WAITING, sentence, lines, len(there), len(engines))
    if failed:
        lines = {name_in(pool, one): _why(pool, one) for one in failed}
        sentence = f"{wish.what} is not rolled out: {counts}"
        return Rolled(Verdict.FAILED, sentence, lines, len(there), len(engines))
    if transfer and ready:
        sentence = (
            f"{wish.what} is ready for {version}: transfer the weights, then "
            f"`steersman publish {wish.pool} --version {version}`"
        )
    elif not engines:
        sentence = f"{wish.what} successfully rolled out; it has no engines"
    else:
        sentence = f"{wish.what} successfully rolled out: {counts}{asleep}"
    return Rolled(Verdict.DONE, sentence, lines, len(there), len(engines))


def _is_deferred(engine: Item) -> bool:
    """Whether an engine gets its weights only once somebody wakes it."""
    return bool(engine["desired"] == "asleep" and engine["phase"] == "Settled")


def _has_opened(engine: Item) -> bool:
    if engine["desired"] == "active":
        return bool(engine["gate"] == "open")
    return bool(engine["phase"] == "Settled")


def _failed(pool: Item, engine: Item) -> bool:
    """Whether nobody will bring it there any more."""
    match engine["phase"]:
        case "GivenUp":
            return True
        case "External":
            return str(pool["drift"]) != "Enforce"
        case phase:
            return bool(phase == "Settled" and engine["trust"] == "uncertain")


def _why(pool: Item, engine: Item) -> str:
    if engine["phase"] == "External":
        return f"{engine['problem']}; pause and resume it to take it back"
    if engine["phase"] == "Settled":
        return "its weights are uncertain, it stays closed"
    return line_about(engine)


def _lines(pool: Item, engines: list[Item]) -> dict[str, str]:
    if len(engines) <= FEW:
        return {
            name_in(pool, one): ", ".join(
                part for part in (one["version"] or "no version", one["trust"], stands(one)) if part
            )
            for one in engines
        }
    counts: dict[str, int] = {}
    for one in engines:
        word = _word(one)
        counts[word] = counts.get(word, 0) + 1
    parts = [f"{count} {word}" for word, count in sorted(counts.items())]
    return {f"{ROLLOUT_ENGINE.name}/{pool['name']}": f"{', '.join(parts)} of {len(engines)}"}


def _word(engine: Item) -> str:
    if not stands(engine):
        return "done"
    if not is_synced(engine) and engine["phase"] in ("Settled", "Pending"):
        return "asleep" if _is_deferred(engine) else "waiting"
    return str(engine["phase"]).lower()
