"""The status of a bench, and parts of it."""

from typing import Any

import msgspec

from steersman_operator.api.conditions import ConditionType
from steersman_operator.api.status import FleetFacts, status_of
from tests.fleet.support import Bench

NO_FACTS = FleetFacts()


def status(bench: Bench, facts: FleetFacts = NO_FACTS) -> dict[str, Any]:
    content = status_of(bench.state, timing=bench.timing, now=bench.now, facts=facts)
    # What cannot be written as JSON must not get in.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    return found


def engine(bench: Bench, name: str = "a") -> dict[str, Any]:
    (pool,) = status(bench)["pools"]
    return next(one for one in pool["engines"] if one["id"] == name)


def condition(
    bench: Bench, kind: ConditionType, facts: FleetFacts = NO_FACTS
) -> tuple[bool, str, str]:
    (pool,) = status(bench, facts)["pools"]
    (found,) = [one for one in pool["conditions"] if one["type"] == kind.value]
    assert found["status"] in ("True", "False")
    assert found["reason"], "Kubernetes wants a reason, always"
    return found["status"] == "True", found["reason"], found["message"]


def true_conditions(bench: Bench) -> list[str]:
    (pool,) = status(bench)["pools"]
    return [one["type"] for one in pool["conditions"] if one["status"] == "True"]
