"""All that the files of a directory say, put together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from steersman_operator.manifests.memory import Definition, First, ManifestMemory, References
from steersman_operator.resources import Resource, RolloutEngine, WeightVersion, as_it_was
from steersman_operator.resources.written import written


class Ledger(Protocol):
    """What is remembered of resources, over restarts too. A resource is ``KIND/NAME``."""

    def generation(self, resource: str, digest: str) -> int:
        """The generation of a resource; goes up when the digest of its spec is another one."""
        ...

    def created(self, resource: str) -> float:
        """When the resource was first seen, in seconds since 1970."""
        ...


class FleetLedger(Ledger, Protocol):
    """Also remembers who has what only one resource can have, such as a model or an engine."""

    def holders(self) -> Mapping[str, str]:
        """Names of resources by claim, as they were kept last."""
        ...

    def hold(self, claims: Mapping[str, str]) -> None:
        """Keep all of them, instead of those of before; blocks until that is on disk."""
        ...


class Manifests(msgspec.Struct, frozen=True, kw_only=True):
    """The resources in force, and what is wrong with the files."""

    engines: tuple[RolloutEngine, ...] = ()
    """By name."""
    versions: tuple[WeightVersion, ...] = ()
    """By name."""
    problems: tuple[str, ...] = ()
    """Sentences that begin with ``FILE:LINE``, in the order of files and lines."""
    by_file: dict[str, tuple[str, ...]] = {}

    def problems_of(self, file: str) -> tuple[str, ...]:
        """What is wrong with one file."""
        return self.by_file.get(file, ())


class FileContent(msgspec.Struct, frozen=True):
    """What one file has."""

    name: str
    resources: tuple[Resource, ...]
    """Those in force."""
    problems: tuple[str, ...]


class Merger:
    """Puts files together. Which of two definitions was there before, and what a WeightVersion was
    when it was read first, it takes from the memory, and keeps there.
    """

    def __init__(self, ledger: Ledger, memory: ManifestMemory) -> None:
        self._ledger = ledger
        self._memory = memory

    def merge(self, files: Iterable[FileContent], *, of_directory: Sequence[str]) -> Manifests:
        """The manifests of all ``files``, given in the order of their names.

        Blocks until the ledger has what is new.
        """
        files = list(files)
        claims: dict[str, list[Resource]] = {}
        for file in files:
            for resource in file.resources:
                claims.setdefault(_key(resource), []).append(resource)
        holders = {key: self._holder(key, found) for key, found in claims.items()}
        in_force, changed = self._unchanged(holders)
        by_file: dict[str, tuple[str, ...]] = {}
        for file in files:
            problems = list(file.problems)
            for resource in file.resources:
                holder = holders[_key(resource)]
                if resource is not holder:
                    problems.append(
                        f"{resource.place}: {resource.kind} {resource.name} is defined in "
                        f"{holder.place} already, and that one counts; keep one of them"
                    )
                elif _key(resource) in changed:
                    problems.append(changed[_key(resource)])
            if problems:
                by_file[file.name] = tuple(problems)
        in_force = {key: self._dated(in_force[key]) for key in sorted(in_force)}
        kept = in_force.values()
        hidden = any(one.problems and not one.resources for one in files)
        # A directory without anything may be one whose disk is not there.
        self._remember(holders, in_force, hidden=hidden or bool(of_directory) or not in_force)
        return Manifests(
            engines=tuple(found for found in kept if isinstance(found, RolloutEngine)),
            versions=tuple(found for found in kept if isinstance(found, WeightVersion)),
            problems=(*of_directory, *(line for lines in by_file.values() for line in lines)),
            by_file=by_file,
        )

    def _holder(self, key: str, claims: list[Resource]) -> Resource:
        """Which of several definitions counts: that of before, else the first."""
        before = self._memory.definitions.get(key)
        if before is not None:
            in_place = [claim for claim in claims if claim.file == before.file]
            # Within a file lines move, so the content tells which it was.
            same = [claim for claim in in_place if claim.digest == before.digest]
            claims = same or in_place or claims
        return claims[0]

    def _unchanged(
        self, holders: Mapping[str, Resource]
    ) -> tuple[dict[str, Resource], dict[str, str]]:
        """What is in force of the definitions that count, and what is refused of them, by key."""
        in_force, changed = dict(holders), {}
        for key, resource in holders.items():
            first = self._memory.weights.get(resource.name)
            if isinstance(resource, WeightVersion) and first is not None:
                in_force[key], refusal = as_it_was(resource, first.spec)
                if refusal is not None:
                    changed[key] = refusal
        return in_force, changed

    def _remember(
        self, holders: Mapping[str, Resource], in_force: Mapping[str, Resource], *, hidden: bool
    ) -> None:
        """Keep what the next merge has to know; ``hidden`` if not all that there is could be read."""
        memory = self._memory
        definitions = {key: Definition(one.file, one.digest) for key, one in holders.items()}
        engines = [one for one in in_force.values() if isinstance(one, RolloutEngine)]
        versions = [one for one in in_force.values() if isinstance(one, WeightVersion)]
        weights = {one.name: First(written(one.spec), one.created or 0.0) for one in versions}
        references = _references(memory.references, engines, versions)
        memory.definitions = {**memory.definitions, **definitions} if hidden else definitions
        memory.weights = {**memory.weights, **weights} if hidden else weights
        memory.references = {**memory.references, **references} if hidden else references
        memory.save()

    def _dated(self, resource: Resource) -> Resource:
        key = _key(resource)
        if isinstance(resource, WeightVersion):
            # It never changes; and the ledger would keep all that there ever were.
            first = self._memory.weights.get(resource.name)
            created = self._memory.wall() if first is None else first.created
            return msgspec.structs.replace(resource, generation=1, created=created)
        return msgspec.structs.replace(
            resource,
            generation=self._ledger.generation(key, resource.digest),
            created=self._ledger.created(key),
        )


def _key(resource: Resource) -> str:
    return f"{resource.kind}/{resource.name}"


def _references(
    before: Mapping[str, References],
    engines: Iterable[RolloutEngine],
    versions: Iterable[WeightVersion],
) -> dict[str, References]:
    """What each pool was to have, now that its manifest says what it says.

    Whoever has changed the manifest, the weights of before are remembered; names that mean nothing
    are not. A pool that asks for none for now keeps what is remembered.
    """
    known = {(one.name, one.spec.model) for one in versions}
    found: dict[str, References] = {}
    for engine in engines:
        spec, last = engine.spec, before.get(engine.name)
        name = None if spec.weight_version_ref is None else spec.weight_version_ref.name
        if name is not None and (name, spec.model) in known:
            limit = spec.version_history_limit
            found[engine.name] = (last or References(now=name)).then(name, limit=limit)
        elif last is not None:
            found[engine.name] = last
    return found
