import asyncio

import msgspec
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from steersman_sim.demo.options import DemoError
from steersman_sim.demo.proxy_status import FleetStatus, ProxyWatch, Status, held_total
from steersman_sim.demo.records import NEW, OLD
from tests.demo.made_up import URLS, records

URL = URLS["engine-1"]


def page(
    *, is_open: bool = True, in_flight: int = 0, depth: int = 0, version: str | None = OLD
) -> dict:
    """What one proxy says of engine-1."""
    return {
        "table": {"epoch": "1.1", "source": "ignored"},
        "pools": [
            {
                "hold": {"depth": depth, "bytes": 0},
                "engines": [
                    {
                        "id": "127.0.0.1:9001",
                        "url": URL,
                        "gate": {"open": is_open, "count": 1},
                        "control": "active",
                        "version": version,
                        "in_flight": in_flight,
                    }
                ],
            }
        ],
    }


def fleet_status(*pages: dict) -> FleetStatus:
    """What several proxies say."""
    return FleetStatus(tuple(msgspec.convert(one, Status) for one in pages))


@pytest.fixture
async def pages():
    """The answers of two proxies, which a test may change."""
    return {"one": page(), "two": page()}


@pytest.fixture
async def watch(pages):
    async def status(request):
        return web.json_response(pages[request.match_info["proxy"]])

    async def metrics(_):
        return web.Response(text='steersman_hold_seconds_count{pool="a"} 12.0\n')

    app = web.Application()
    app.router.add_get("/{proxy}/status", status)
    app.router.add_get("/{proxy}/metrics", metrics)
    async with TestServer(app) as server, ClientSession() as session:
        yield ProxyWatch([str(server.make_url(f"/{name}")) for name in pages], session=session)


def test_the_count_of_held_requests_is_read_from_the_metrics():
    text = (
        "# HELP steersman_hold_seconds x\n"
        'steersman_hold_seconds_bucket{le="0.1",pool="a"} 3.0\n'
        'steersman_hold_seconds_count{pool="a"} 12.0\n'
        'steersman_hold_seconds_count{pool="b"} 3.0\n'
    )
    assert held_total(text) == 15
    assert held_total("") == 0


def test_what_waits_and_runs_is_summed_over_the_proxies():
    status = fleet_status(page(depth=4, in_flight=1), page(depth=2, in_flight=3))
    assert status.held == 6
    assert status.in_flight(URL) == 4
    assert status.in_flight("http://127.0.0.1:9") == 0


def test_a_gate_is_open_until_the_last_proxy_has_closed_it():
    status = fleet_status(page(), page(is_open=False))
    assert status.some_gate(URL, is_open=True)
    assert status.some_gate(URL, is_open=False)
    assert not status.all_open(URL)
    assert not fleet_status(page(is_open=False), page(is_open=False)).some_gate(URL, is_open=True)
    assert fleet_status(page(), page()).all_open(URL)


def test_a_version_counts_when_every_proxy_has_it():
    assert fleet_status(page(version=NEW), page(version=NEW)).all_open(URL, version=NEW)
    assert not fleet_status(page(version=NEW), page(version=OLD)).all_open(URL, version=NEW)
    assert not fleet_status(page(), {"pools": []}).all_open(URL), "one does not know the engine"
    assert fleet_status(page(version=None), page()).version(URL) == OLD


async def test_waiting_for_a_status(watch, pages):
    run = records()
    task = asyncio.create_task(watch.watch(run))
    try:
        waiting = asyncio.create_task(
            watch.until(lambda status: status.held == 5, what="hold", within=10)
        )
        await watch.until(lambda _: True, what="answer", within=10)
        assert not waiting.done()
        pages["one"], pages["two"] = page(depth=2), page(depth=3)
        await waiting
        assert watch.last.held == 5
        assert run.held[-1].count == 5
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_status_that_does_not_come_is_an_error(watch):
    with pytest.raises(DemoError, match=r"the proxies did not take up the table within 0\.1 s"):
        await watch.until(lambda _: True, what="take up the table", within=0.1)


async def test_a_proxy_that_does_not_answer_is_an_error(watch, pages):
    pages["two"] = {"unexpected": True}
    with pytest.raises(DemoError, match="/two/status cannot be read"):
        await watch.watch(records())


async def test_what_has_waited_is_summed_over_the_proxies(watch):
    assert await watch.held_total() == 24
