"""The proxy as a process: starting, leaving, dying."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from steersman_sim.engine import SimEngine
from tests.proxy.process import WITHIN, Proxy, proxy, row
from tests.proxy.support import TableFile

# --- leaving ------------------------------------------------------------------------------------------

STREAM = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 50}}


@contextlib.asynccontextmanager
async def open_stream(served: Proxy, engine: SimEngine) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that has begun and waits for its engine."""
    stepping = asyncio.create_task(engine.step(3))
    async with served.client.post(f"{served.url}/generate", json=STREAM) as answer:
        assert answer.status == 200
        assert (await answer.content.readline()).startswith(b"data: ")
        await stepping
        yield answer


async def finish(engine: SimEngine, answer: aiohttp.ClientResponse) -> bytes:
    """Let the engine make the rest, and read it."""
    stepping = asyncio.create_task(engine.step(100))
    try:
        return await answer.read()
    finally:
        stepping.cancel()
        await asyncio.wait([stepping])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_drains(tmp_path: Path, stepped: SimEngine, number: signal.Signals) -> None:
    """Not ready at once, still accepting for a while, then only what runs, then gone."""
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "1500ms", "grace": "60s"}}
    async with proxy(tmp_path, file.path, config=config) as served:
        async with open_stream(served, stepped) as answer:
            assert await served.status("/readyz") == 200
            async with served.client.get(f"{served.url}/liveness") as probe:
                assert "connection" not in probe.headers

            served.process.signal(number)
            await served.not_ready()

            # Load balancers need a moment to notice: what they send meanwhile is served.
            async with served.client.get(f"{served.url}/liveness") as probe:
                assert probe.status == 200
                # The next request comes by another connection, hence to another proxy.
                assert probe.headers["connection"] == "close"
            async with served.client.get(f"{served.url}/readiness") as probe:
                assert (probe.status, probe.headers["x-smg-error-code"]) == (503, "draining")
            assert await served.status("/livez") == 200
            host, port = served.url.removeprefix("http://").split(":")
            async with asyncio.timeout(WITHIN):
                while await can_connect(host, int(port)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

            # Nothing listens any more, and the stream that began before goes on to its end.
            assert served.process.running
            assert await served.status("/readyz") == 503
            rest = await finish(stepped, answer)
            assert rest.endswith(b"data: [DONE]\n\n")
        code, _ = await served.process.end()

        assert code == 0
        (entry,) = stepped.journal.of("/generate")
        assert not entry.disconnected
        assert "Traceback" not in served.process.log
        assert "still ran" not in served.process.log


async def can_connect(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return True


async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path, stepped: SimEngine) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "1h", "grace": "2h"}}
    async with (
        proxy(tmp_path, file.path, config=config) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGTERM)
        await served.not_ready()
        assert served.process.running

        served.process.signal(signal.SIGTERM)

        code, _ = await served.process.end()
        assert code == 0
        # The client sees a broken answer, not one that seems to be whole.
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        (entry,) = stepped.journal.of("/generate")
        await stepped.until(lambda: entry.disconnected)
        assert "Traceback" not in served.process.log


async def test_what_runs_longer_than_the_grace_time_is_cut(
    tmp_path: Path, stepped: SimEngine
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    config = {"shutdown": {"drain": "0s", "grace": "300ms"}}
    async with (
        proxy(tmp_path, file.path, config=config) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGTERM)

        code, _ = await served.process.end()
        assert code == 0
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        assert "1 requests still ran after the grace time" in served.process.log
        assert "Traceback" not in served.process.log


async def test_requests_that_wait_when_it_leaves_are_served_within_the_grace_time(
    tmp_path: Path, engine: SimEngine
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    config = {"shutdown": {"drain": "0s", "grace": "60s"}}
    async with proxy(tmp_path, file.path, config=config) as served:
        waiting = asyncio.create_task(served.generate())
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 1)
        served.process.signal(signal.SIGTERM)
        await served.not_ready()

        # Its engine opens in time: the request is served, as any that came before the signal.
        file.set("e0", control="active")

        assert await waiting == (200, "7")
        assert (await served.process.end())[0] == 0


@pytest.mark.parametrize("grace", ["300ms", "2h"])
async def test_requests_that_still_wait_at_the_end_are_told_to_ask_another_replica(
    tmp_path: Path, engine: SimEngine, grace: str
) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    config = {"shutdown": {"drain": "0s", "grace": grace}}
    async with proxy(tmp_path, file.path, config=config) as served:
        asking = [
            asyncio.create_task(served.client.post(f"{served.url}/generate", json={"text": "a"}))
            for _ in range(20)
        ]
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 20)

        served.process.signal(signal.SIGTERM)
        if grace == "2h":
            await served.not_ready()
            served.process.signal(signal.SIGTERM)

        for answer in await asyncio.gather(*asking):
            async with answer:
                assert (answer.status, answer.headers["x-smg-error-code"]) == (503, "draining")
                assert answer.headers["retry-after"]
                assert "was not sent" in (await answer.json())["error"]["message"]
        assert (await served.process.end())[0] == 0
        assert engine.journal.count == 0


async def test_killed_it_leaves_no_work_behind(tmp_path: Path, stepped: SimEngine) -> None:
    file = TableFile(tmp_path / "table.yaml", [row(stepped)])
    async with (
        proxy(tmp_path, file.path) as served,
        open_stream(served, stepped) as answer,
    ):
        served.process.signal(signal.SIGKILL)

        assert (await served.process.end())[0] == -signal.SIGKILL
        (entry,) = stepped.journal.of("/generate")
        await stepped.until(lambda: entry.disconnected and stepped.connections == 0)
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_the_usual_limit_of_open_files_limits_no_trainer(
    tmp_path: Path, engine: SimEngine
) -> None:
    """Shells give 1,024 files, and a request takes two. Here it is 64, to make the test small."""
    file = TableFile(tmp_path / "table.yaml", [row(engine, control="paused")])
    async with proxy(tmp_path, file.path, files=64) as served:
        requests = [asyncio.create_task(served.generate()) for _ in range(200)]
        await served.becomes(lambda page: page["pools"][0]["hold"]["depth"] == 200)
        file.set("e0", control="active")

        assert set(await asyncio.gather(*requests)) == {(200, "7")}
