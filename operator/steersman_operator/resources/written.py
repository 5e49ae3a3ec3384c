"""A spec in the form in which people write it, so that what is shown can be put into a file."""

from typing import Any

import msgspec

from steersman.policy import AnyVersion, LatestOnly, MaxStaleness, MinVersion
from steersman_operator.resources.rollout_engine import RolloutEngineSpec
from steersman_operator.resources.weight_version import WeightVersionSpec

_POLICIES = (AnyVersion, LatestOnly, MinVersion, MaxStaleness)


def written(spec: RolloutEngineSpec | WeightVersionSpec) -> dict[str, Any]:
    """The whole spec with its defaults, read as the same by the schema.

    Left out are keys that stand for nothing: those without a value, and of a RolloutEngine lists and
    sections without content.
    """
    content = spec.model_dump(by_alias=True, exclude_none=True)
    plain: dict[str, Any] = _plain(content)
    if isinstance(spec, WeightVersionSpec):
        return plain  # `external: {}` is all that there is to say
    share = plain["rollout"]["maxUnavailable"]
    if not share.endswith("%"):
        plain["rollout"]["maxUnavailable"] = int(share)
    return _pruned(plain)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if value.is_integer():
            return int(value)
        case _ if isinstance(value, _POLICIES):
            return str(value)
        case _:
            return msgspec.to_builtins(value)


def _pruned(section: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: _pruned(value) if isinstance(value, dict) else value for key, value in section.items()
    }
    return {key: value for key, value in kept.items() if value not in ({}, [])}
