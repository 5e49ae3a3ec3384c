"""Resources as they were read: the spec, and where it stands."""

from typing import ClassVar

import msgspec

from steersman_operator.engines.client import EngineKeys
from steersman_operator.resources.rollout_engine import RolloutEngineSpec
from steersman_operator.resources.weight_version import WeightVersionSpec


class RolloutEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One RolloutEngine."""

    kind: ClassVar[str] = "RolloutEngine"

    name: str
    spec: RolloutEngineSpec
    digest: str
    """Of the spec's content: the same for another layout, other comments and defaults written out."""
    file: str
    """The name of its file in the directory."""
    line: int
    """Where it begins in it, from 1."""
    document: int = 0
    """Which document of the file it is, from 0; those without content do not count."""
    generation: int = 0
    """Goes up with each change of the spec."""
    created: float | None = None
    """When it was first seen, in seconds since 1970."""
    keys: EngineKeys = EngineKeys()
    """Keys that its engines ask for."""
    data_key_file: str | None = None
    """The path of the data key, for the proxies."""
    reference_line: int = 0
    """The line of ``weightVersionRef``, or that of what is around it."""

    @property
    def place(self) -> str:
        """``FILE:LINE``."""
        return f"{self.file}:{self.line}"


class WeightVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One WeightVersion."""

    kind: ClassVar[str] = "WeightVersion"

    name: str
    spec: WeightVersionSpec
    digest: str
    """As of a RolloutEngine."""
    file: str
    line: int
    document: int = 0
    generation: int = 0
    created: float | None = None
    made: bool = False
    """Whether a command of ours has made it; such a one is removed when nobody needs it any more."""

    @property
    def place(self) -> str:
        """``FILE:LINE``."""
        return f"{self.file}:{self.line}"


Resource = RolloutEngine | WeightVersion
