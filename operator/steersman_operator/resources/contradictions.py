"""What cannot be meant in a RolloutEngine although each key by itself is right."""

from collections.abc import Iterable, Iterator

from steersman.documents.document import Document, KeyPath, Problem
from steersman.documents.problems import one_of
from steersman.documents.routing import pool_settings, routing_contradictions
from steersman.settings import PoolSettings
from steersman_operator.fleet.spec import OnTimeout
from steersman_operator.resources.rollout_engine import RolloutEngineSpec
from steersman_operator.resources.values import State

MAX_ENGINES = 4096
"""Rows of a table."""


def contradictions(spec: RolloutEngineSpec, document: Document) -> Iterator[Problem]:
    """All of them, each at the key that should be changed."""
    static: KeyPath = ("spec", "endpoints", "static")
    engines = spec.endpoints.static
    if len(engines) > MAX_ENGINES:
        yield Problem(static, f"has {len(engines)} engines, more than {MAX_ENGINES}")
    yield from _twice(
        "the address",
        ((engine.id, (*static, at, "url")) for at, engine in enumerate(engines)),
        document,
    )
    yield from _twice(
        "the name",
        ((engine.name, (*static, at, "name")) for at, engine in enumerate(engines) if engine.name),
        document,
    )
    yield from _overrides(spec, document)
    yield from _sleeping_under_requests(spec, document)
    for finding in routing_contradictions(pool_settings(spec.routing, base=PoolSettings())):
        path: KeyPath = ("spec", "routing", *finding.path)
        other: KeyPath = ("spec", "routing", *finding.other)
        at = path if document.is_written(path) else other
        yield Problem(path, finding.message, at)


def _overrides(spec: RolloutEngineSpec, document: Document) -> Iterator[Problem]:
    path: KeyPath = ("spec", "overrides")
    names = [engine.shown for engine in spec.endpoints.static]
    known = set(names)
    for at, override in enumerate(spec.overrides):
        if override.engine not in known:
            message = (
                f"{one_of(override.engine, names[:20])}; these are the engines of endpoints.static"
                if names
                else "names an engine, but endpoints.static has none"
            )
            yield Problem((*path, at, "engine"), message)
    yield from _twice(
        "the engine",
        ((override.engine, (*path, at, "engine")) for at, override in enumerate(spec.overrides)),
        document,
    )


def _sleeping_under_requests(spec: RolloutEngineSpec, document: Document) -> Iterator[Problem]:
    if spec.drain.on_timeout is not OnTimeout.PROCEED:
        return
    sleeping: list[tuple[str, KeyPath]] = []
    if spec.state is State.ASLEEP:
        sleeping.append(("state is Asleep", ("spec", "state")))
    sleeping += [
        (f"engine {override.engine} is to be Asleep", ("spec", "overrides", at, "state"))
        for at, override in enumerate(spec.overrides)
        if override.state is State.ASLEEP
    ]
    if sleeping:
        what, where = sleeping[0]
        place = document.place(where)
        line = f" (line {place.line})" if place else ""
        yield Problem(
            ("spec", "drain", "onTimeout"),
            f"is ProceedInFlight, but {what}{line}: an engine that gives up its memory can crash "
            "under requests; write Fail or Abort",
        )


def _twice(
    what: str, claims: Iterable[tuple[str, KeyPath]], document: Document
) -> Iterator[Problem]:
    first: dict[str, KeyPath] = {}
    for name, path in claims:
        holder = first.setdefault(name, path)
        if holder != path:
            place = document.place(holder)
            line = f" (line {place.line})" if place else ""
            yield Problem(path, f"{what} {name!a} is taken already{line}; keep one of them")
