"""What must be unique in a table file.

Looks at the plain data rather than at validated models, so that a mistake in one engine does not
hide that two others share an id.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from steersman.documents.document import Document, KeyPath, Problem
from steersman.documents.urls import authority, engine_id, engine_url
from steersman_proxy.tablefile.schema import MAX_ENGINES

Claim = tuple[str, KeyPath]
"""A name, and the key that takes it."""


def collisions(document: Document) -> list[Problem]:
    """Everything that is taken twice, at its second place."""
    pools = list(_mappings(document.data.get("pools"), ("pools",)))
    engines = [
        engine
        for path, pool in pools
        for engine in _mappings(pool.get("engines"), (*path, "engines"))
    ]
    taken_by = _Claims(document)
    found = taken_by.twice("pool name", _texts(pools, "name"))
    found += taken_by.twice("model", _models(pools), also="; a model belongs to one pool")
    found += taken_by.twice(
        "default pool",
        [("true", (*path, "default")) for path, pool in pools if pool.get("default") is True],
    )
    found += taken_by.twice("URL", _urls(engines))
    found += taken_by.twice("engine id", _ids(engines))
    if len(engines) > MAX_ENGINES:
        found.append(Problem(("pools",), f"has {len(engines)} engines, more than {MAX_ENGINES}"))
    return found


class _Claims:
    def __init__(self, document: Document) -> None:
        self._document = document

    def twice(self, what: str, claims: Iterable[Claim], *, also: str = "") -> list[Problem]:
        """The claims on a name that was taken before, with the place that has it."""
        first: dict[str, KeyPath] = {}
        found = []
        for name, path in claims:
            holder = first.setdefault(name, path)
            if holder == path:
                continue
            place = self._document.place(holder)
            line = f" (line {place.line})" if place else ""
            if what == "default pool":
                found.append(Problem(path, f"another pool is the default already{line}; keep one"))
            else:
                found.append(Problem(path, f"the {what} {name!a} is taken already{line}{also}"))
        return found


def _mappings(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    if isinstance(value, list):
        for position, item in enumerate(value):
            if isinstance(item, dict):
                yield (*path, position), item


def _texts(entries: Iterable[tuple[KeyPath, dict[str, Any]]], key: str) -> Iterator[Claim]:
    for path, entry in entries:
        if isinstance(entry.get(key), str):
            yield entry[key], (*path, key)


def _models(pools: Iterable[tuple[KeyPath, dict[str, Any]]]) -> Iterator[Claim]:
    """Every model once for each pool; a pool that names one twice is told so by the schema."""
    for path, pool in pools:
        names: dict[str, KeyPath] = {}
        if isinstance(pool.get("model"), str):
            names[pool["model"]] = (*path, "model")
        listed = pool.get("models")
        for position, name in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(name, str):
                names.setdefault(name, (*path, "models", position))
        yield from names.items()


def _urls(engines: Iterable[tuple[KeyPath, dict[str, Any]]]) -> Iterator[Claim]:
    for path, engine in engines:
        url = _or_none(engine_url, engine.get("url"))
        if url is not None:
            yield url, (*path, "url")


def _ids(engines: Iterable[tuple[KeyPath, dict[str, Any]]]) -> Iterator[Claim]:
    urls: set[str] = set()
    for path, engine in engines:
        if engine.get("id") is not None:
            given = _or_none(engine_id, engine["id"])
            if given is not None:
                yield given, (*path, "id")
            continue
        url = _or_none(engine_url, engine.get("url"))
        # Two engines with one URL are told so once, not as two with one id.
        if url is not None and url not in urls:
            urls.add(url)
            yield authority(url), (*path, "url")


def _or_none(check: Callable[[Any], str], value: Any) -> str | None:
    try:
        return check(value)
    except ValueError:
        return None
