"""Random operations under load, with real processes: the promise of docs/guarantees.md."""

import asyncio
import random
from typing import Any

import pytest

from steersman_sim.engine import Runtime, SimEngine
from tests.up.fleet import UpFleet, engine_of, manifest, sims, up
from tests.up.load import calls, load, trespasses

OPERATIONS = 300
WITHIN = 120.0
"""Seconds; a part of the promise, as `steersman` must not take for ever either."""

GENERATE = {"text": "abc", "sampling_params": {"max_new_tokens": 24, "ignore_eos": True}}
COMPLETE = {"model": "b", "prompt": "abc", "max_tokens": 24, "ignore_eos": True}

WANTED = {"pause": "paused", "resume": "active", "sleep": "asleep", "wake": "active"}
VERBS = {"active": ("pause", "sleep"), "paused": ("resume",), "asleep": ("wake",)}


class Chaos:
    """Operations on engines, each carried to its end, one after the other on each engine."""

    def __init__(self, fleet: UpFleet) -> None:
        self.fleet = fleet
        self.done = 0

    async def keep_changing(self, pool: str, engine: str, *, seed: int) -> None:
        dice = random.Random(seed)
        state = "active"
        while self.done < OPERATIONS:
            verb = dice.choice(VERBS[state])
            status, answer = await self.fleet.edit(pool, verb, engine)
            assert status == 200, answer
            state = WANTED[verb]
            await self.fleet.until(lambda now, state=state: self._is(now, pool, engine, state))
            self.done += 1

    async def keep_changing_its_mind(self, pool: str, engine: str, *, seed: int) -> None:
        """The same, without waiting for the end of each."""
        dice = random.Random(seed)
        state = "active"
        while self.done < OPERATIONS:
            verb = dice.choice(VERBS[state])
            status, answer = await self.fleet.edit(pool, verb, engine)
            assert status == 200, answer
            state = WANTED[verb]
            self.done += 1
            await asyncio.sleep(dice.choice((0.0, 0.05, 0.3, 1.2, 2.5)))

    @staticmethod
    def _is(status: dict[str, Any], pool: str, name: str, state: str) -> bool:
        found = next(one for one in status["pools"] if one["name"] == pool)
        engine = next(one for one in found["engines"] if one["name"] == name)
        assert "released" not in engine["problem"], engine
        there = engine["control"] == state == engine["desired"]
        return bool(there and engine["phase"] == "Settled")


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_300_random_operations_under_load_kill_no_engine_and_fail_no_request() -> None:
    async with (
        sims(4, model="a") as sglang,
        sims(2, runtime=Runtime.VLLM, model="b") as vllm,
        up({"a.yaml": manifest("a", sglang), "b.yaml": manifest("b", vllm)}, proxies=4) as fleet,
    ):
        chaos = Chaos(fleet)
        generate, complete = GENERATE | {"model": "a"}, COMPLETE
        async with (
            load(fleet.endpoint, clients=24, path="/generate", body=generate) as first,
            load(fleet.endpoint, clients=12, path="/v1/completions", body=complete) as second,
        ):
            async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(chaos.keep_changing("a", f"e{number}", seed=number))
                group.create_task(chaos.keep_changing_its_mind("a", "e3", seed=3))
                group.create_task(chaos.keep_changing("b", "e0", seed=4))
                group.create_task(chaos.keep_changing_its_mind("b", "e1", seed=5))
            for pool, members in (("a", sglang), ("b", vllm)):
                for number in range(len(members)):
                    await _bring_back(fleet, pool, f"e{number}")
            await fleet.settled("active")

        engines: list[SimEngine] = [*sglang, *vllm]
        assert [engine.died for engine in engines] == [None] * 6
        assert trespasses(engines) == []
        for traffic in (first, second):
            assert traffic.undocumented == {}
            assert traffic.broken == []
            assert traffic.good > 200
        assert {*first.stamps} == {engine.url for engine in sglang}
        # They were really changed, and often.
        assert sum(calls(engines).values()) > OPERATIONS
        async with asyncio.timeout(20):
            while await fleet.in_flight():  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)
        assert chaos.done >= OPERATIONS


async def _bring_back(fleet: UpFleet, pool: str, engine: str) -> None:
    for verb in ("resume", "wake"):
        await fleet.edit(pool, verb, engine)
    status = await fleet.status()
    assert engine_of(status, engine)
