"""The kinds of things that commands name, as in ``steersman get engines``."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any

import msgspec

from steersman.errors import SteersmanError

Item = dict[str, Any]
"""One thing of the status; an engine also carries ``pool``, the name of its own."""


class NotFound(SteersmanError):
    """There is no such thing in the fleet."""

    code = "not_found"
    remedy = "`steersman get all` lists what there is."


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind."""

    name: str
    """In the singular and in small letters, as in ``rolloutengine/qwen``."""
    kind: str
    """As in a manifest."""
    plural: str
    short: tuple[str, ...] = ()


ROLLOUT_ENGINE = Kind(
    name="rolloutengine", kind="RolloutEngine", plural="rolloutengines", short=("reng", "re")
)
WEIGHT_VERSION = Kind(
    name="weightversion", kind="WeightVersion", plural="weightversions", short=("wv",)
)
ENGINE = Kind(name="engine", kind="Engine", plural="engines")
PROXY = Kind(name="proxy", kind="Proxy", plural="proxies")

KINDS = (ROLLOUT_ENGINE, WEIGHT_VERSION, ENGINE, PROXY)
"""In the order in which ``all`` shows them."""

WORDS = {word: kind for kind in KINDS for word in (kind.name, kind.plural, *kind.short)}


def kind_of(word: str) -> Kind:
    """The kind that a word of the command line means; for argparse."""
    found = WORDS.get(word.lower())
    if found is None:
        near = difflib.get_close_matches(word.lower(), [*WORDS, "all"], n=1)
        hint = f", did you mean {near[0]}?" if near else f"; there are {', '.join(WORDS)}"
        raise argparse.ArgumentTypeError(f"{word!r} is not a kind of resource{hint}")
    return found


def items_of(status: Item, kind: Kind) -> list[Item]:
    """Everything of one kind."""
    if kind is ROLLOUT_ENGINE:
        return list(status["pools"])
    if kind is WEIGHT_VERSION:
        return [version | _use(status, version) for version in status["weight_versions"]]
    if kind is PROXY:
        return list(status["proxies"])
    return [
        engine | {"pool": pool["name"]} for pool in status["pools"] for engine in pool["engines"]
    ]


def _use(status: Item, version: Item) -> Item:
    """The pools that are to have a WeightVersion, and how many of the model's engines have it."""
    pools = [one for one in status["pools"] if version["model"] in one["models"]]
    asked = [one for one in status["pools"] if reference_of(one) == version["name"]]
    having = [
        engine
        for pool in pools
        for engine in pool["engines"]
        if engine["version"] == version["version"] and engine["trust"] == "verified"
    ]
    return {"wanted_by": [pool["name"] for pool in asked], "engines": len(having)}


def reference_of(pool: Item) -> str | None:
    """The name of the WeightVersion that a pool is to have."""
    reference: Item = pool["spec"].get("weightVersionRef") or {}
    return reference.get("name")


def wrong_of(status: Item) -> list[str]:
    """What is wrong with the manifests: errors, then what is wrong with them as they are in force."""
    return [*status["errors"], *status["warnings"]]


def name_of(kind: Kind, item: Item) -> str:
    """What it is called in the whole fleet."""
    if kind is PROXY:
        return str(item["uid"])
    if kind is ENGINE:
        return f"{item['pool']}/{item['name']}"
    return str(item["name"])


def names_of(kind: Kind, item: Item) -> set[str]:
    """Everything by which it may be called."""
    if kind is ENGINE:
        return {name_of(kind, item), item["name"], item["id"], item["url"]}
    return {name_of(kind, item)}


def find(kind: Kind, items: Sequence[Item], name: str) -> list[Item]:
    """What a name means; several if engines of two pools are called the same.

    :raises NotFound: if there is nothing; says what comes near.
    """
    found = [item for item in items if name in names_of(kind, item)]
    if not found:
        raise NotFound(not_found(kind, name, [name_of(kind, item) for item in items]))
    return found


def engine_in(pool: str, engine: str | None) -> str | None:
    """An engine of a RolloutEngine that is named, too: ``POOL/NAME`` and ``engine/POOL/NAME``, as
    `get` and the verbs print it, are the NAME.
    """
    if engine is None:
        return None
    word, slash, rest = engine.partition("/")
    if slash and WORDS.get(word.lower()) is ENGINE:
        engine = rest
    return engine.removeprefix(f"{pool}/")


def not_found(kind: Kind, name: str, names: Sequence[str]) -> str:
    """The sentence for it."""
    text = f'{kind.name} "{name}" not found'
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"{text}; did you mean {' or '.join(near)}?"
    if not names:
        return f"{text}; there are no {kind.plural}"
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{text}; there {'is' if len(names) == 1 else 'are'} {some}"


def pool_of(status: Item, name: str) -> Item:
    """The RolloutEngine of that name; ``re/NAME`` is taken, too.

    :raises NotFound: if there is none.
    """
    word, slash, rest = name.partition("/")
    if slash and WORDS.get(word.lower()) is ROLLOUT_ENGINE:
        name = rest
    return find(ROLLOUT_ENGINE, items_of(status, ROLLOUT_ENGINE), name)[0]
