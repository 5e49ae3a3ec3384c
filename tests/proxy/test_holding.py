"""Waiting in the proxy, at real sockets: paused and asleep engines get nothing, nobody is lost."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from steersman.settings import HoldSettings, PoolSettings
from steersman_sim.engine import EngineConfig, Runtime
from tests.proxy.support import Rig, rig, running, until

WINDOW = 10.0
"""Seconds for which an engine is watched to get nothing."""


def hold(timeout: float = 600.0, **limits: int) -> PoolSettings:
    return PoolSettings(hold=HoldSettings(timeout=timeout, **limits))


@pytest.mark.soak
@pytest.mark.parametrize("control", ["paused", "asleep"])
async def test_for_ten_seconds_an_engine_that_is_out_gets_nothing(
    tmp_path: Path, control: str
) -> None:
    """Every way of choosing is tried: all policies of versions, keys, retries, fan-outs, probes."""
    async with rig(tmp_path, {"out": "7", "in": "7"}, config=EngineConfig(speed=0)) as world:
        await world.edit("out", control=control)
        await world.idle("out")
        before = world.engines["out"].journal.count
        until_then = time.monotonic() + WINDOW
        served = Counter[int]()

        async def trainer(number: int) -> None:
            requests = 0
            while time.monotonic() < until_then:
                requests += 1
                headers = {
                    0: {},
                    1: {"x_smg_routing_key": f"{number}-{requests}"},
                    2: {"x_smg_version_policy": "latest-only"},
                    3: {"x_session_id": str(requests % 7)},
                }[requests % 4]
                status, _, _ = await world.generate(1, **headers)
                served[status] += 1
                if requests % 50 == 0:
                    status, _, _ = await world.generate(1, x_smg_target_worker="out")
                    assert status == 503

        await asyncio.gather(*(trainer(number) for number in range(8)))

        assert served[200] == served.total() >= 200
        # Fan-outs may reach a paused engine whose gate is open; none was made here.
        assert world.engines["out"].journal.count == before


@pytest.mark.usefixtures("adapter")
async def test_field_failure_3_a_paused_engine_sees_nothing_until_it_resumes(
    tmp_path: Path,
) -> None:
    """verl#7511: a request let into a paused vLLM engine and the resume waited for each other."""
    async with rig(
        tmp_path, {"e1": "7"}, config=EngineConfig(speed=0, runtime=Runtime.VLLM)
    ) as world:
        engine = world.engines["e1"]
        await world.edit("e1", gate="closed")
        await world.idle("e1")
        async with world.client.post(f"{engine.url}/pause") as answer:
            assert answer.status == 200
        await world.edit("e1", control="paused", gate="open")

        body = {"model": "sim-model", "prompt": "a", "max_tokens": 2}
        request = asyncio.create_task(_post(world, "/v1/completions", body))
        await until(lambda: world.app.hold.depth("pool") == 1)
        async with world.client.post(f"{engine.url}/resume") as answer:
            assert answer.status == 200
        assert engine.journal.of("/v1/completions") == []
        await world.edit("e1", control="active")

        assert await request == 200
        assert len(engine.journal.of("/v1/completions")) == 1


@pytest.mark.usefixtures("adapter")
async def test_field_failure_4_one_request_is_held_through_a_pause(tmp_path: Path) -> None:
    """slime#1328: 60 times 503 during a pause of 90 s ended the rollout. (Shorter here.)"""
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=EngineConfig(speed=0)) as world:
        for name in ("e0", "e1"):
            await world.edit(name, control="paused")
        tries: list[int] = []

        async def slime() -> None:
            for _ in range(60):
                status, _, _ = await world.generate(1)
                tries.append(status)
                if status == 200:
                    return
                await asyncio.sleep(1)

        trainer = asyncio.create_task(slime())
        await until(lambda: world.app.hold.depth("pool") == 1)
        await asyncio.sleep(2.5)
        await world.edit("e0", control="active")
        await trainer

        assert tries == [200]


