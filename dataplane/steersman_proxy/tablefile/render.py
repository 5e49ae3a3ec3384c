"""Writing a first table file: commented YAML, ready to be edited."""

import json
import re
from collections.abc import Iterable, Sequence

import msgspec

from steersman.documents.urls import authority
from steersman.engine import Role
from steersman_proxy.tablefile.discovery import Finding

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
# Words that YAML reads as something else than text; `yes` and the like are for readers of 1.1.
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))

HEADER = """\
# The fleet of a Steersman proxy: which engines there are, and what state each is in.
# The proxy reads this file again whenever it changes; write a copy and rename it into place.
# Check it with `steersman check FILE`. All keys: docs/configuration/table.md
#
# Written from what the engines said of themselves. Gates are open and all engines are taken to be
# active; close a gate (gate: closed) before you pause, sleep or refit its engine.
"""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One engine that was asked: what it said, or why nothing is known of it."""

    url: str
    finding: Finding | None = None
    problem: str = ""


class DraftPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that the findings suggest."""

    name: str
    models: tuple[str, ...]
    engines: tuple[Asked, ...]


def pools_of(asked: Iterable[Asked], *, name: str | None = None) -> list[DraftPool]:
    """The engines grouped by the model that they serve.

    ``name`` is for the only pool; without it a pool is named after its model.
    """
    groups: dict[str, list[tuple[Asked, Finding]]] = {}
    for engine in asked:
        if engine.finding is not None:
            groups.setdefault(engine.finding.models[0], []).append((engine, engine.finding))
    pools: list[DraftPool] = []
    for model, members in groups.items():
        # Further names count only if every engine of the pool answers to them.
        common = [
            other
            for other in members[0][1].models
            if all(other in finding.models for _, finding in members)
        ]
        taken = {pool.name for pool in pools}
        pools.append(
            DraftPool(
                name=name or _pool_name(model, taken=taken),
                models=tuple(common),
                engines=tuple(engine for engine, _ in members),
            )
        )
    return pools


def render(pools: Sequence[DraftPool], *, failed: Sequence[Asked] = ()) -> str:
    """The text of the file. Engines of which nothing is known are in it as comments."""
    lines = [HEADER.rstrip("\n"), "", "pools:" if pools else "pools: []"]
    for place, pool in enumerate(pools):
        lines.append(f"  - name: {quoted(pool.name)}")
        if len(pool.models) == 1:
            lines.append(f"    model: {quoted(pool.models[0])}")
        else:
            lines.append(f"    models: [{', '.join(quoted(model) for model in pool.models)}]")
        if len(pools) > 1 and place == 0:
            lines.append("    # default: true   # requests that name no model go here")
        lines.append("    engines:")
        for engine in pool.engines:
            lines += _engine_lines(engine)
    if failed:
        lines += ["", "# Not in the table:"]
        lines += [f"#   {engine.url}: {one_line(engine.problem)}" for engine in failed]
    return "\n".join(lines) + "\n"


def _engine_lines(engine: Asked) -> list[str]:
    finding = engine.finding
    assert finding is not None
    lines = [
        f"      - id: {quoted(authority(engine.url))}",
        f"        url: {quoted(engine.url)}",
        f"        runtime: {finding.runtime}",
    ]
    if finding.role is not Role.PLAIN:
        lines.append(f"        role: {finding.role}")
    if finding.version is not None:
        lines.append(f"        weightVersion: {json.dumps(finding.version)}")
    if finding.note:
        lines.append(f"        # {one_line(finding.note)}")
    return lines


def quoted(text: str) -> str:
    """``text`` as a YAML scalar that is text for every reader."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    # YAML has no surrogate pairs, so no character but the quotes is escaped.
    return json.dumps(text, ensure_ascii=False)


def _pool_name(model: str, *, taken: set[str]) -> str:
    """A pool name from a model name, which may be a path or have any character."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-._")
    base = base[:100] or "pool"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def one_line(text: str) -> str:
    """What an engine said, fit for a comment and a terminal: no line breaks, no control codes."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:300]
