"""All that the files of a directory say, put together."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from steersman_operator.resources import Resource, RolloutEngine, WeightVersion


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
    """Puts files together, and remembers which of two definitions was there before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._holders: Mapping[str, Resource] = {}

    def merge(self, files: Iterable[FileContent], *, of_directory: Iterable[str]) -> Manifests:
        """The manifests of all ``files``, given in the order of their names."""
        files = list(files)
        claims: dict[str, list[Resource]] = {}
        for file in files:
            for resource in file.resources:
                claims.setdefault(_key(resource), []).append(resource)
        holders = {key: self._holder(key, found) for key, found in claims.items()}
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
            if problems:
                by_file[file.name] = tuple(problems)
        kept = [self._dated(holders[key]) for key in sorted(holders)]
        self._holders = holders
        return Manifests(
            engines=tuple(found for found in kept if isinstance(found, RolloutEngine)),
            versions=tuple(found for found in kept if isinstance(found, WeightVersion)),
            problems=(*of_directory, *(line for lines in by_file.values() for line in lines)),
            by_file=by_file,
        )

    def _holder(self, key: str, claims: list[Resource]) -> Resource:
        """Which of several definitions counts: that of before, else the first."""
        before = self._holders.get(key)
        if before is not None:
            in_place = [claim for claim in claims if claim.file == before.file]
            # Within a file lines move, so the content tells which it was.
            same = [claim for claim in in_place if claim.digest == before.digest]
            claims = same or in_place or claims
        return claims[0]

    def _dated(self, resource: Resource) -> Resource:
        key = _key(resource)
        return msgspec.structs.replace(
            resource,
            generation=self._ledger.generation(key, resource.digest),
            created=self._ledger.created(key),
        )


def _key(resource: Resource) -> str:
    return f"{resource.kind}/{resource.name}"