@pytest.mark.usefixtures("adapter")
async def test_field_failure_4_after_the_limit_there_is_one_503_with_retry_after(
    tmp_path: Path,
) -> None:
    async with rig(
        tmp_path, {"e0": "7"}, config=EngineConfig(speed=0), routing=hold(timeout=0.4)
    ) as world:
        await world.edit("e0", control="paused")
        started = time.monotonic()

        status, headers, body = await world.generate(1)

        assert (status, body["error"]["code"]) == (503, "hold_timeout")
        assert int(headers["retry-after"]) >= 1
        assert body["error"]["reasons"] == {"paused": 1}
        assert time.monotonic() - started >= 0.4
        assert world.received("e0") == 0


@pytest.mark.usefixtures("adapter")
async def test_those_who_wait_get_503_once_nothing_is_worth_waiting_for(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=EngineConfig(speed=0)) as world:
        await world.edit("e0", control="paused")
        await world.edit("e1", gate="closed")
        waiting = [asyncio.create_task(world.generate(1)) for _ in range(20)]
        await until(lambda: world.app.hold.depth("pool") == 20)

        await world.edit("e0", control="asleep")
        assert world.app.hold.depth("pool") == 20
        await world.edit("e1", failed=True)
        answers = await asyncio.gather(*waiting)

        assert {(status, body["error"]["code"]) for status, _, body in answers} == {
            (503, "no_available_workers")
        }


@pytest.mark.usefixtures("adapter")
async def test_the_number_and_the_bytes_of_those_who_wait_are_bounded(tmp_path: Path) -> None:
    limits = hold(max_requests=5, max_bytes=100_000)
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=0), routing=limits) as world:
        await world.edit("e0", control="paused")
        big = {"text": "x" * 60_000, "sampling_params": {"max_new_tokens": 1}}
        first = asyncio.create_task(_post(world, "/generate", big))
        await until(lambda: world.app.hold.depth("pool") == 1)

        assert await _post(world, "/generate", big) == 503  # bytes
        few = [asyncio.create_task(world.generate(1)) for _ in range(4)]
        await until(lambda: world.app.hold.depth("pool") == 5)
        status, _, body = await world.generate(1)
        assert (status, body["error"]["code"]) == (503, "hold_full")

        await world.edit("e0", control="active")
        assert await first == 200
        assert {status for status, _, _ in await asyncio.gather(*few)} == {200}


@pytest.mark.usefixtures("adapter")
async def test_who_leaves_leaves_the_queue(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=0)) as world:
        await world.edit("e0", control="paused")
        tasks = [asyncio.create_task(world.generate(1)) for _ in range(50)]
        await until(lambda: world.app.hold.depth("pool") == 50)
        for task in tasks[::2]:
            task.cancel()
        await until(lambda: world.app.hold.depth("pool") == 25)

        await world.edit("e0", control="active")
        await asyncio.gather(*tasks, return_exceptions=True)

        assert world.received("e0") == 25
        assert world.app.hold.bytes("pool") == 0
        await world.idle()


@pytest.mark.usefixtures("adapter")
async def test_a_key_waits_for_its_own_engine_under_sticky_pause(tmp_path: Path) -> None:
    routing = PoolSettings(sticky_pause=True)
    versions = {f"e{i}": "7" for i in range(4)}
    async with rig(tmp_path, versions, config=EngineConfig(speed=0), routing=routing) as world:
        _, headers, _ = await world.generate(1, x_session_id="t1")
        own = next(
            name
            for name, engine in world.engines.items()
            if engine.url == headers["x-smg-routed-worker-id"]
        )
        await world.edit(own, control="paused")
        request = asyncio.create_task(world.generate(1, x_session_id="t1"))
        await until(lambda: world.app.hold.depth("pool") == 1)
        status, _, _ = await world.generate(1)
        assert status == 200  # others go on
        await world.edit(own, control="active")

        _, headers, _ = await request
        assert headers["x-smg-routed-worker-id"] == world.engines[own].url


