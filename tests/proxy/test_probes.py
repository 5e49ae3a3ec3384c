"""Readiness and health say the truth, whatever the engines and the load are (field failure 52).

sglang#12248, production-stack#448 and #749, rllm#926, sglang#22511, sglang#6624.
"""

import asyncio
import contextlib
import errno
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.settings import HoldSettings, PoolSettings, RoutingPolicy, Timeouts
from steersman_proxy.settings import ProbeSettings
from steersman_sim.engine import EngineConfig, Fault, Runtime, TimeModel
from tests.proxy.support import Rig, rig, running, until

PROBES_OF_THE_PROCESS = ("/livez", "/readyz")
PROBES_OF_THE_ENGINES = ("/health", "/health_generate", "/readiness")

# Ten times more often than anybody would, so that a test need not wait.
PROBING = ProbeSettings(enabled=True, interval=0.05, timeout=0.05, failures=3)


async def statuses(world: Rig) -> dict[str, int]:
    """What every probe of either port answers now."""
    bases = dict.fromkeys(PROBES_OF_THE_PROCESS, world.app.metrics_url)
    bases |= dict.fromkeys((*PROBES_OF_THE_ENGINES, "/liveness"), world.url)
    found = {}
    for path, base in bases.items():
        async with world.client.get(base + path) as answer:
            await answer.read()
            found[path] = answer.status
    return found


def all_of(*, process: int, engines: int) -> dict[str, int]:
    found = dict.fromkeys((*PROBES_OF_THE_PROCESS, "/liveness"), process)
    return found | dict.fromkeys(PROBES_OF_THE_ENGINES, engines)


async def test_field_failure_52a_without_engines_ready_is_no_and_alive_is_yes(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, []) as world:
        assert await statuses(world) == all_of(process=200, engines=503)

        world.file.pool, world.file.others = {}, []
        world.file.path.write_text("pools: []\n")
        await until(lambda: not world.app.fleet.view.pools)  # type: ignore[union-attr]
        assert await statuses(world) == all_of(process=200, engines=503)


async def test_field_failure_52b_prefill_engines_alone_are_not_ready(tmp_path: Path) -> None:
    rows = [{"id": "p0", "url": "http://127.0.0.1:1", "role": "prefill", "weightVersion": "7"}]
    async with running(tmp_path, rows) as world:
        assert await statuses(world) == all_of(process=200, engines=503)
        status, _, body = await world.generate()
        assert (status, body["error"]["code"]) == (503, "no_available_workers")
        assert "it has none for plain" in body["error"]["message"]


async def test_readiness_follows_what_a_request_would_meet(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}) as world:
        assert await statuses(world) == all_of(process=200, engines=200)
        await world.edit("e0", gate="closed")
        assert await statuses(world) == all_of(process=200, engines=200)
        for changes in (
            {"gate": "closed"},
            {"gate": "open", "control": "asleep"},
            {"control": "paused"},
            {"control": "active", "trust": "uncertain"},
            {"trust": None, "failed": True},
        ):
            await world.edit("e1", **changes)
            assert await statuses(world) == all_of(process=200, engines=503), changes
        await world.edit("e1", failed=None)
        assert await statuses(world) == all_of(process=200, engines=200)
        async with world.client.get(f"{world.url}/health") as answer:
            assert (await answer.json())["usable"] == {"pool": 1}
        assert all(engine.journal.count == 0 for engine in world.engines.values())


async def test_an_engine_that_died_is_seen_by_readiness(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}) as world:
        await world.engines["e0"].die()
        while await statuses(world) != all_of(process=200, engines=503):
            status, _, _ = await world.generate()
            assert status in (502, 503)


# --- under load -------------------------------------------------------------------------------------

STREAMS = 1500


