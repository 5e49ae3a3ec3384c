"""Values that only the resources have."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import PlainValidator

from steersman.documents.problems import number, what
from steersman.documents.urls import engine_id
from steersman.documents.values import Kind, choice, positive, whole
from steersman.engine import Control
from steersman_operator.fleet.spec import (
    Drift,
    OnTimeout,
    OnUnreachable,
    PauseMode,
    PromoteAt,
    RolloutMode,
)

MAX_SECONDS = 30 * 86400

_PERCENT = re.compile(r"([0-9]{1,3})%")


class State(StrEnum):
    """What engines are to be."""

    ACTIVE = "Active"
    PAUSED = "Paused"
    ASLEEP = "Asleep"

    @property
    def control(self) -> Control:
        """The same in the words of the table."""
        return Control(self.value.lower())


def whole_seconds(value: Any) -> int:
    """Whole seconds, up to 30 days.

    :raises ValueError: if it is something else.
    """
    if isinstance(value, str):
        raise ValueError("must be a whole number of seconds, without a unit")
    result = whole(value)
    if result > MAX_SECONDS:
        raise ValueError(f"must not be longer than 30 days (in seconds), found {number(value)}")
    return result


def share(value: Any) -> str:
    """A number of engines above 0, or a percentage from 1% to 100%.

    :raises ValueError: if it is something else.
    """
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        if match is None or not 1 <= int(match[1]) <= 100:
            raise ValueError(
                "must be a whole number above 0, or a percentage from 1% to 100% such as 25%, "
                f"found {value[:40]!a}"
            )
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a whole number or a percentage such as 25%, found {what(value)}")
    return str(positive(value))


def _words(kind: type[StrEnum]) -> Kind:
    return Kind(", ".join(f"`{option.value}`" for option in kind))


EngineName = Annotated[str, PlainValidator(engine_id), Kind("name")]
Seconds = Annotated[int, PlainValidator(whole_seconds), Kind("seconds")]
Share = Annotated[str, PlainValidator(share), Kind("whole number above 0, or percentage")]
StateName = Annotated[State, PlainValidator(choice(State)), _words(State)]
DriftName = Annotated[Drift, PlainValidator(choice(Drift)), _words(Drift)]
OnTimeoutName = Annotated[OnTimeout, PlainValidator(choice(OnTimeout)), _words(OnTimeout)]
OnUnreachableName = Annotated[
    OnUnreachable, PlainValidator(choice(OnUnreachable)), _words(OnUnreachable)
]
PauseModeName = Annotated[PauseMode, PlainValidator(choice(PauseMode)), _words(PauseMode)]
PromoteAtName = Annotated[PromoteAt, PlainValidator(choice(PromoteAt)), _words(PromoteAt)]
RolloutModeName = Annotated[RolloutMode, PlainValidator(choice(RolloutMode)), _words(RolloutMode)]
