"""The table of cases: an operation, a runtime, and the point at which the operator is killed."""

from typing import NamedTuple

from steersman_operator.fleet.facts import CallKind
from steersman_sim.engine import Runtime
from tests.up.killed.points import BEFORE_THE_CALL, DURING_THE_CALL, Point


class Operation(NamedTuple):
    """What is asked for, and the call of it during which the operator is killed."""

    name: str
    first: str
    """The state of the engine before."""
    wanted: str
    call: CallKind
    source: str = ""
    """Where new weights come from, as a WeightVersion has it; empty if none are asked for."""
    version: str = ""
    """The name of them. A version is one set of weights for good, so each source has its own."""


PATH = "/w/8"

PAUSE = Operation("pause", "active", "paused", CallKind.PAUSE)
SLEEP = Operation("sleep", "active", "asleep", CallKind.SLEEP)
WAKE = Operation("wake", "asleep", "active", CallKind.WAKE)
RESUME = Operation("resume", "paused", "active", CallKind.RESUME)
REFIT = Operation("refit", "active", "active", CallKind.REFIT, f"disk: {{path: {PATH}}}", "8")
TRANSFER = Operation("transfer", "active", "active", CallKind.TRANSFER, "external: {}", "9")

ROUTES = {
    (Runtime.SGLANG, CallKind.PAUSE): "/pause_generation",
    (Runtime.SGLANG, CallKind.RESUME): "/continue_generation",
    (Runtime.SGLANG, CallKind.SLEEP): "/release_memory_occupation",
    (Runtime.SGLANG, CallKind.WAKE): "/resume_memory_occupation",
    (Runtime.SGLANG, CallKind.REFIT): "/update_weights_from_disk",
    # What is called for a transfer is to name it, once it is done.
    (Runtime.SGLANG, CallKind.TRANSFER): "/update_weight_version",
    (Runtime.VLLM, CallKind.PAUSE): "/pause",
    (Runtime.VLLM, CallKind.RESUME): "/resume",
    (Runtime.VLLM, CallKind.SLEEP): "/sleep",
    (Runtime.VLLM, CallKind.WAKE): "/wake_up",
    (Runtime.VLLM, CallKind.REFIT): "/collective_rpc",
    (Runtime.VLLM, CallKind.TRANSFER): "/update_weight_version",
}


class Case(NamedTuple):
    """One row."""

    operation: Operation
    runtime: Runtime
    point: Point

    def __str__(self) -> str:
        return f"{self.operation.name} of {self.runtime.value}, killed while {self.point.value}"

    @property
    def route(self) -> str:
        """The engine's route of the call."""
        return ROUTES[self.runtime, self.operation.call]

    @property
    def refits(self) -> bool:
        """Whether new weights are asked for."""
        return bool(self.operation.source)

    @property
    def lost(self) -> bool:
        """Whether nobody can know afterwards which memory is released.

        SGLang cannot be asked, and ends if it is told twice. So from the moment in which the intent is
        on disk until the outcome is, a dead operator leaves an engine that has to be restarted.
        """
        return (
            self.runtime is Runtime.SGLANG
            and self.operation in (SLEEP, WAKE)
            and self.point not in (*BEFORE_THE_CALL, Point.CLAIMING, Point.RECORDED)
            # A wake is followed by a resume, whose outcome can be seen.
            and not (self.operation is WAKE and self.point is Point.OPENING)
        )

    @property
    def calls(self) -> int:
        """How often the engine receives the call: once more only if it had surely no effect."""
        if self.lost:
            return int(self.point not in (Point.WRITTEN, Point.CALLING))
        if self.runtime is Runtime.VLLM and self.operation is REFIT:
            # It reads weights by one call and is given their name by another, which a dead operator
            # never makes: that they are there is not to be seen, and they are read once more.
            return 2 if self.point in DURING_THE_CALL else 1
        return 2 if self.point is Point.RECEIVED else 1


def cases_at(point: Point) -> list[Case]:
    """The operations that are killed at a point, each on both runtimes."""
    match point:
        case Point.AWAITING:
            operations = [TRANSFER]
        case Point.CALLING:  # nothing differs from WRITTEN on disk, and nothing in an engine
            operations = [SLEEP, WAKE, REFIT]
        case Point.RUNNING:  # the others take no time
            operations = [REFIT, SLEEP, WAKE]
        case Point.RECEIVED | Point.CARRIED_OUT | Point.OPENING:
            operations = [REFIT, PAUSE, SLEEP, WAKE, RESUME]
        case _ if point in BEFORE_THE_CALL:  # of the others the gate is closed already
            operations = [PAUSE, SLEEP, REFIT]
        case _:
            operations = [PAUSE, SLEEP, WAKE, REFIT]
    return [Case(operation, runtime, point) for operation in operations for runtime in Runtime]
