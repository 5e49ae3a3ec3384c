"""Resources as objects, for ``-o json`` and ``-o yaml``: shaped as Kubernetes shapes them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from steersman_operator.commands.kinds import (
    ENGINE,
    PROXY,
    ROLLOUT_ENGINE,
    Item,
    Kind,
    name_of,
)

GROUP = "rollout.steersman.io"
"""A copy of what the resources say: they bring pydantic, for which no `get` should have to wait."""

API_VERSION = f"{GROUP}/v1alpha1"

Object = dict[str, Any]


def list_of(objects: Sequence[Object]) -> Object:
    """Several objects as one."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def object_of(kind: Kind, item: Item) -> Object:
    """One object."""
    if kind is ROLLOUT_ENGINE:
        spec, status = _rollout_engine(item)
    elif kind is ENGINE:
        spec, status = _engine(item)
    elif kind is PROXY:
        spec, status = {}, {name: value for name, value in item.items() if name != "uid"}
    else:
        spec, status = item["spec"], {}
    content = {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": _metadata(kind, item)}
    return content | {name: value for name, value in (("spec", spec), ("status", status)) if value}


def _metadata(kind: Kind, item: Item) -> Object:
    metadata: Object = {"name": name_of(kind, item)}
    if kind is ENGINE:
        metadata["labels"] = {f"{GROUP}/pool": item["pool"]}
    if "generation" in item:
        metadata["generation"] = item["generation"]
    if item.get("created") is not None:
        moment = datetime.fromtimestamp(item["created"], UTC)
        metadata["creationTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    if item.get("file"):
        metadata["annotations"] = {f"{GROUP}/manifest": place_of(item)}
    return metadata


def place_of(item: Item) -> str:
    """Where it is written."""
    return f"{item['file']}:{item['line']}" if item.get("line") else str(item["file"])


def _rollout_engine(pool: Item) -> tuple[Object, Object]:
    status = {
        "observedGeneration": pool["generation"],
        "runtime": pool["runtime"],
        "fleetMax": pool["fleet_max"],
        "target": pool["target"],
        "synced": pool["weights"]["synced"],
        "counts": pool["counts"],
        "conditions": pool["conditions"],
        "manifestErrors": pool["manifest_errors"],
        "engines": [
            {"name": one["name"], **_engine(one | {"pool": pool["name"]})[1]}
            for one in pool["engines"]
        ],
    }
    return pool["spec"], status


def _engine(engine: Item) -> tuple[Object, Object]:
    spec = {
        "pool": engine["pool"],
        "url": engine["url"],
        "runtime": engine["runtime"],
        "role": engine["role"],
        "state": engine["desired"].capitalize(),
    }
    status = {
        "id": engine["id"],
        "state": engine["control"].capitalize(),
        "gate": engine["gate"],
        "takesRequests": engine["takes_requests"],
        "phase": engine["phase"],
        "problem": engine["problem"] or engine["withheld"],
        "version": engine["version"],
        "trust": engine["trust"],
        "synced": engine["synced"],
        "inFlight": engine["in_flight"],
        "reachable": engine["reachable"],
        "external": engine["external"],
        "bootID": engine["boot_id"],
    }
    return spec, status
