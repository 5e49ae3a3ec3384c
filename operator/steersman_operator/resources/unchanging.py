"""The spec of a WeightVersion does not change: one version of a model is one set of weights.

If it could, two engines that show the same version could have different weights. In a cluster the API
server refuses the change; on one machine the spec that was read first stays in force.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from steersman_operator.resources.read import digest_of
from steersman_operator.resources.resource import WeightVersion
from steersman_operator.resources.weight_version import WeightVersionSpec
from steersman_operator.resources.written import written


def as_it_was(version: WeightVersion, first: Mapping[str, Any]) -> tuple[WeightVersion, str | None]:
    """The WeightVersion with the spec that was read ``first``, and a sentence if it is another now.

    ``first`` is in the form of :func:`~steersman_operator.resources.written.written`. If it is not a
    spec (any more), the present one counts.
    """
    try:
        spec = WeightVersionSpec.model_validate(first)
    except ValidationError:
        return version, None
    if spec == version.spec:
        return version, None
    kept = msgspec.structs.replace(version, spec=spec, digest=digest_of(spec))
    return kept, _refusal(version, written(spec), written(version.spec))


def _refusal(version: WeightVersion, first: dict[str, Any], now: dict[str, Any]) -> str:
    was, is_ = dict(_leaves(first, "spec")), dict(_leaves(now, "spec"))
    changed = [key for key in (was | is_) if was.get(key) != is_.get(key)]
    key = changed[0]
    others = f" (also {', '.join(changed[1:])})" if changed[1:] else ""
    return (
        f"{version.place}: {key}: was {_shown(was.get(key))} and is now {_shown(is_.get(key))}{others}, "
        f"but a WeightVersion cannot be changed; the first one stays in force: change it back, and "
        f"give other weights a WeightVersion and a version of their own"
    )


def _leaves(content: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def _shown(value: object) -> str:
    match value:
        case None:
            return "not there"
        case dict():
            return "there"
        case str():
            return ascii(value)
        case _:
            return str(value)