@pytest.mark.usefixtures("adapter")
async def test_a_key_moves_on_while_its_engine_is_closed_and_returns(tmp_path: Path) -> None:
    versions = {f"e{i}": "7" for i in range(4)}
    async with rig(tmp_path, versions, config=EngineConfig(speed=0)) as world:

        async def served_by() -> str:
            _, headers, _ = await world.generate(1, x_smg_routing_key="t1")
            return str(headers["x-smg-routed-worker-id"])

        own = await served_by()
        name = next(name for name, engine in world.engines.items() if engine.url == own)
        await world.edit(name, gate="closed")
        elsewhere = {await served_by() for _ in range(5)}
        await world.edit(name, gate="open")

        assert len(elsewhere) == 1
        assert own not in elsewhere
        assert await served_by() == own


@pytest.mark.usefixtures("adapter")
async def test_no_more_than_the_limit_is_in_flight_on_an_engine(tmp_path: Path) -> None:
    routing = PoolSettings(max_in_flight_per_engine=3)
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, routing=routing) as world:
        peaks = Counter[str]()
        tasks = [asyncio.create_task(world.generate(6)) for _ in range(60)]
        while not all(task.done() for task in tasks):
            for name, engine in world.engines.items():
                peaks[name] = max(peaks[name], engine.core.in_flight)
            await asyncio.sleep(0)
        answers = [task.result() for task in tasks]

        assert {status for status, _, _ in answers} == {200}
        assert peaks == {"e0": 3, "e1": 3}


class SlowEngine:
    """Answers each request after ``seconds``, in the order of arrival, and notes who came when."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.url = ""
        self.order: list[int] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                body = await reader.readexactly(length)
                self.order.append(int(body.split(b'"number": ')[1].split(b",")[0]))
                await asyncio.sleep(self._seconds)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: 2\r\n\r\n{}"
                )
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()


@pytest.mark.usefixtures("adapter")
async def test_two_thousand_held_requests_spread_over_engines_that_open_one_by_one(
    tmp_path: Path,
) -> None:
    count, leavers = 2000, 100
    engines = {f"e{i}": SlowEngine(0.5) for i in range(8)}
    routing = PoolSettings(max_in_flight_per_engine=32)
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines.values():
            await stack.enter_async_context(engine.running())
        rows: list[dict[str, Any]] = [
            {"id": name, "url": engine.url, "weightVersion": "7", "gate": "closed"}
            for name, engine in engines.items()
        ]
        world = await stack.enter_async_context(running(tmp_path, rows, routing=routing))
        statuses: list[int] = []

        async def ask(number: int) -> None:
            data = b'{"number": %d, "text": "%s"}' % (number, b"x" * 500)
            async with world.client.post(f"{world.url}/generate", data=data) as answer:
                await answer.read()
                statuses.append(answer.status)

        tasks = []
        for number in range(count):
            tasks.append(asyncio.create_task(ask(number)))
            if number % 100 == 99:
                # Those before are in the queue, so that the order of arrival is known.
                await until(lambda number=number: world.app.hold.depth("pool") == number + 1)  # type: ignore[misc]
        assert world.app.hold.bytes("pool") == sum(
            len(b'{"number": %d, "text": "%s"}' % (number, b"x" * 500)) for number in range(count)
        )
        gone = range(7, count, count // leavers)
        for number in gone:
            tasks[number].cancel()
        await until(lambda: world.app.hold.depth("pool") == count - len(gone))
        for name in engines:
            await world.edit(name, gate="open")
            await asyncio.sleep(0.2)
        await asyncio.gather(*tasks, return_exceptions=True)

        received = [len(engine.order) for engine in engines.values()]
        assert statuses == [200] * (count - len(gone))
        assert sum(received) == count - len(gone)
        assert max(received) / (sum(received) / len(received)) <= 1.5
        # In the order of arrival: by hundreds, since a hundred arrived without an order of its own.
        for engine in engines.values():
            hundreds = [number // 100 for number in engine.order]
            assert hundreds == sorted(hundreds)
        assert not {number for engine in engines.values() for number in engine.order} & set(gone)
        assert world.app.hold.bytes("pool") == 0
        await world.idle()


async def _post(world: Rig, path: str, body: dict[str, Any]) -> int:
    try:
        async with world.client.post(f"{world.url}{path}", json=body) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0