@pytest.fixture
def many_files() -> Iterator[None]:
    """Four sockets for each stream, as engine, proxy and client share this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * STREAMS + 1000
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_field_failure_52c_probes_answer_while_1500_streams_are_open(
    tmp_path: Path, many_files: None
) -> None:
    config = EngineConfig(
        max_running=STREAMS,
        kv_tokens=10_000_000,
        time=TimeModel(step_s=1.0, chunk_tokens=1_000_000, prefill_tokens_per_s=1e9),
    )
    async with rig(tmp_path, {"e0": "7"}, config=config) as world:
        body = {
            "text": "hello",
            "stream": True,
            "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": True},
        }
        events: Counter[int] = Counter()
        ended: list[int] = []

        async def stream(number: int) -> None:
            try:
                async with world.client.post(f"{world.url}/generate", json=body) as answer:
                    async for line in answer.content:
                        events[number] += line.startswith(b"data: ")
            finally:
                ended.append(number)

        streams = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
        await until(lambda: len(events) == STREAMS, within=60)
        before = sum(events.values())
        rounds = 0
        # All streams say something meanwhile, so the probes compete with them.
        while rounds < 5 or sum(events.values()) < before + STREAMS:
            rounds += 1
            async with asyncio.timeout(10):
                assert await statuses(world) == all_of(process=200, engines=200)

        assert ended == []
        assert world.engine("e0").load.requests == STREAMS
        for task in streams:
            task.cancel()
        await asyncio.wait(streams)
        await until(lambda: world.engine("e0").load.requests == 0)


# --- an engine whose own probe lies -------------------------------------------------------------------


def probes(world: Rig, name: str) -> int:
    path = "/ping" if world.engines[name].config.runtime is Runtime.SGLANG else "/health"
    return len(world.engines[name].journal.of(path))


@pytest.fixture(params=[Runtime.SGLANG, Runtime.VLLM], ids=["sglang", "vllm"])
async def probed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """An engine that is probed and answers its probes far too late."""
    config = EngineConfig(runtime=request.param, speed=20.0)
    async with rig(tmp_path, {"e0": "7"}, config=config, probe=PROBING) as world:
        for path in ("/ping", "/health"):
            world.engines["e0"].faults.arm(path, Fault(latency=20.0))
        yield world


async def more_probes(world: Rig, name: str, count: int = 8) -> None:
    """Wait for more than enough probes to put an engine out."""
    wanted = probes(world, name) + count
    await until(lambda: probes(world, name) >= wanted)


async def test_field_failure_52d_a_slow_probe_does_not_take_out_an_engine_that_answers(
    probed: Rig,
) -> None:
    path = f"{probed.url}/v1/completions"
    body = {"prompt": "a", "stream": True, "max_tokens": 100_000, "ignore_eos": True}
    async with probed.client.post(path, json=body) as answer:
        lines = 0

        async def read() -> None:
            nonlocal lines
            async for _ in answer.content:
                lines += 1

        reading = asyncio.create_task(read())
        await until(lambda: lines > 0)
        await more_probes(probed, "e0")
        assert probed.engine("e0").healthy
        seen = lines
        await until(lambda: lines > seen)
        reading.cancel()
        await asyncio.wait([reading])
    async with probed.client.post(path, json={"prompt": "a"}) as short:
        assert short.status == 200


async def test_field_failure_52d_a_slow_probe_does_not_take_out_a_paused_engine(
    probed: Rig,
) -> None:
    await probed.edit("e0", control="paused")

    await more_probes(probed, "e0")

    assert probed.engine("e0").healthy
    assert probed.app.health.conditions(probed.engine("e0")) == []


async def test_an_engine_with_a_closed_gate_is_not_probed_and_stays(tmp_path: Path) -> None:
    async with rig(tmp_path, {"closed": "7", "open": "7"}, probe=PROBING) as world:
        world.engines["closed"].faults.arm("/ping", Fault(latency=20.0))
        await world.edit("closed", gate="closed")
        await world.idle("closed")
        before = probes(world, "closed")

        await more_probes(world, "open")

        assert world.engine("closed").healthy
        assert probes(world, "closed") == before


async def test_an_idle_engine_whose_probes_fail_is_out_until_they_work_again(probed: Rig) -> None:
    await until(lambda: not probed.engine("e0").healthy)
    assert (await statuses(probed))["/readiness"] == 503
    async with probed.client.post(f"{probed.url}/v1/completions", json={"prompt": "a"}) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["reasons"] == {"unhealthy": 1}

    probed.engines["e0"].faults.disarm()

    await until(lambda: probed.engine("e0").healthy)
    async with probed.client.post(f"{probed.url}/v1/completions", json={"prompt": "a"}) as answer:
        assert answer.status == 200


async def test_sglangs_own_health_route_is_never_asked(tmp_path: Path) -> None:
    """It runs a request, and a paused engine that cannot finish it marks itself unhealthy."""
    async with rig(tmp_path, {"e0": "7"}, probe=PROBING) as world:
        await more_probes(world, "e0", 3)
        for _ in range(3):
            await statuses(world)

        paths = {entry.path for entry in world.engines["e0"].journal.entries}
        assert paths == {"/ping"}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
async def test_what_the_proxy_lacks_itself_is_not_held_against_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Out of files or ports, it cannot connect to anybody; that is no engine's fault."""
    async with rig(tmp_path, {"e0": "7"}, probe=PROBING) as world:
        await more_probes(world, "e0", 1)
        await world.idle()
        loop = asyncio.get_running_loop()
        connect = loop.create_connection
        refused = 0

        async def out_of_files(
            protocol: Any, host: str | None = None, port: int | None = None, **more: Any
        ) -> Any:
            nonlocal refused
            if port == world.engines["e0"].port:
                refused += 1
                raise OSError(number, "no more of them")
            return await connect(protocol, host, port, **more)

        monkeypatch.setattr(loop, "create_connection", out_of_files)
        await world.engines["e0"].restart()  # so that no connection is left over
        for _ in range(10):
            status, _, body = await world.generate()
            assert (status, body["error"]["code"]) == (502, "upstream_unreachable")
            assert "the proxy has no file or port left" in body["error"]["message"]
        await until(lambda: refused >= 10 + 2 * PROBING.failures)

        assert world.engine("e0").healthy
        assert world.app.health.conditions(world.engine("e0")) == []
        monkeypatch.undo()
        assert (await world.generate())[0] == 200


