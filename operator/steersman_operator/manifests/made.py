"""WeightVersions that commands make, each in a file of its own, and that they remove again."""

import hashlib
import json
import re
from collections.abc import Iterable

import msgspec

from steersman_operator.manifests.memory import References
from steersman_operator.resources import (
    API_VERSION,
    WEIGHT_VERSION,
    RolloutEngine,
    WeightVersion,
)
from steersman_operator.resources.envelope import MADE_BY

MAX_NAME = 63
"""Characters of a name in Kubernetes."""

_OTHERS = re.compile(r"[^a-z0-9]+")


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A WeightVersion that has to be made."""

    name: str
    model: str
    version: str
    path: str | None = None
    checksum: str | None = None
    ordinal: int | None = None

    @property
    def file(self) -> str:
        """The name of the file that it gets, which nothing else is in."""
        return file_of(self.name)

    @property
    def text(self) -> str:
        """The content of the file."""
        source = "external: {}" if self.path is None else f"disk: {{path: {_quoted(self.path)}}}"
        lines = [
            "# Made by `steersman refit`, and removed by it once these weights are no longer used.",
            f"apiVersion: {API_VERSION}",
            f"kind: {WEIGHT_VERSION}",
            "metadata:",
            f"  name: {_quoted(self.name)}",
            f"  labels: {{{MADE_BY[0]}: {MADE_BY[1]}}}",
            "spec:",
            f"  model: {_quoted(self.model)}",
            f"  version: {_quoted(self.version)}",
            f"  source: {{{source}}}",
        ]
        if self.ordinal is not None:
            lines.append(f"  ordinal: {self.ordinal}")
        if self.checksum is not None:
            lines.append(f"  checksum: {_quoted(self.checksum)}")
        return "\n".join([*lines, ""])


def file_of(name: str) -> str:
    """The name of the file of a WeightVersion that we have made."""
    return f"weights-{name}.yaml"


def free_name(text: str, taken: set[str]) -> str:
    """A name for a WeightVersion, made of ``text`` so that people recognise it."""
    plain = _OTHERS.sub("-", text.lower()).strip("-")
    if plain == text and len(plain) <= MAX_NAME and plain not in taken:
        return plain
    for number in range(len(taken) + 1):
        seed = f"{text}\n{number}" if number else text
        mark = hashlib.sha256(seed.encode()).hexdigest()[:8]
        name = f"{plain[: MAX_NAME - len(mark) - 1].rstrip('-')}-{mark}"
        if name not in taken:
            return name
    raise AssertionError("one of them is free")


def surplus(
    model: str,
    *,
    engines: Iterable[RolloutEngine],
    versions: Iterable[WeightVersion],
    references: Iterable[References],
) -> list[WeightVersion]:
    """The WeightVersions of a model that we have made, that nobody is to have or could go back to, and
    that are beyond the number that is kept.
    """
    engines = list(engines)
    limits = [one.spec.version_history_limit for one in engines if one.spec.model == model]
    if not limits:
        return []  # whoever has it may only be away for a moment
    remembered = {name for one in references for name in (one.now, *one.before)}
    wanted = {reference_of(one) for one in engines}
    made = [one for one in versions if one.made and one.spec.model == model]
    unused = [one for one in made if one.name not in wanted]
    forgotten = [one for one in unused if one.name not in remembered]
    forgotten.sort(key=lambda one: (one.created or 0.0, one.name), reverse=True)
    room = max(limits) - (len(unused) - len(forgotten))
    return forgotten[max(0, room) :]


def reference_of(resource: RolloutEngine) -> str | None:
    """The name of the WeightVersion that a pool asks for."""
    reference = resource.spec.weight_version_ref
    return None if reference is None else reference.name


def _quoted(text: str) -> str:
    """A text between quotes, as YAML reads it."""
    return json.dumps(text, ensure_ascii=False)
