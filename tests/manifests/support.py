"""A directory of manifests, and a ledger in memory."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from steersman_operator.manifests import ManifestDirectory

_times = itertools.count(1_700_000_000_000_000_000, 1_000_000)


class MemoryLedger:
    """What a state file would remember."""

    def __init__(self) -> None:
        self.generations: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.first_seen: dict[str, float] = {}
        self.held: dict[str, str] = {}
        self.fails = False

    def generation(self, resource: str, digest: str) -> int:
        if self.fails:
            raise OSError("disk full")
        if self.digests.get(resource) != digest:
            self.digests[resource] = digest
            self.generations[resource] = self.generations.get(resource, 0) + 1
        return self.generations[resource]

    def created(self, resource: str) -> float:
        return self.first_seen.setdefault(resource, float(len(self.first_seen)))

    def holders(self) -> dict[str, str]:
        return dict(self.held)

    def hold(self, claims: Mapping[str, str]) -> None:
        self.held = dict(claims)


def write(path: Path, content: str | bytes) -> None:
    """Write a file at a time of its own, as two writes of a test can be within one tick."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    now = next(_times)
    os.utime(path, ns=(now, now))


def settle(directory: ManifestDirectory) -> None:
    """Look twice, as a change must look the same twice."""
    directory.poll()
    directory.poll()


def states(directory: ManifestDirectory) -> dict[str, str]:
    """The state of each pool."""
    return {found.name: found.spec.state.value for found in directory.manifests.engines}


def problems(directory: ManifestDirectory) -> tuple[str, ...]:
    """Everything that is wrong."""
    return directory.manifests.problems
