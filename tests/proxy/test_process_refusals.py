"""What a proxy process tells of requests that are no HTTP."""

import asyncio
import re
from pathlib import Path

import pytest

from steersman_sim.engine import SimEngine
from tests.proxy.process import WITHIN, Proxy, proxy, row
from tests.proxy.support import TableFile


async def answer_to(served: Proxy, sent: bytes) -> bytes:
    """All that comes for these bytes."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(WITHIN):
            return await reader.read()
    finally:
        writer.transport.abort()


async def logged(served: Proxy, pattern: str) -> None:
    """Wait for something in the log, which a thread of the proxy writes."""
    async with asyncio.timeout(WITHIN):
        while re.search(pattern, served.process.log) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("adapter", ["splice", "aiohttp"])
async def test_what_is_refused_is_in_the_log_and_in_the_metrics(
    tmp_path: Path, engine: SimEngine, adapter: str
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine)])
    config = {"listen": {"adapter": adapter}}
    sent = {
        b"\x16\x03\x01\x02\x00": ("-", "-", 400, "tls"),
        b"GET /health?key=secret HTTP/1.1\r\nHost : p\r\n\r\n": ("GET", "/health", 400, "header"),
        b"PRI * HTTP/2.0\r\n\r\n": ("PRI", "-", 505, "version"),
    }
    async with proxy(tmp_path, file.path, config=config) as served:
        for request in sent:
            assert (await answer_to(served, request)).startswith(b"HTTP/1.1 ")
        async with served.client.get(f"{served.metrics_url}/metrics") as answer:
            metrics = await answer.text()
        for method, path, status, fault in sent.values():
            assert f'steersman_malformed_requests_total{{fault="{fault}"}} 1.0' in metrics
            line = f" method={method} path={path} route=unknown status={status} outcome=rejected "
            await logged(served, re.escape(line))
        assert "secret" not in served.process.log
