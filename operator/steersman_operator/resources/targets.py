"""Which weights a pool is to have: from its ``weightVersionRef`` to the target of the core.

A reference that cannot be followed changes nothing: the weights of before stay the target, as the last
good version of a bad file stays in force. Otherwise a typing error would end a rollout half way.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from steersman_operator.fleet.spec import SourceKind, Weights
from steersman_operator.resources.resource import RolloutEngine, WeightVersion

Warn = Callable[[RolloutEngine | WeightVersion, str], None]
"""Takes what is wrong without harm, and with which resource."""

FEW = 5
"""Names that a sentence lists."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that a pool is to have."""

    model: str
    """Of the pool when the reference was followed: the weights of another model never stay."""
    weights: Weights


class Versions:
    """All WeightVersions, the older first."""

    def __init__(self, versions: Sequence[WeightVersion], warn: Warn) -> None:
        self._warn = warn
        self._by_name = {version.name: version for version in versions}
        self._ordinals: dict[str, dict[str, int]] = {}
        said: dict[tuple[str, str], WeightVersion] = {}
        ranks: dict[tuple[str, int], WeightVersion] = {}
        for version in versions:
            spec = version.spec
            same = said.setdefault((spec.model, spec.version), version)
            if same is not version:
                self._twice(same, version, f"name the version {spec.version} of {spec.model!a}")
                continue
            if spec.ordinal is None:
                continue
            same = ranks.setdefault((spec.model, spec.ordinal), version)
            if same is not version:
                self._twice(same, version, f"have the ordinal {spec.ordinal}")
                continue
            self._ordinals.setdefault(spec.model, {})[spec.version] = spec.ordinal

    def ordinals(self, model: str) -> Mapping[str, int]:
        """The ranks of a model's versions; empty if none has one."""
        return self._ordinals.get(model, {})

    def target(self, resource: RolloutEngine, *, before: Target | None) -> Target | None:
        """What the engines of a pool are to have; ``before`` is what they were to have last.

        ``None`` if nothing is asked for, or if what is asked for was never there.
        """
        spec = resource.spec
        if spec.weight_version_ref is None:
            return None
        version = self._by_name.get(spec.weight_version_ref.name)
        if version is not None and version.spec.model == spec.model:
            weights = weights_of(version, nonce=spec.refit_nonce or "")
            return Target(model=spec.model, weights=weights)
        if before is not None and before.model != spec.model:
            before = None
        self._warn(resource, self._unresolved(resource, version, before))
        return before

    def _unresolved(
        self, resource: RolloutEngine, version: WeightVersion | None, before: Target | None
    ) -> str:
        spec = resource.spec
        assert spec.weight_version_ref is not None
        name = spec.weight_version_ref.name
        found = (
            f"there is no WeightVersion {name}"
            if version is None
            else f"{named(version)} is of the model {version.spec.model!a}, not {spec.model!a}"
        )
        so = (
            "so no weights are loaded"
            if before is None
            else f"so version {before.weights.version} stays what is wanted"
        )
        place = f"{resource.file}:{resource.reference_line}"
        remedy = self._remedy(spec.model, name)
        return f"{place}: spec.weightVersionRef.name: {found}, {so}; {remedy}"

    def _remedy(self, model: str, name: str) -> str:
        known = [one.name for one in self._by_name.values() if one.spec.model == model]
        if not known:
            return f"add one of {model!a}, or have `steersman refit` make it"
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            return f"did you mean {near[0]}?"
        more = f" and {len(known) - FEW} more" if len(known) > FEW else ""
        # The newest last, as they are.
        return f"name one of {', '.join(known[-FEW:])}{more}, or add it"

    def _twice(self, older: WeightVersion, younger: WeightVersion, what: str) -> None:
        sentence = f"{named(older)} and {named(younger)} both {what}; the older counts"
        self._warn(older, sentence)
        self._warn(younger, sentence)


def weights_of(version: WeightVersion, *, nonce: str) -> Weights:
    """A WeightVersion in the words of the core."""
    spec = version.spec
    disk = spec.source.disk
    return Weights(
        version=spec.version,
        source=SourceKind.EXTERNAL if disk is None else SourceKind.DISK,
        path="" if disk is None else disk.path,
        nonce=nonce,
        checksum=spec.checksum or "",
    )


def named(resource: RolloutEngine | WeightVersion) -> str:
    """A resource in a sentence: its name and its place."""
    return f"{resource.name} ({resource.place})"
