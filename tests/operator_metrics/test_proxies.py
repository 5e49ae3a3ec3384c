"""Acknowledgements: how long they take, and who is behind."""

import msgspec
import pytest

from steersman.engine import Control
from steersman_operator.fleet.events import ProxiesRequired, ProxyJoined, ProxyLost
from tests.fleet.support import ref
from tests.operator_metrics.support import Counted

PAUSED = Control.PAUSED


def test_the_last_of_the_proxies_shows_in_the_lag() -> None:
    bench = Counted(proxies="xyz")
    assert bench.value("proxies_required") == 3
    assert bench.value("proxies_acked") == 3
    assert bench.value("ack_lag_seconds") == 0
    bench.quiet.add("y")
    bench.want(PAUSED)
    bench.run(7)
    assert bench.value("proxies_acked") == 2
    assert bench.value("ack_lag_seconds") == 7
    bench.release()
    bench.run(1)
    assert bench.value("ack_lag_seconds") == 0


def test_each_acknowledgement_is_measured_from_the_publishing_of_its_table() -> None:
    bench = Counted(proxies="xy")
    bench.run(2)
    count, total = bench.value("ack_seconds_count"), bench.value("ack_seconds_sum")
    assert count is not None
    assert total is not None
    bench.want(PAUSED)
    bench.now += 0.5
    bench.ack("x")
    bench.ack("x")
    bench.now += 1.5
    bench.ack("y")
    assert bench.value("ack_seconds_count") == count + 2
    assert bench.value("ack_seconds_sum") == pytest.approx(total + 0.5 + 2.0)


def test_a_proxy_that_follows_slowly_is_behind_since_the_first_table_that_it_lacks() -> None:
    bench = Counted("ab", proxies="x")
    bench.quiet.add("x")
    first = bench.state.epoch
    bench.want(overrides={"a": PAUSED})
    second = bench.state.epoch
    bench.now += 10
    bench.want(overrides={"a": PAUSED, "b": PAUSED})
    bench.now += 5
    assert bench.value("ack_lag_seconds") == 15
    bench.ack("x", second)
    assert first < second < bench.state.epoch
    assert bench.value("ack_lag_seconds") == 5
    bench.ack("x")
    assert bench.value("ack_lag_seconds") == 0


def test_a_proxy_that_comes_late_is_not_behind_for_as_long_as_the_table_is_old() -> None:
    bench = Counted(proxies="x")
    bench.run(100)
    bench.join("late")
    bench.now += 3
    assert bench.value("ack_lag_seconds") == 3
    bench.ack("late")
    assert bench.value("ack_lag_seconds") == 0
    # Nor one that says hello again.
    bench.now += 50
    bench.do(ProxyJoined(now=bench.now, proxy=ref("x")))
    assert bench.value("ack_lag_seconds") == 0
    bench.now += 2
    assert bench.value("ack_lag_seconds") == 2


def test_a_proxy_that_exists_and_never_connects_is_behind() -> None:
    bench = Counted(proxies="x")
    bench.require(ref("ghost"))
    bench.run(20)
    assert bench.value("proxies_required") == 2
    assert bench.value("proxies_connected") == 1
    assert bench.value("ack_lag_seconds") == 20
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x"),)))
    assert bench.value("ack_lag_seconds") == 0


def test_a_lost_connection_is_neither_death_nor_lag() -> None:
    bench = Counted(proxies="xy")
    bench.do(ProxyLost(now=bench.now, proxy=ref("x")))
    bench.now += 30
    assert bench.value("proxies_required") == 2
    assert bench.value("proxies_connected") == 1
    assert bench.value("proxies_acked") == 2
    assert bench.value("ack_lag_seconds") == 0


def test_a_disputed_proxy_counts_as_behind() -> None:
    bench = Counted(proxies="x")
    bench.require()
    assert bench.value("proxies_disputed") == 0
    bench.do(ProxiesRequired(now=bench.now, proxies=(ref("x", "2"),)))
    bench.now += 4
    assert bench.value("proxies_disputed") == 1
    assert bench.value("proxies_acked") == 0
    assert (bench.value("ack_lag_seconds") or 0) > 0


def test_nobody_is_behind_a_table_that_was_not_published() -> None:
    bench = Counted(proxies="x", started=False)
    bench.require()
    bench.now += 100
    assert bench.value("published") == 0
    assert bench.value("proxies_acked") == 0
    assert bench.value("ack_lag_seconds") == 0


def test_moments_of_old_tables_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steersman_operator.api.metrics.acks.REMEMBERED", 8)
    bench = Counted("ab", proxies="xy")
    bench.quiet.add("y")
    for number in range(40):
        bench.want(overrides={"a": (PAUSED, Control.ACTIVE)[number % 2]})
        bench.run(3)
    acks = bench.metrics._acks
    assert len(acks._published) <= 8
    assert len(acks._joined) <= 2
    lag = bench.value("ack_lag_seconds")
    assert lag is not None
    assert lag >= 3
    for number in range(40):
        bench.join(f"guest-{number}")
        bench.require()
        bench.proxies.pop(f"guest-{number}")
        bench.require()
    assert len(acks._joined) <= 3


def test_the_brake_shows_and_counts() -> None:
    bench = Counted("abcdef")
    spec = bench.pool
    bench.want(engines=())
    assert bench.value("brake_active") == 1
    assert bench.value("brake_engages_total") == 1
    assert bench.value("engines_by_phase", pool="pool", phase="Leaving") == 6
    bench.pool = msgspec.structs.replace(spec, generation=9)
    bench.want()
    assert bench.value("brake_active") == 0
    bench.want(engines=())
    bench.run(20)
    assert bench.value("brake_active") == 0
    assert bench.value("brake_engages_total") == 2
    assert bench.value("gate_closures_total", pool="pool", reason="removed") == 6


def test_what_others_do_closes_the_gate_for_that_reason() -> None:
    bench = Counted("abc")
    bench.truths["a"].paused = True
    bench.truths["b"].answers = False
    bench.run(10)
    assert bench.closures() == {"external": 1, "unreachable": 1}
    assert bench.value("gates_open", pool="pool") == 1
    assert (bench.value("looks_failed_total", pool="pool") or 0) >= 3
    looks = bench.value("looks_total", pool="pool")
    assert looks is not None
    assert looks > (bench.value("looks_failed_total", pool="pool") or 0)
