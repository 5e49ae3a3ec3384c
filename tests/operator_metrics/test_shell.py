"""The metrics as the observer of a real shell."""

import logging
from typing import Any

import pytest

from steersman.clock import FakeClock
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.fleet.events import Elected, Tick
from steersman_operator.fleet.state import State, Timing
from steersman_operator.shell.fleet import FleetShell
from tests.operator_metrics.support import value


def shell_with(metrics: FleetMetrics, clock: FakeClock) -> FleetShell:
    nobody: Any = None  # no engine, no record: nothing is called and nothing written
    shell = FleetShell(clock=clock, engines=nobody, store=nobody, timing=Timing(), observer=metrics)
    metrics.watch(lambda: shell.state)
    return shell


def test_each_event_is_counted() -> None:
    clock = FakeClock()
    metrics = FleetMetrics(clock=clock)
    shell = shell_with(metrics, clock)
    assert value(metrics, "events_total", event="Tick") == 0
    shell.feed(Elected(now=shell.now, term=7))
    shell.feed(Tick(now=shell.now))
    shell.feed(Tick(now=shell.now))
    assert value(metrics, "events_total", event="Elected") == 1
    assert value(metrics, "events_total", event="Tick") == 2
    assert value(metrics, "leading") == 1
    assert value(metrics, "epoch", part="term") == 7


def test_a_fault_at_counting_does_not_stop_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    metrics = FleetMetrics(clock=clock)
    shell = shell_with(metrics, clock)
    wrong: Any = object()
    with caplog.at_level(logging.ERROR):
        metrics.stepped(State(), wrong, Tick(now=0.0), [wrong])
        metrics.stepped(State(), wrong, Tick(now=0.0), [wrong])
    assert metrics.faults == 2
    assert len(caplog.records) == 1, "once, not at every step"
    shell.feed(Elected(now=shell.now, term=7))
    assert value(metrics, "leading") == 1
