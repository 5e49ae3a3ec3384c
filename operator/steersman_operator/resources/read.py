"""From the documents of a file to resources."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic import ValidationError

from steersman.documents.document import Document, Problem
from steersman.documents.key_files import read_key
from steersman.documents.model import Model, problems_of
from steersman.errors import DocumentError
from steersman_operator.engines.client import EngineKeys
from steersman_operator.resources.contradictions import contradictions
from steersman_operator.resources.envelope import (
    MADE_BY,
    SCHEMAS,
    RolloutEngineFile,
    WeightVersionFile,
    cleaned,
    only_in_a_cluster,
    wrong_kind,
)
from steersman_operator.resources.resource import Resource, RolloutEngine, WeightVersion


class ReadFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has. With problems there are no resources."""

    resources: tuple[Resource, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences that begin with file and line."""
    key_files: tuple[str, ...] = ()
    """Paths of the key files that it names: if one changes, the file must be read again."""


def read_resources(documents: Sequence[Document], *, base: Path) -> ReadFile:
    """The resources of one file, in its order. Paths in them begin at the directory ``base``."""
    found: list[Resource] = []
    problems: list[str] = []
    keys = _Keys(base)
    for position, document in enumerate(documents):
        try:
            found.append(_read(document, position=position, keys=keys))
        except DocumentError as error:
            problems += error.problems
    return ReadFile(
        resources=() if problems else tuple(found),
        problems=tuple(problems),
        key_files=tuple(dict.fromkeys(keys.paths)),
    )


def _read(document: Document, *, position: int, keys: "_Keys") -> Resource:
    problems = wrong_kind(document)
    if problems:
        raise document.error(problems)
    schema = SCHEMAS[document.data["kind"]]
    data = cleaned(document.data)
    problems += only_in_a_cluster(data)
    file: RolloutEngineFile | WeightVersionFile | None = None
    try:
        file = schema.model_validate(data)
    except ValidationError as error:
        told = {problem.path for problem in problems}
        # That an override of a pod names no engine is said already.
        told |= {path[:3] for path in told if path[:2] == ("spec", "overrides")}
        problems += [found for found in problems_of(error, schema) if found.path not in told]
    engine_keys = EngineKeys()
    if isinstance(file, RolloutEngineFile):
        problems += contradictions(file.spec, document)
        auth = file.spec.engine_auth
        engine_keys = EngineKeys(
            data=keys.read("dataKeyFile", auth.data_key_file, problems),
            admin=keys.read("adminKeyFile", auth.admin_key_file, problems),
        )
    if problems or file is None:
        raise document.error(problems)
    root = document.place(())
    line = root.line if root else 1
    if isinstance(file, WeightVersionFile):
        return WeightVersion(
            name=file.metadata.name,
            spec=file.spec,
            digest=digest_of(file.spec),
            file=document.path,
            line=line,
            document=position,
            made=file.metadata.labels.get(MADE_BY[0]) == MADE_BY[1],
        )
    reference = document.place(("spec", "weightVersionRef", "name"))
    data_key_file = file.spec.engine_auth.data_key_file
    return RolloutEngine(
        name=file.metadata.name,
        spec=file.spec,
        digest=digest_of(file.spec),
        file=document.path,
        line=line,
        document=position,
        keys=engine_keys,
        data_key_file=keys.path(data_key_file) if data_key_file is not None else None,
        reference_line=reference.line if reference else line,
    )


class _Keys:
    """Reads key files, and remembers which."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.paths: list[str] = []

    def path(self, file: str) -> str:
        """The path of a file that is named in a resource."""
        return str(self._base / file)

    def read(self, name: str, file: str | None, problems: list[Problem]) -> str | None:
        """The key in ``file``, if there is one; what is wrong with it goes to ``problems``."""
        if file is None:
            return None
        self.paths.append(self.path(file))
        try:
            return read_key(Path(self.paths[-1]))
        except ValueError as error:
            problems.append(Problem(("spec", "engineAuth", name), str(error)))
            return None


def digest_of(spec: Model) -> str:
    """A digest of what a spec says. Defaults do not count, so a new key does not change it."""
    content = spec.model_dump(by_alias=True, exclude_defaults=True)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
