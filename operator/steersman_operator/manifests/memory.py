"""What must be remembered of manifests although they do not say it: who was there first, and what was.

A file of its own in the state directory. It makes nothing work that would not work without it: if it
cannot be read or written, that is logged, and what is remembered begins anew.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from steersman_operator.resources import Target
from steersman_operator.shell import atomic_file

_log = logging.getLogger("steersman.manifests")


class Definition(msgspec.Struct, frozen=True):
    """Where a resource was defined: in a file, and there with this content."""

    file: str
    digest: str


class First(msgspec.Struct, frozen=True):
    """A WeightVersion as it was read first."""

    spec: dict[str, Any]
    created: float
    """When that was, in seconds since 1970."""


class References(msgspec.Struct, frozen=True, kw_only=True):
    """The WeightVersions that a pool was to have, by name."""

    now: str
    """The last one that could be found."""
    before: tuple[str, ...] = ()
    """Those before it, the newest first, each once."""

    def then(self, name: str, *, limit: int) -> "References":
        """The same once the pool is to have ``name``; at most ``limit`` are kept of those before."""
        before = self.before
        if name != self.now:
            before = (self.now, *(one for one in self.before if one not in (name, self.now)))
        return References(now=name, before=before[:limit])


class _Contents(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    definitions: dict[str, Definition] = {}
    weights: dict[str, First] = {}
    references: dict[str, References] = {}
    targets: dict[str, Target] = {}


class ManifestMemory:
    """What is remembered. Without a path, until the process ends.

    Of what is gone nothing is kept: a trainer may make a WeightVersion each minute. ``wall`` is the time
    in seconds since 1970.
    """

    def __init__(self, path: Path | None = None, *, wall: Callable[[], float] = time.time) -> None:
        self.wall = wall
        self._path = path
        self._written = _Contents()
        self.definitions: Mapping[str, Definition] = {}
        """Which definition of a resource counts, by ``KIND/NAME``."""
        self.weights: Mapping[str, First] = {}
        """WeightVersions as they were read first, by name."""
        self.references: Mapping[str, References] = {}
        """What pools were to have, by name."""
        self.targets: Mapping[str, Target] = {}
        """The weights that pools are to have, by name, for when a reference cannot be followed."""
        if path is not None:
            self._read(path)

    def save(self) -> None:
        """Write what is remembered, if that is something else than was written last."""
        contents = _Contents(
            definitions=dict(self.definitions),
            weights=dict(self.weights),
            references=dict(self.references),
            targets=dict(self.targets),
        )
        if self._path is None or contents == self._written:
            return
        try:
            atomic_file.replace(
                self._path, msgspec.json.format(msgspec.json.encode(contents), indent=1)
            )
        except OSError as error:
            # A full disk must not keep people from changing what they want.
            _log.warning("%s cannot be written: %s", self._path, error.strerror)
            return
        self._written = contents

    def forget_weights(self, names: Sequence[str]) -> None:
        """There are no such WeightVersions any more; what is called so from now on is another one."""
        self.weights = {name: first for name, first in self.weights.items() if name not in names}

    def _read(self, path: Path) -> None:
        try:
            contents = msgspec.json.decode(path.read_bytes(), type=_Contents)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("%s cannot be read, what it remembers begins anew: %s", path, error)
            return
        self._written = contents
        self.definitions, self.weights = contents.definitions, contents.weights
        self.references, self.targets = contents.references, contents.targets
