"""The series of the control socket, with a real one."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from steersman.clock import FakeClock
from steersman.control import Hello, RejectCode, encode
from steersman.table import Epoch
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.control.stats import ControlStats, SessionStats
from steersman_operator.fleet.events import ProxyRef
from steersman_operator.fleet.state import State
from tests.control.support import Journal, World, row, table, world
from tests.control.test_hostile import stranger
from tests.operator_metrics.support import nonzero, value


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ctl") as name:
        yield Path(name)


@pytest.fixture
async def place(short_path: Path) -> AsyncIterator[World]:
    async with world(short_path) as made:
        yield made


async def test_a_hostile_frame_is_seen_in_the_exposition(place: World) -> None:
    journal = Journal()
    server = await place.server(journal)
    server.publish(table(row("a")), urgent=True)
    metrics = FleetMetrics(clock=FakeClock())
    metrics.watch(State, lambda: server.stats)
    assert value(metrics, "control_bad_frames_total") == 0
    async with stranger(server.endpoints[0]) as peer:
        await peer.says(b"\xc1 not a message")
        await peer.hears()
        await peer.says(encode(Hello(99, 99, "future", "b")))
        await peer.hears()
    assert value(metrics, "control_bad_frames_total") == 1
    assert nonzero(metrics, "control_rejects_total") == {
        ("operator", "malformed"): 1,
        ("operator", "bad_proto"): 1,
    }
    client = await place.client(server.endpoints[0], uid="p", insecure=True)
    await journal.until("acked", "p")
    assert nonzero(metrics, "control_sessions") == {("live",): 1}
    assert value(metrics, "control_tables_total") == 1
    assert value(metrics, "control_snapshots_total") == 1
    await client.close()
    async with asyncio.timeout(20):
        await journal.until("lost", "p")
    assert nonzero(metrics, "control_sessions") in ({}, {("silent",): 1})
    assert value(metrics, "control_lost_total") == 1


def stats(**changes: object) -> ControlStats:
    facts: dict[str, object] = {
        "leading": True,
        "term": 3,
        "epoch": Epoch(3, 1),
        "sessions": (),
        "tables": 1,
        "snapshots": 2,
        "resends": 3,
        "unsendable": 4,
        "reconnects": 5,
        "nacks": 6,
        "bad_frames": 7,
        "rejects": {},
        "lost": 8,
    }
    return ControlStats(**(facts | changes))


def session(uid: str, **changes: object) -> SessionStats:
    facts: dict[str, object] = {
        "ref": ProxyRef(uid=uid, boot="b"),
        "address": None,
        "build": "1",
        "acked": None,
        "lag": 0.0,
        "ack_seconds": None,
        "silent": 0.0,
        "lost": False,
        "leaving": False,
        "loop_lag": 0.0,
    }
    return SessionStats(**(facts | changes))


def shown(given: ControlStats) -> FleetMetrics:
    metrics = FleetMetrics(clock=FakeClock())
    metrics.watch(State, lambda: given)
    return metrics


def test_each_number_has_its_series() -> None:
    metrics = shown(stats())
    names = "tables snapshots resends unsendable reconnects nacks bad_frames lost".split()
    for number, name in enumerate(names, start=1):
        assert value(metrics, f"control_{name}_total") == number


def test_sessions_by_state_and_the_worst_loop() -> None:
    sessions = (
        session("a", loop_lag=0.2),
        session("b", leaving=True, loop_lag=1.5),
        session("c", lost=True, leaving=True),
    )
    metrics = shown(stats(sessions=sessions))
    assert nonzero(metrics, "control_sessions") == {
        ("live",): 1,
        ("leaving",): 1,
        ("silent",): 1,
    }
    assert value(metrics, "control_loop_lag_seconds") == 1.5


def test_refusals_of_both_sides_are_told_apart() -> None:
    metrics = shown(stats(rejects={"not_leader": 2, "by_proxy_stale": 3}))
    assert nonzero(metrics, "control_rejects_total") == {
        ("operator", "not_leader"): 2,
        ("proxy", "stale"): 3,
    }
    for code in RejectCode:
        assert value(metrics, "control_rejects_total", by="operator", code=code.value) is not None


def test_without_a_control_socket_its_series_are_absent() -> None:
    metrics = FleetMetrics(clock=FakeClock())
    assert value(metrics, "control_bad_frames_total") is None
    assert value(metrics, "leading") == 0
