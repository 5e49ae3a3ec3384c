"""How a proxy follows its operator, as its metrics tell it."""

from steersman_proxy.metrics import ProxyMetrics
from tests.control.operators import FakeOperator, Stage
from tests.control.support import row, table
from tests.observation.test_metrics import value

STATES = ("down", "asking", "waiting", "joined")


def metrics_of(stage: Stage) -> ProxyMetrics:
    return ProxyMetrics(stage.fleet, rl_enabled=True, control=lambda: stage.follower.status)


def operators(metrics: ProxyMetrics) -> dict[str, float]:
    found = {state: value(metrics, "steersman_control_operators", state=state) for state in STATES}
    return {state: count for state, count in found.items() if count}


def joined(stage: Stage, name: str = "a", *, term: int = 1) -> FakeOperator:
    operator = stage.operator(name)
    operator.join(term)
    return operator


def test_before_any_operator_was_heard() -> None:
    stage = Stage()
    metrics = metrics_of(stage)
    stage.operator("a")
    assert value(metrics, "steersman_control_fresh") == 0
    assert value(metrics, "steersman_control_term") == 0
    assert value(metrics, "steersman_control_silent_seconds") is None
    assert value(metrics, "steersman_control_epoch", part="seq") is None
    assert operators(metrics) == {"down": 1}


def test_contact_that_is_made_and_lost() -> None:
    stage = Stage()
    metrics = metrics_of(stage)
    operator = joined(stage, term=4)
    assert value(metrics, "steersman_control_fresh") == 0, "it has no table yet"
    operator.sends(table(row("e1"), term=4))
    assert value(metrics, "steersman_control_fresh") == 1
    assert value(metrics, "steersman_control_term") == 4
    assert operators(metrics) == {"joined": 1}
    stage.pass_time(7.0)
    assert value(metrics, "steersman_control_silent_seconds") == 7
    assert value(metrics, "steersman_control_fresh") == 1
    stage.pass_time(4.0)
    assert value(metrics, "steersman_control_silent_seconds") == 11
    assert value(metrics, "steersman_control_fresh") == 0


def test_tables_and_what_is_wrong_with_them() -> None:
    stage = Stage()
    metrics = metrics_of(stage)
    operator = joined(stage)
    operator.sends(table(row("e1"), seq=3))
    assert value(metrics, "steersman_control_tables_applied_total") == 1
    assert value(metrics, "steersman_control_apply_seconds_count") == 1
    assert value(metrics, "steersman_table_epoch", part="seq") == 3
    operator.sends(table(seq=4))
    assert value(metrics, "steersman_control_nacks_total") == 1
    stage.follower.received(operator.link, b"\xc1")
    assert value(metrics, "steersman_control_bad_frames_total") == 1
    assert value(metrics, "steersman_table_epoch", part="seq") == 3
    assert value(metrics, "steersman_control_tables_applied_total") == 1


def test_another_leader() -> None:
    stage = Stage()
    metrics = metrics_of(stage)
    joined(stage, "a", term=1)
    joined(stage, "b", term=2)
    assert value(metrics, "steersman_control_term") == 2
    assert value(metrics, "steersman_control_reconnects_total") == 1
    assert operators(metrics) == {"joined": 1, "waiting": 1}


def test_a_connection_that_comes_back() -> None:
    stage = Stage()
    metrics = metrics_of(stage)
    operator = joined(stage)
    operator.sends(table(row("e1")))
    operator.disconnect()
    assert operators(metrics) == {"down": 1}
    assert value(metrics, "steersman_control_fresh") == 1, "the grant is not over"
    operator.join()
    assert operators(metrics) == {"joined": 1}
    assert value(metrics, "steersman_control_reconnects_total") == 1
