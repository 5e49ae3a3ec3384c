"""What is around the spec of every resource: kind, version and metadata.

Everything that ``kubectl get -o yaml`` writes is taken, so that its output can be put into a file;
what the API server has put there is not looked at.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from steersman.documents.document import Document, Problem
from steersman.documents.model import Model
from steersman.documents.problems import one_of, what
from steersman.documents.values import Kind
from steersman_operator.resources.group import API_VERSION, GROUP, ResourceName
from steersman_operator.resources.rollout_engine import RolloutEngineSpec
from steersman_operator.resources.weight_version import WeightVersionSpec

ROLLOUT_ENGINE = "RolloutEngine"
WEIGHT_VERSION = "WeightVersion"

OF_THE_SERVER = frozenset(
    (
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    )
)
"""Keys of ``metadata`` that are taken and mean nothing here."""

MADE_BY = ("app.kubernetes.io/created-by", "steersman")
"""The label of a WeightVersion that was made by a command."""

_KINDS = {kind.lower(): kind for kind in (ROLLOUT_ENGINE, WEIGHT_VERSION)}


def _texts(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"must have keys below it, found {what(value)}")
    for key, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"must have texts, found {what(text)} at {key[:80]!a}; quote it")
    return value


Texts = Annotated[dict[str, str], PlainValidator(_texts), Kind("text by text")]


class Metadata(Model):
    """What the resource is called."""

    name: ResourceName
    """The name; of a RolloutEngine it is the name of the pool, which the header
    `x-steersman-pool` and the commands take."""
    labels: Texts = Field(default_factory=dict)
    """For people and tools. A WeightVersion with `app.kubernetes.io/created-by: steersman` was made by
    `steersman refit`, which removes it when it is no longer used."""
    annotations: Texts = Field(default_factory=dict)
    """For people and tools; not looked at."""


class RolloutEngineFile(Model):
    """A set of identical engines serving one model."""

    api_version: str
    """`rollout.steersman.io/v1alpha1`."""
    kind: str
    """`RolloutEngine`."""
    metadata: Metadata
    """What the resource is called."""
    spec: RolloutEngineSpec
    """What the engines are, and what is wanted of them."""


class WeightVersionFile(Model):
    """An immutable name for weights."""

    api_version: str
    """`rollout.steersman.io/v1alpha1`."""
    kind: str
    """`WeightVersion`."""
    metadata: Metadata
    """What the resource is called."""
    spec: WeightVersionSpec
    """What the weights are."""


SCHEMAS: Mapping[str, type[RolloutEngineFile] | type[WeightVersionFile]] = {
    ROLLOUT_ENGINE: RolloutEngineFile,
    WEIGHT_VERSION: WeightVersionFile,
}


def wrong_kind(document: Document) -> list[Problem]:
    """Why a document is none of our resources; empty if it is one."""
    kind, version = document.data.get("kind"), document.data.get("apiVersion")
    found = []
    if kind is None:
        known = " or ".join(SCHEMAS)
        found.append(Problem((), f"has no `kind`; write kind: {known}"))
    elif kind == "List":
        found.append(Problem(("kind",), "is List; make each item a document of its own (`---`)"))
    elif not isinstance(kind, str):
        found.append(Problem(("kind",), f"must be text, found {what(kind)}"))
    elif kind not in SCHEMAS:
        found.append(Problem(("kind",), _unknown_kind(kind)))
    if version is None:
        found.append(Problem((), f"has no `apiVersion`; write apiVersion: {API_VERSION}"))
    elif version != API_VERSION:
        shown = ascii(version[:80]) if isinstance(version, str) else what(version)
        ours = " (another version of it)" if _is_ours(version) else ""
        found.append(Problem(("apiVersion",), f"must be {API_VERSION}, found {shown}{ours}"))
    return found


def _unknown_kind(kind: str) -> str:
    meant = _KINDS.get(kind.lower())
    if meant is not None:
        return f"must be written {meant}, found {kind[:80]!a}"
    return f"{one_of(kind, SCHEMAS)}; keep other kinds out of this directory"


def _is_ours(version: object) -> bool:
    return isinstance(version, str) and version.startswith(f"{GROUP}/")


def cleaned(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` without what the API server writes."""
    kept = {key: value for key, value in data.items() if key != "status"}
    metadata = kept.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = {
            key: value for key, value in metadata.items() if key not in OF_THE_SERVER
        }
    return kept


CLUSTER_ENDPOINTS = (
    "serviceName",
    "selector",
    "podSelector",
    "port",
    "prefillSelector",
    "decodeSelector",
)
CLUSTER_OVERRIDES = ("pod", "podUID")


def only_in_a_cluster(data: dict[str, Any]) -> Iterator[Problem]:
    """Keys that find engines in a cluster; a standalone fleet has none."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return
    endpoints = spec.get("endpoints")
    for key in CLUSTER_ENDPOINTS:
        if isinstance(endpoints, dict) and key in endpoints:
            yield Problem(
                ("spec", "endpoints", key),
                "finds engines in a Kubernetes cluster, and this fleet has none; "
                "list the engines in endpoints.static",
            )
    overrides = spec.get("overrides")
    for position, override in enumerate(overrides if isinstance(overrides, list) else []):
        for key in CLUSTER_OVERRIDES:
            if isinstance(override, dict) and key in override:
                yield Problem(
                    ("spec", "overrides", position, key),
                    "names a pod of a Kubernetes cluster, and this fleet has none; "
                    "name an engine of endpoints.static with `engine`",
                )
