"""A bench whose steps are counted, and its exposition as numbers."""

from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.fleet.commands import Command
from steersman_operator.fleet.events import Event, Tick
from steersman_operator.fleet.state import State
from tests.fleet.support import Bench

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

OPERATOR = "steersman_operator_"


def read(metrics: FleetMetrics) -> Series:
    """All samples by name (of ours without the prefix) and labels, each of which is there once."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    found: Series = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            key = (sample.name.removeprefix(OPERATOR), tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(metrics: FleetMetrics, name: str, **labels: str) -> float | None:
    return read(metrics).get((name, tuple(sorted(labels.items()))))


def nonzero(metrics: FleetMetrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a series that are not zero, by the values of their labels, sorted by name."""
    return {
        tuple(text for _, text in labels): number
        for (found, labels), number in read(metrics).items()
        if found == name and number
    }


class BenchClock:
    """The time of a bench."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def now(self) -> float:
        return self._now()


class Counted(Bench):
    """Every step is counted."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.metrics = FleetMetrics(clock=BenchClock(lambda: self.now))
        self.metrics.watch(lambda: self.state)
        super().__init__(*args, **more)

    def do(self, event: Event) -> list[Command]:
        before = self.state
        commands = super().do(event)
        self.metrics.stepped(before, self.state, event, commands)
        assert self.metrics.faults == 0
        return commands

    # --- what was counted -------------------------------------------------------------------------

    def finished(self, kind: str | None = None) -> dict[str, float]:
        """How operations of a kind ended."""
        found: dict[str, float] = {}
        for (one, outcome, _), count in nonzero(self.metrics, "operations_finished_total").items():
            if kind in (None, one):
                found[outcome] = found.get(outcome, 0) + count
        return found

    def started(self) -> dict[str, float]:
        counts = nonzero(self.metrics, "operations_started_total")
        return {kind: count for (kind, _), count in counts.items()}

    def under_way(self) -> dict[str, float]:
        counts = nonzero(self.metrics, "operations_under_way")
        return {kind: count for (kind, _), count in counts.items()}

    def closures(self) -> dict[str, float]:
        counts = nonzero(self.metrics, "gate_closures_total")
        return {reason: count for (_, reason), count in counts.items()}

    def value(self, name: str, **labels: str) -> float | None:
        return value(self.metrics, name, **labels)


def text(bench: Counted) -> str:
    """The exposition as it is."""
    return bench.metrics.render()[0].decode()


def attach(metrics: FleetMetrics, state: State) -> None:
    """Begin to count a fleet that is there already."""
    metrics.stepped(State(), state, Tick(now=state.now), [])


def balanced(metrics: FleetMetrics, state: State) -> None:
    """What is counted agrees with the state, and with itself."""
    assert metrics.faults == 0
    series = read(metrics)

    def total(name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(
            number
            for (found, has), number in series.items()
            if found == name and wanted <= set(has)
        )

    assert {
        dict(labels)["pool"] for (_, labels) in series if "pool" in dict(labels)
    } == state.pools.keys()
    for pool in state.pools:
        members = [engine for engine in state.engines.values() if engine.pool == pool]
        moving = [engine.op for engine in members if engine.op is not None]
        assert total("engines", pool=pool) == len(members)
        assert total("engines_by_phase", pool=pool) == len(members)
        for phase in {operation.phase for operation in moving}:
            count = sum(operation.phase is phase for operation in moving)
            assert total("engines_by_phase", pool=pool, phase=phase.value) == count
        assert total("operations_under_way", pool=pool) == len(moving)
        for kind in ("pause", "resume", "sleep", "wake"):
            under_way = total("operations_under_way", pool=pool, kind=kind)
            ended = total("operations_finished_total", pool=pool, kind=kind)
            assert total("operations_started_total", pool=pool, kind=kind) == ended + under_way
        gates = total("gates_open", pool=pool)
        assert gates == sum(engine.gate.open for engine in members)
        closed = total("gate_closures_total", pool=pool)
        assert total("gate_openings_total", pool=pool) - closed == gates
    goals = {name: running.goal for name, running in metrics._operations.running.items()}
    assert goals == {
        name: engine.op.goal for name, engine in state.engines.items() if engine.op is not None
    }
    assert total("epoch", part="seq") == state.epoch.seq
    assert total("proxies_required") == len(state.proxies)
    assert total("proxies_acked") <= total("proxies_required")
    assert total("ack_lag_seconds") >= 0
    for (name, labels), number in series.items():
        assert number >= 0 or name.startswith("process_"), (name, labels)