# --- an engine that hangs -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def silent_engine() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Accepts connections, reads, and never answers."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            received.append(await reader.readuntil(b"\r\n\r\n"))
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        server.close()
        await server.wait_closed()


async def test_field_failure_52e_an_engine_that_hangs_delays_only_its_own_requests(
    tmp_path: Path,
) -> None:
    routing = PoolSettings(
        policy=RoutingPolicy.ROUND_ROBIN,
        timeouts=Timeouts(answer_head=3.0),
        hold=HoldSettings(timeout=0),
    )
    async with (
        silent_engine() as (url, received),
        rig(tmp_path, {"e1": "7"}, config=EngineConfig(speed=0), routing=routing) as world,
    ):
        world.file.rows.append({"id": "hung", "url": url, "weightVersion": "7"})
        world.file.write()
        await world.applied()
        order: list[tuple[int, str]] = []

        async def one() -> None:
            status, headers, body = await world.generate(1)
            order.append((status, headers["x-smg-routed-worker-id"]))
            if status != 200:
                assert body["error"]["code"] == "upstream_timeout"
                assert "hung" in body["error"]["message"]

        await asyncio.gather(*(one() for _ in range(40)))

        # The twenty of the engine that works were all back before the first one timed out.
        assert order == [(200, world.engines["e1"].url)] * 20 + [(504, url)] * 20
        assert len(received) == 20
        assert (await statuses(world))["/readiness"] == 200
        await world.idle()
