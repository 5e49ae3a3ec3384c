import asyncio

import msgspec
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from steersman_sim.demo.options import DemoError
from steersman_sim.demo.proxy_status import ProxyWatch, Status, held_total
from tests.demo.made_up import records


def page(*, seq: int, is_open: bool = True, in_flight: int = 0, depth: int = 0) -> dict:
    return {
        "table": {"epoch": f"0.{seq}", "source": "ignored"},
        "pools": [
            {
                "hold": {"depth": depth, "bytes": 0},
                "engines": [
                    {
                        "id": "engine-1",
                        "gate": {"open": is_open, "count": 1},
                        "control": "active",
                        "version": "7",
                        "in_flight": in_flight,
                    }
                ],
            }
        ],
    }


@pytest.fixture
async def pages():
    """The proxy's answers, which a test may change; ``None`` is a broken one."""
    return {"/status": page(seq=1)}


@pytest.fixture
async def watch(pages):
    async def status(_):
        return web.json_response(pages["/status"])

    app = web.Application()
    app.router.add_get("/status", status)
    async with TestServer(app) as server, ClientSession() as session:
        yield ProxyWatch(str(server.make_url("")).rstrip("/"), session=session)


def test_the_count_of_held_requests_is_read_from_the_metrics():
    text = (
        "# HELP steersman_hold_seconds x\n"
        'steersman_hold_seconds_bucket{le="0.1",pool="a"} 3.0\n'
        'steersman_hold_seconds_count{pool="a"} 12.0\n'
        'steersman_hold_seconds_count{pool="b"} 3.0\n'
    )
    assert held_total(text) == 15
    assert held_total("") == 0


def test_a_status_is_looked_up_by_engine():
    status = msgspec.convert(page(seq=3, depth=4), Status)
    assert status.held == 4
    assert status.engine("engine-1").in_flight == 0
    assert status.engine("engine-9") is None


async def test_waiting_for_a_status(watch, pages):
    run = records()
    task = asyncio.create_task(watch.watch(run))
    try:
        waiting = asyncio.create_task(
            watch.until(lambda status: status.table.epoch == "0.2", what="reload", within=10)
        )
        await watch.until(lambda _: True, what="answer", within=10)
        assert not waiting.done()
        pages["/status"] = page(seq=2, depth=5)
        await waiting
        assert watch.epoch == "0.2"
        assert run.held[-1].count == 5
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_status_that_does_not_come_is_an_error(watch):
    with pytest.raises(DemoError, match=r"the proxy did not take up the table within 0\.1 s"):
        await watch.until(lambda _: True, what="take up the table", within=0.1)


async def test_a_proxy_that_does_not_answer_is_an_error(watch, pages):
    pages["/status"] = {"unexpected": True}
    with pytest.raises(DemoError, match="/status cannot be read"):
        await watch.watch(records())
