"""Proxies that stop, die and join in the middle of a drain; real processes."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import aiohttp
import pytest

from steersman_sim.engine import SimEngine
from tests.up.fleet import engine_of, exists, manifest, sims, up
from tests.up.load import load, trespasses

LONG = {"text": "abc", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
SHORT = {"text": "abc", "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}}


def draining(status: dict[str, Any], name: str) -> bool:
    return bool(engine_of(status, name)["phase"] == "Draining")


async def test_a_stopped_proxy_holds_up_a_sleep_until_it_goes_on() -> None:
    """kubernetes.md 5.6: a proxy whose loop hangs does not acknowledge; nothing is done without it."""
    async with (
        sims(2) as engines,
        up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet,
        load(fleet.endpoint, clients=8, path="/generate", body=SHORT) as traffic,
    ):
        await _until_total(traffic, 50)
        stopped = (await fleet.proxy_pids())[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert (await fleet.edit("a", "sleep", "e0"))[0] == 200
            # It is lost after three heartbeats; what is waited for then says so.
            status = await fleet.until(
                lambda now: draining(now, "e0") and "unreachable" in engine_of(now, "e0")["problem"]
            )
            assert engine_of(status, "e0")["gate"] == "closed"
            assert engine_of(status, "e0")["control"] == "active"
            assert engines[0].journal.of("/release_memory_occupation") == []
            assert engines[0].journal.of("/pause_generation") == []
        finally:
            os.kill(stopped, signal.SIGCONT)
        await fleet.until(lambda now: engine_of(now, "e0")["control"] == "asleep")
        before = traffic.good
        await _until_total(traffic, traffic.total + 50)
        assert traffic.good > before
        assert [engine.died for engine in engines] == [None, None]
        assert trespasses(engines) == []
        assert traffic.undocumented == {}


async def test_a_stopped_proxy_that_is_killed_is_not_waited_for() -> None:
    async with (
        sims(2) as engines,
        up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet,
    ):
        stopped = (await fleet.proxy_pids())[0]
        os.kill(stopped, signal.SIGSTOP)
        assert (await fleet.edit("a", "sleep", "e0"))[0] == 200
        await fleet.until(lambda now: draining(now, "e0"))
        os.kill(stopped, signal.SIGKILL)
        status = await fleet.until(lambda now: engine_of(now, "e0")["control"] == "asleep")
        assert not exists(stopped)
        # Another one has taken its place, and has the table.
        status = await fleet.until(
            lambda now: sum(proxy["connected"] for proxy in now["proxies"]) == 2
        )
        assert stopped not in [proxy["pid"] for proxy in status["proxies"]]


async def test_a_proxy_that_joins_in_the_middle_of_a_drain_is_waited_for_and_knows_the_gate() -> (
    None
):
    async with (
        sims(2, speed=2.0) as engines,
        up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet,
    ):
        held = [asyncio.create_task(fleet.generate(**LONG)) for _ in range(8)]
        busy = await _busy(engines)
        name = f"e{busy}"
        assert (await fleet.edit("a", "sleep", name))[0] == 200
        await fleet.until(lambda now: draining(now, name))
        arrived = len(engines[busy].journal.of("/generate"))
        # One proxy dies with its requests, another joins while the other one still drains.
        victim = (await fleet.proxy_pids())[0]
        os.kill(victim, signal.SIGKILL)
        status = await fleet.until(
            lambda now: (
                sum(proxy["connected"] for proxy in now["proxies"]) == 2
                and victim not in [proxy["pid"] for proxy in now["proxies"]]
            )
        )
        assert engine_of(status, name)["gate"] == "closed"
        answers = [await fleet.generate(**SHORT) for _ in range(20)]
        other = engines[1 - busy].url
        assert {headers["x-smg-routed-worker-id"] for _, _, headers in answers} == {other}
        await fleet.until(lambda now: engine_of(now, name)["control"] == "asleep")
        assert len(engines[busy].journal.of("/generate")) == arrived
        await asyncio.gather(*held, return_exceptions=True)
        assert [engine.died for engine in engines] == [None, None]
        assert trespasses(engines) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_an_operator_that_ends_in_the_middle_of_a_drain_is_followed_by_one_that_goes_on(
    number: signal.Signals,
) -> None:
    async with (
        sims(2, speed=4.0) as engines,
        up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet,
    ):
        held = [asyncio.create_task(fleet.generate(**LONG)) for _ in range(4)]
        busy = await _busy(engines)
        name = f"e{busy}"
        assert (await fleet.edit("a", "sleep", name))[0] == 200
        await fleet.until(lambda now: draining(now, name))
        before = await fleet.status()
        os.kill(before["operator"]["pid"], number)
        status = await fleet.until(
            lambda now: (
                now["operator"]["term"] > before["operator"]["term"]
                and now["operator"]["published"]
            )
        )
        assert engine_of(status, name)["gate"] == "closed"
        assert [code for code, _, _ in await asyncio.gather(*held)] == [200] * 4
        await fleet.until(lambda now: engine_of(now, name)["control"] == "asleep")
        assert [engine.died for engine in engines] == [None, None]
        assert trespasses(engines) == []
        assert len(engines[busy].journal.of("/release_memory_occupation")) == 1


async def test_while_no_operator_runs_requests_are_served_by_the_last_table() -> None:
    async with sims(2) as engines, up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet:
        pid = await fleet.operator_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            answers = [await fleet.generate(**SHORT) for _ in range(20)]
            assert [status for status, _, _ in answers] == [200] * 20
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_proxy_without_a_table_leaves_clients_to_the_others() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet:
        status = await fleet.until(
            lambda now: sum(proxy["connected"] for proxy in now["proxies"]) == 2
        )
        victim = status["proxies"][0]
        operator = await fleet.operator_pid()
        os.kill(operator, signal.SIGSTOP)
        try:
            # The next one finds nobody to tell it a table.
            os.kill(victim["pid"], signal.SIGKILL)
            await _answers_probes(fleet, victim["metrics_url"])
            answers = []
            for _ in range(40):
                async with aiohttp.ClientSession() as fresh:  # each on a connection of its own
                    answers.append(await _status_of_one(fresh, fleet.endpoint))
            assert answers == [200] * 40
        finally:
            os.kill(operator, signal.SIGCONT)
        # With its first table it takes its share.
        await fleet.until(
            lambda now: (
                sum(proxy["connected"] for proxy in now["proxies"]) == 2
                and victim["pid"] not in [proxy["pid"] for proxy in now["proxies"]]
            )
        )
        async with asyncio.timeout(30):
            while not await _has_served(fleet, victim["metrics_url"]):
                async with aiohttp.ClientSession() as fresh:
                    assert await _status_of_one(fresh, fleet.endpoint) == 200


async def _status_of_one(client: aiohttp.ClientSession, endpoint: str) -> int:
    body = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
    async with client.post(f"{endpoint}/generate", json=body) as answer:
        return answer.status


async def _answers_probes(fleet: Any, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with fleet.client.get(f"{url}/livez") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


async def _has_served(fleet: Any, url: str) -> bool:
    async with fleet.client.get(f"{url}/metrics") as answer:
        return "smg_worker_requests_total{" in await answer.text()


async def _busy(engines: list[SimEngine]) -> int:
    """The number of an engine that works on requests of ours."""
    async with asyncio.timeout(30):
        while True:
            for number, engine in enumerate(engines):
                if engine.core.in_flight >= 2:
                    return number
            await asyncio.sleep(0.02)


async def _until_total(traffic: Any, total: int) -> None:
    async with asyncio.timeout(60):
        while traffic.total < total:  # noqa: ASYNC110 (counted by other tasks)
            await asyncio.sleep(0.02)
