"""Real proxy processes that follow an operator, among them one that is stopped for a while."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from steersman.engine import EngineRow, Trust
from steersman.settings import PoolSettings
from steersman.table import Epoch, PoolRow, Table
from steersman_proxy import app as proxy_app
from steersman_proxy.app import ProxyApp
from steersman_proxy.settings import ControlSettings, ProxySettings
from tests.control.support import Journal, World, until
from tests.http.fake_engine import OK, always, fake_engine
from tests.proxy.process import Proxy, run, steersman


@contextlib.asynccontextmanager
async def following(tmp_path: Path, *flags: str) -> AsyncIterator[Proxy]:
    arguments = ["--port", "0", "--metrics-port", "0", *flags]
    async with (
        steersman(tmp_path, "proxy", *arguments) as process,
        aiohttp.ClientSession() as client,
    ):
        line = await process.line()
        assert line, process.log
        yield Proxy(process, line, client)


def table_of(url: str, *, seq: int = 1, fence: bool = False) -> Table:
    return Table(
        epoch=Epoch(1, seq),
        pools=(PoolRow(name="p", models=("m",), settings=PoolSettings(fence=fence)),),
        engines=(EngineRow(id="e0", url=url, pool="p", trust=Trust.VERIFIED),),
    )


async def post(proxy: Proxy) -> tuple[int, str | None]:
    async with proxy.client.post(f"{proxy.url}/generate", data=b"{}") as answer:
        return answer.status, answer.headers.get("x-smg-error-code")


def sharing(tmp_path: Path) -> ProxyApp:
    """A proxy on a shared port whose operator never comes."""
    return ProxyApp(
        ProxySettings(
            host="127.0.0.1",
            port=0,
            metrics_host="127.0.0.1",
            metrics_port=0,
            reuse_port=True,
            drain=0.0,
            control=ControlSettings(addresses=(f"ipc://{tmp_path}/nobody",)),
        )
    )


async def test_a_proxy_on_a_shared_port_that_is_told_no_table_says_so_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_app, "FIRST_TABLE", 0.1)
    async with sharing(tmp_path) as app, aiohttp.ClientSession() as client:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with client.post(f"{app.url}/generate", data=b"{}") as answer:
                        assert answer.headers["x-smg-error-code"] == "no_table"
                        break
                await asyncio.sleep(0.02)


async def test_a_proxy_on_a_shared_port_ends_before_its_first_table(tmp_path: Path) -> None:
    async with sharing(tmp_path) as app, aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.post(f"{app.url}/generate", data=b"{}")
        async with asyncio.timeout(5):
            await app.drain()


async def test_a_proxy_is_ready_with_its_first_table_and_shows_whom_it_follows(
    tmp_path: Path, place: World, journal: Journal
) -> None:
    server = await place.server(journal)
    async with (
        fake_engine(always(OK)) as engine,
        following(tmp_path, "--control", server.endpoints[0]) as proxy,
    ):
        assert await proxy.status("/livez") == 200
        assert await proxy.status("/readyz") == 503
        assert await post(proxy) == (503, "no_table")

        server.publish(table_of(engine.url), urgent=True)
        await journal.until("acked")

        assert await proxy.status("/readyz") == 200
        assert await post(proxy) == (200, None)
        page = await proxy.page()
        assert page["control"]["leader"] == server.endpoints[0]
        assert page["control"]["epoch"] == "1.1"
        assert page["control"]["fresh"] is True
        assert page["table"]["source"] == server.endpoints[0]
        assert page["table"]["digest"] == table_of(engine.url).digest()
        async with proxy.client.get(f"{proxy.metrics_url}/metrics") as answer:
            series = (await answer.text()).splitlines()
        for line in (
            "steersman_control_fresh 1.0",
            "steersman_control_tables_applied_total 1.0",
            "steersman_control_nacks_total 0.0",
            "steersman_control_reconnects_total 0.0",
            "steersman_control_apply_seconds_count 1.0",
            "steersman_requests_cut_total 0.0",
        ):
            assert line in series, line

        proxy.process.signal(signal.SIGTERM)
        proxy.process.signal(signal.SIGTERM)  # in a hurry
        await proxy.process.end()
        await journal.until("lost")


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_an_engines_answer_says_of_its_version_reaches_the_operator(
    tmp_path: Path, place: World, journal: Journal, streaming: bool
) -> None:
    said = b'{"meta_info":{"weight_version":"8"}}'
    kind = b"text/event-stream" if streaming else b"application/json"
    body = b"data: %b\n\n" % said if streaming else said
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    server = await place.server(journal)
    async with (
        fake_engine(always(head % (kind, len(body)) + body)) as engine,
        following(tmp_path, "--control", server.endpoints[0]) as proxy,
    ):
        table = table_of(engine.url)
        row = msgspec.structs.replace(table.engines[0], version="7")
        server.publish(msgspec.structs.replace(table, engines=(row,)), urgent=True)
        await journal.until("acked")

        for _ in range(3):
            assert await post(proxy) == (200, None)
        await journal.until("seen")

        ((_, name, version),) = journal.of("seen")
        assert (name, version) == ("e0", "8")


async def test_a_fenced_proxy_that_was_stopped_starts_nothing_by_its_old_table(
    tmp_path: Path, place: World, journal: Journal
) -> None:
    """The operator has counted it out meanwhile, and put the engine to sleep."""
    server = await place.server(journal, grant=0.5)
    async with (
        fake_engine(always(OK)) as engine,
        following(tmp_path, "--control", server.endpoints[0]) as proxy,
    ):
        server.publish(table_of(engine.url, fence=True), urgent=True)
        await journal.until("acked")
        assert await post(proxy) == (200, None)

        proxy.process.signal(signal.SIGSTOP)
        await journal.until("lost")
        waiting = asyncio.create_task(post(proxy))  # is in its socket when it goes on
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - began > 0.5, "the end of the grant")
        served = len(engine.received)
        await server.close()  # so that nothing makes it fresh again
        proxy.process.signal(signal.SIGCONT)

        assert await waiting == (503, "control_stale")
        assert len(engine.received) == served


async def test_both_sources_or_none_are_refused(tmp_path: Path) -> None:
    code, _, said = await run(tmp_path, "proxy")
    assert code != 0
    assert "--control" in said

    (tmp_path / "t.yaml").write_text("pools: []\n")
    code, _, said = await run(tmp_path, "proxy", "--table", "t.yaml", "--control", "ipc:///x")
    assert code != 0
    assert "table.file" in said

    code, _, said = await run(tmp_path, "proxy", "--control", "tcp://127.0.0.1:1")
    assert code != 0
    assert "control.serverKeyFile" in said

    code, _, said = await run(tmp_path, "proxy", "--control", "http://127.0.0.1:1")
    assert code != 0
    assert "tcp://host:port" in said
