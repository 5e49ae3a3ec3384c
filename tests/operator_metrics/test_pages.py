"""The metrics port at a real socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession

from steersman.clock import FakeClock
from steersman_operator.api.metrics import FleetMetrics
from steersman_operator.api.pages import MetricsPages


class Place:
    """The pages, and a client of them."""

    def __init__(self, pages: MetricsPages, session: ClientSession) -> None:
        self.pages = pages
        self.session = session

    async def ask(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Status, media type, body."""
        async with self.session.request(method, self.pages.url + path) as answer:
            return answer.status, answer.content_type, await answer.text()


@asynccontextmanager
async def place(
    *, host: str = "127.0.0.1", ready: Callable[[], bool] = lambda: True
) -> AsyncIterator[Place]:
    pages = MetricsPages(FleetMetrics(clock=FakeClock()), host=host, port=0, ready=ready)
    await pages.start()
    try:
        async with ClientSession() as session:
            yield Place(pages, session)
    finally:
        await pages.close()


async def test_metrics_are_text_for_get_and_nothing_for_head() -> None:
    async with place() as here:
        status, kind, body = await here.ask("/metrics")
        assert (status, kind) == (200, "text/plain")
        assert "steersman_operator_leading 0.0" in body
        status, kind, body = await here.ask("/metrics", "HEAD")
        assert (status, kind, body) == (200, "text/plain", "")


async def test_openmetrics_is_offered_to_those_who_ask() -> None:
    async with place() as here:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with here.session.get(here.pages.url + "/metrics", headers=accept) as answer:
            assert answer.content_type == "application/openmetrics-text"
            assert (await answer.text()).rstrip().endswith("# EOF")


async def test_live_at_once_and_ready_once_it_is() -> None:
    ready = False
    async with place(ready=lambda: ready) as here:
        assert (await here.ask("/livez"))[0] == 200
        status, kind, body = await here.ask("/readyz")
        assert (status, kind) == (503, "application/json")
        error = json.loads(body)["error"]
        assert error["code"] == "not_ready"
        assert "has not published a table yet" in error["message"]
        assert (await here.ask("/readyz", "HEAD"))[0] == 503
        ready = True
        assert (await here.ask("/readyz"))[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics/", "/v1/status", "/%00"])
async def test_other_pages_are_404_in_json(path: str) -> None:
    async with place() as here:
        status, kind, body = await here.ask(path)
    assert (status, kind) == (404, "application/json")
    assert json.loads(body)["error"]["code"] == "unknown_url"


async def test_other_methods_are_405_in_json() -> None:
    async with place() as here:
        status, kind, body = await here.ask("/metrics", "POST")
    assert (status, kind) == (405, "application/json")
    assert "GET, HEAD" in json.loads(body)["error"]["message"]


async def test_a_fault_of_a_page_is_no_silence() -> None:
    def broken() -> bool:
        raise RuntimeError("boom")

    async with place(ready=broken) as here:
        status, kind, body = await here.ask("/readyz")
        assert (status, kind) == (500, "application/json")
        assert "boom" not in body
        assert (await here.ask("/livez"))[0] == 200


async def test_a_taken_port_is_named_with_the_remedy() -> None:
    metrics = FleetMetrics(clock=FakeClock())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        pages = MetricsPages(metrics, host="127.0.0.1", port=port, ready=lambda: True)
        with pytest.raises(OSError, match=f"metrics on 127.0.0.1:{port}: another process"):
            await pages.start()
        await pages.close()


async def test_a_host_that_does_not_exist_is_named() -> None:
    metrics = FleetMetrics(clock=FakeClock())
    pages = MetricsPages(metrics, host="192.0.2.1", port=1, ready=lambda: True)
    with pytest.raises(OSError, match=r"metrics on 192\.0\.2\.1:1: [A-Z]"):
        await pages.start()


async def test_an_ipv6_address_makes_a_url() -> None:
    try:
        async with place(host="::1") as here:
            assert here.pages.url.startswith("http://[::1]:")
            assert (await here.ask("/livez"))[0] == 200
    except OSError:
        pytest.skip("there is no IPv6 here")


async def test_closing_does_not_wait_for_who_says_nothing() -> None:
    async with place() as here:
        host, _, port = here.pages.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        await writer.drain()
        assert (await here.ask("/livez"))[0] == 200
        async with asyncio.timeout(20):
            await here.pages.close()
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        with pytest.raises(OSError):  # noqa: PT011 - refused in one way or another
            await asyncio.open_connection(host, int(port))
