"""Row 52: health and readiness neither lie that all is well nor that nothing is."""

import time

import pytest

from steersman.engine import Role, Trust
from steersman_proxy.routing.request import RouteRequest
from tests.observation.support import CLOSED, engine_of, fleet_of, new_fleet, row
from tests.own.support import code_of, json_of, own_routes


async def test_row_52_a_no_engines():
    async with own_routes(fleet_of()) as own:
        for path in ("/health", "/health_generate", "/readiness"):
            assert code_of(await own(path)) == (503, "no_available_workers")
        assert (await own("/liveness")).status == 200


async def test_row_52_b_prefill_engines_alone_serve_nobody():
    async with own_routes(fleet_of(row("p", role=Role.PREFILL))) as own:
        assert (await own("/readiness")).status == 503
        assert (await own("/health")).status == 503
        assert (await own("/liveness")).status == 200


async def test_row_52_c_answered_at_once_however_busy_the_fleet_is():
    """1,500 open streams, and an engine that does not even exist: nobody is asked."""
    fleet = fleet_of(row("e1"))
    guards = [fleet.select(RouteRequest(pool="main")).guard for _ in range(1500)]
    async with own_routes(fleet) as own:
        started = time.perf_counter()
        for _ in range(20):
            assert (await own("/health")).status == 200
        assert time.perf_counter() - started < 0.1
    for guard in guards:
        guard.release()


async def test_row_52_d_an_engine_under_refit_is_no_reason_to_be_down_while_another_serves():
    async with own_routes(fleet_of(row("e1", gate=CLOSED), row("e2"))) as own:
        assert json_of(await own("/health")) == {"status": "ok", "usable": {"main": 1}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"paused": True}, "paused"),
        ({"released": ("weights",)}, "asleep"),
        ({"gate": CLOSED}, "gate_closed"),
        ({"trust": Trust.UNSYNCED}, "unsynced"),
        ({"failed": True}, "failed"),
    ],
)
async def test_the_reason_is_told(changes, reason):
    async with own_routes(fleet_of(row("e1", **changes))) as own:
        answer = await own("/health")
        assert code_of(answer) == (503, "no_available_workers")
        assert json_of(answer)["error"]["reasons"] == {reason: 1}
        assert dict(answer.headers)[b"retry-after"] == b"1"


async def test_an_old_version_is_usable():
    async with own_routes(fleet_of(row("e1", version="1"))) as own:
        assert (await own("/health")).status == 200


async def test_unhealthy_engines_are_not_usable():
    fleet = fleet_of(row("e1"))
    async with own_routes(fleet) as own:
        fleet.set_health(engine_of(fleet, "e1"), False)
        assert json_of(await own("/health"))["error"]["reasons"] == {"unhealthy": 1}
        fleet.set_health(engine_of(fleet, "e1"), True)
        assert (await own("/health")).status == 200


async def test_without_a_table_and_while_draining():
    async with own_routes(new_fleet()) as own:
        assert code_of(await own("/health")) == (503, "no_table")
        assert code_of(await own("/readiness")) == (503, "no_table")
        assert (await own("/liveness")).status == 200
    async with own_routes(fleet_of(row("e1"))) as own:
        own.draining = True
        assert code_of(await own("/readiness")) == (503, "draining")
        assert (await own("/health")).status == 200
        assert (await own("/liveness")).status == 200


async def test_with_rl_off_only_health_counts():
    fleet = fleet_of(row("e1", paused=True, gate=CLOSED), rl_enabled=False)
    async with own_routes(fleet) as own:
        assert (await own("/health")).status == 200
