"""WeightVersion: an immutable name for weights.

Each attribute's docstring is its line in ``docs/configuration/rolloutengine.md``.
"""

from typing import Any, Self

from pydantic import model_validator

from steersman.documents.model import Model
from steersman.documents.names import Text, VersionName
from steersman.documents.values import Whole


class Disk(Model):
    """Weights that the engines can read from a path."""

    path: Text
    """The path, as the engines see it."""


class External(Model):
    """Weights that the trainer transfers itself."""


class Source(Model):
    """Where the weights come from: exactly one of the two."""

    disk: Disk | None = None
    """Weights that the engines can read from a path."""
    external: External | None = None
    """Weights that the trainer transfers itself: `external: {}`."""

    @model_validator(mode="before")
    @classmethod
    def _written_is_meant(cls, data: Any) -> Any:
        # `external:` with nothing behind it chooses, too; for pydantic it would be left out.
        if isinstance(data, dict):
            return {key: {} if value is None else value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if self.disk is not None and self.external is not None:
            raise ValueError("has both `disk` and `external`; keep one of them")
        if self.disk is None and self.external is None:
            raise ValueError("must have `disk: {path: ...}` or `external: {}`")
        return self


class WeightVersionSpec(Model):
    """What the weights are. It cannot be changed: other weights get a WeightVersion of their own."""

    model: Text
    """The model, as in `spec.model` of the RolloutEngine."""
    version: VersionName
    """The version, as engines report it. Text: a number is taken as it is written."""
    ordinal: Whole | None = None
    """Explicit rank among the versions of the model, for names that do not order themselves. As
    soon as one version of the model has an ordinal, ordinals alone decide which is newer."""
    source: Source
    """Where the weights come from."""
    digest: Text | None = None
    """Digest of the weights, such as `sha256:...`, for people."""
    checksum: Text | None = None
    """The checksum that an engine computes over these weights once it has loaded them. An engine
    that can compute one (SGLang) and comes to another does not open."""
