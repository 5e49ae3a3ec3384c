"""The resources that people write: RolloutEngine and WeightVersion.

The same in a directory and in a cluster. pydantic ends in here: what leaves are structs around a
validated spec, and the pools of the core.
"""

from steersman_operator.resources.envelope import ROLLOUT_ENGINE, SCHEMAS, WEIGHT_VERSION
from steersman_operator.resources.group import API_VERSION, GROUP
from steersman_operator.resources.pools import Pools, to_pools
from steersman_operator.resources.read import ReadFile, read_resources
from steersman_operator.resources.resource import Resource, RolloutEngine, WeightVersion
from steersman_operator.resources.rollout_engine import RolloutEngineSpec
from steersman_operator.resources.targets import Target, weights_of
from steersman_operator.resources.unchanging import as_it_was
from steersman_operator.resources.values import State
from steersman_operator.resources.weight_version import WeightVersionSpec

__all__ = [
    "API_VERSION",
    "GROUP",
    "ROLLOUT_ENGINE",
    "SCHEMAS",
    "WEIGHT_VERSION",
    "Pools",
    "ReadFile",
    "Resource",
    "RolloutEngine",
    "RolloutEngineSpec",
    "State",
    "Target",
    "WeightVersion",
    "WeightVersionSpec",
    "as_it_was",
    "read_resources",
    "to_pools",
    "weights_of",
]
