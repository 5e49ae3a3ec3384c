"""Refits of a standalone fleet: asked over the real API, carried out on sim engines."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from steersman.clock import MonotonicClock
from steersman_operator.client import FleetClient, OperatorRefused
from steersman_operator.standalone.account import Account, write_account
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.operator import OperatorSettings, StandaloneOperator
from steersman_sim.engine import SimEngine
from tests.up.fleet import manifest, short_directory, sims

T = TypeVar("T")
Status = dict[str, Any]


class Operated:
    """A directory and its operator, asked as the commands ask it."""

    def __init__(self, directory: Path, threads: ThreadPoolExecutor) -> None:
        self.directory = directory
        self.client = FleetClient(directory)
        # Of its own: those of the loop are the operator's, which others would wait for.
        self._threads = threads

    async def ask(self, question: Callable[[FleetClient], T]) -> T:
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, question, self.client)
        return await asyncio.wait_for(asked, 30)

    async def pool(self) -> Status:
        (pool,) = (await self.ask(FleetClient.status))["pools"]
        found: Status = pool
        return found

    async def until(self, condition: Callable[[Status], object]) -> Status:
        """Watch until a pool is so."""

        def watch(client: FleetClient) -> Status:
            for status in client.watch(timeout=25):
                if status["pools"] and condition(status["pools"][0]):
                    found: Status = status["pools"][0]
                    return found
            raise AssertionError(f"did not come: {client.status()}")

        return await self.ask(watch)

    async def synced(self, version: str) -> Status:
        return await self.until(
            lambda pool: (
                pool["target"]
                and pool["target"]["version"] == version
                and pool["weights"]["synced"] == pool["weights"]["total"] > 0
                and all(one["gate"] == "open" for one in pool["engines"])
            )
        )

    async def refused(self, question: Callable[[FleetClient], object]) -> tuple[int, str]:
        with pytest.raises(OperatorRefused) as caught:
            await self.ask(question)
        return caught.value.status, str(caught.value)


@contextlib.asynccontextmanager
async def operated(directory: Path) -> AsyncIterator[Operated]:
    layout = Layout(directory)
    layout.make()
    write_account(layout.proxies, Account())
    operator = StandaloneOperator(layout, OperatorSettings(metrics_port=0), clock=MonotonicClock())
    await operator.start()
    try:
        with ThreadPoolExecutor(16) as threads:
            yield Operated(directory, threads)
    finally:
        await operator.close()


@contextlib.asynccontextmanager
async def fleet(engines: Sequence[SimEngine]) -> AsyncIterator[Operated]:
    with short_directory() as directory:
        (directory / "a.yaml").write_text(manifest("a", engines))
        async with operated(directory) as there:
            yield there


def loaded(engine: SimEngine) -> list[tuple[str, str]]:
    """What an engine was told to load, as it received it."""
    bodies = [json.loads(one.body) for one in engine.journal.of("/update_weights_from_disk")]
    return [(body["model_path"], body["weight_version"]) for body in bodies]


async def test_every_engine_is_told_to_load_what_was_asked_for() -> None:
    async with sims(2) as engines, fleet(engines) as there:
        asked = await there.ask(lambda client: client.refit("a", version="42", path="/ckpt/42"))
        assert (asked.generation, asked.changed) == (2, True)
        assert asked.target is not None
        assert (asked.target["version"], asked.target["source"]) == ("42", "Disk")
        await there.synced("42")
        assert [loaded(engine) for engine in engines] == [[("/ckpt/42", "42")]] * 2

        again = await there.ask(lambda client: client.refit("a", version="42", path="/ckpt/42"))
        assert not again.changed
        # Without a version it is loaded once more, with a nonce of the operator's own.
        once_more = await there.ask(lambda client: client.refit("a"))
        assert once_more.target is not None and once_more.target["nonce"]
        await there.until(lambda pool: pool["generation"] == once_more.generation)
        await there.synced("42")
        assert [loaded(engine) for engine in engines] == [[("/ckpt/42", "42")] * 2] * 2

        back = await there.ask(lambda client: client.refit("a", version="43", path="/ckpt/43"))
        assert back.changed
        await there.synced("43")
        await there.ask(lambda client: client.rollout("a", verb="undo", since="a-43"))
        await there.synced("42")
        assert loaded(engines[0])[-1] == ("/ckpt/42", "42")
        assert await there.refused(
            lambda client: client.rollout("a", verb="undo", since="a-43")
        ) == (409, "a is to have a-42 now, and not a-43 any more")
        assert await there.refused(lambda client: client.refit("a", version="42", path="/x")) == (
            409,
            "42 of 'a' are other weights already: a-42 (weights-a-42.yaml:2) has Disk /ckpt/42",
        )


async def test_of_many_who_ask_at_once_the_last_one_gets_it() -> None:
    async with sims(1) as engines, fleet(engines) as there:
        asked = await asyncio.gather(
            *(
                there.ask(
                    lambda client, version=str(number): client.refit(
                        "a", version=version, path="/w"
                    )
                )
                for number in range(10, 18)
            )
        )
        last = max(asked, key=lambda one: one.generation)
        assert sorted(one.generation for one in asked) == list(range(2, 10))
        assert last.target is not None
        pool = await there.synced(last.target["version"])
        assert (pool["generation"], pool["manifest_errors"]) == (last.generation, [])
        assert loaded(engines[0])[-1] == ("/w", last.target["version"])
        files = sorted(path.name for path in there.directory.glob("*.yaml"))
        assert files == ["a.yaml", *(f"weights-a-{number}.yaml" for number in range(10, 18))]


async def test_a_paused_rollout_closes_no_engine() -> None:
    async with sims(2) as engines, fleet(engines) as there:
        await there.ask(lambda client: client.rollout("a", verb="pause"))
        await there.ask(lambda client: client.refit("a", version="8", path="/w/8"))
        pool = await there.until(
            lambda pool: pool["target"] and all(one["waiting"] for one in pool["engines"])
        )
        assert pool["rollout_paused"]
        assert [loaded(engine) for engine in engines] == [[], []]
        await there.ask(lambda client: client.rollout("a", verb="resume"))
        await there.synced("8")
        assert [loaded(engine) for engine in engines] == [[("/w/8", "8")]] * 2


async def test_a_trainer_transfers_and_publishes() -> None:
    async with sims(2) as engines, fleet(engines) as there:
        assert await there.refused(lambda client: client.publish("b", "8")) == (
            404,
            "RolloutEngine 'b' does not exist; there are a",
        )
        assert (await there.refused(lambda client: client.publish("a", "8")))[0] == 409
        asked = await there.ask(lambda client: client.refit("a", version="8"))
        assert asked.target is not None and asked.target["source"] == "External"
        pool = await there.until(
            lambda pool: all(one["phase"] == "AwaitingTrainer" for one in pool["engines"])
        )
        assert [one["gate"] for one in pool["engines"]] == ["closed", "closed"]
        assert (await there.refused(lambda client: client.publish("a", "9")))[0] == 409
        await there.ask(lambda client: client.publish("a", "8"))
        await there.synced("8")
        assert [engine.journal.of("/update_weights_from_disk") for engine in engines] == [[], []]


async def test_a_reference_that_leads_nowhere_keeps_the_weights_of_before() -> None:
    sentence = (
        "a.yaml:10: spec.weightVersionRef.name: there is no WeightVersion a-43, so version 42 stays "
        "what is wanted; did you mean a-42?"
    )
    async with sims(1) as engines:
        with short_directory() as directory:
            path = directory / "a.yaml"
            path.write_text(manifest("a", engines))
            async with operated(directory) as there:
                await there.ask(lambda client: client.refit("a", version="42", path="/ckpt/42"))
                await there.synced("42")
                path.write_text(path.read_text().replace("a-42", "a-43"))
                await there.until(lambda pool: pool["manifest_errors"])
                await _says(there, sentence)
            # The next operator knows it, too.
            async with operated(directory) as there:
                await there.until(lambda pool: pool["weights"]["synced"])
                await _says(there, sentence)
                await there.ask(lambda client: client.refit("a", version="42"))
                await there.until(lambda pool: not pool["manifest_errors"])
        assert loaded(engines[0]) == [("/ckpt/42", "42")], "a typing error loads nothing"


async def _says(there: Operated, sentence: str) -> None:
    status = await there.ask(FleetClient.status)
    assert (status["errors"], status["warnings"]) == ([], [sentence])
    (pool,) = status["pools"]
    assert pool["manifest_errors"] == [sentence]
    assert (pool["target"]["version"], pool["weights"]["synced"]) == ("42", 1)
    invalid = next(one for one in pool["conditions"] if one["type"] == "ManifestInvalid")
    assert (invalid["status"], invalid["message"]) == ("True", sentence)


async def test_an_operator_that_is_replaced_goes_on_with_what_was_asked_for() -> None:
    async with sims(2) as engines:
        with short_directory() as directory:
            (directory / "a.yaml").write_text(manifest("a", engines))
            async with operated(directory) as there:
                await there.ask(lambda client: client.rollout("a", verb="pause"))
                await there.ask(lambda client: client.refit("a", version="8", path="/w/8"))
            async with operated(directory) as there:
                await there.ask(lambda client: client.rollout("a", verb="resume"))
                await there.synced("8")
                assert [loaded(engine) for engine in engines] == [[("/w/8", "8")]] * 2
                await there.ask(lambda client: client.refit("a", version="9", path="/w/9"))
                await there.synced("9")
            async with operated(directory) as there:
                await there.ask(lambda client: client.rollout("a", verb="undo"))
                await there.synced("8")
