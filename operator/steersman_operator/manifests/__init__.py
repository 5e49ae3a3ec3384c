"""A directory of YAML and JSON files instead of a cluster: read when it changes, edited in place."""

from steersman_operator.manifests.directory import Edited, ManifestDirectory
from steersman_operator.manifests.manifests import FleetLedger, Ledger, Manifests
from steersman_operator.manifests.memory import ManifestMemory
from steersman_operator.manifests.refits import RefitWish, RolloutVerb
from steersman_operator.manifests.verbs import Verb, unknown

__all__ = [
    "Edited",
    "FleetLedger",
    "Ledger",
    "ManifestDirectory",
    "ManifestMemory",
    "Manifests",
    "RefitWish",
    "RolloutVerb",
    "Verb",
    "unknown",
]
