"""Versions at real sockets: rolling updates, mixed answers, the policy matrix, unsynced engines."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from steersman.policy import LatestOnly
from steersman.settings import PoolSettings
from steersman.versions import numeric
from steersman_proxy.routing.engines import Engine
from steersman_sim.engine import EngineConfig
from tests.proxy.support import Watching, refit, rig, until

pytestmark = pytest.mark.usefixtures("adapter")

LATEST = PoolSettings(version_policy=LatestOnly())


async def test_a_rolling_update_under_latest_only_has_no_stale_dispatch_and_fails_nobody(
    tmp_path: Path,
) -> None:
    """Stale: an engine that really holds less than the fleet max in force at the selection."""
    names = {f"e{i}": "7" for i in range(4)}
    async with rig(tmp_path, names, routing=LATEST) as world:
        stale: list[str] = []
        chosen: Counter[str] = Counter()

        def judge(engine: Engine) -> None:
            chosen[engine.id] += 1
            held = world.engines[engine.id].core.ranks[0].weights.label
            newest = world.app.fleet.pool("pool").fleet_max  # type: ignore[union-attr]
            assert newest is not None
            if int(held) < int(newest):
                stale.append(f"{engine.id} holds {held}, the newest is {newest}")

        world.app.context.observer = Watching(world.app.context.observer, judge)
        stop = asyncio.Event()
        results: list[tuple[int, str | None]] = []

        async def trainer() -> None:
            while not stop.is_set():
                status, headers, _ = await world.generate(8)
                results.append((status, headers.get("x-smg-weight-version")))

        trainers = [asyncio.create_task(trainer()) for _ in range(24)]
        await until(lambda: len(results) > 100)
        for name in names:
            await refit(world, name, "8")
            seen = len(results)
            await until(lambda seen=seen: len(results) > seen + 50)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*trainers)

        assert stale == []
        assert {status for status, _ in results} == {200}
        assert {version for _, version in results} == {"7", "8"}
        # Once the new version is out, nothing older is served.
        versions = [version for _, version in results]
        assert set(versions[versions.index("8") + 24 :]) == {"8"}
        assert len(chosen) == 4


async def test_requests_are_held_while_the_newest_engine_is_closed_for_an_operation(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, {"new": "8", "old": "7"}, routing=LATEST) as world:
        await world.edit("new", gate="closed")

        waiting = [asyncio.create_task(world.generate()) for _ in range(10)]
        await until(lambda: world.app.hold.depth("pool") == 10)
        assert (world.received("new"), world.received("old")) == (0, 0)
        await world.edit("new", gate="open")
        answers = await asyncio.gather(*waiting)

        assert [status for status, _, _ in answers] == [200] * 10
        assert (world.received("new"), world.received("old")) == (10, 0)


async def test_a_new_version_counts_once_its_engine_opens(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, routing=LATEST) as world:
        await world.edit("e0", gate="closed", weightVersion="8")

        for _ in range(6):
            status, headers, _ = await world.generate()
            assert (status, headers["x-smg-weight-version"]) == (200, "7")
        assert world.received("e0") == 0
        await refit(world, "e0", "8")
        for _ in range(6):
            _, headers, _ = await world.generate()
            assert headers["x-smg-weight-version"] == "8"


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("any", {"v3", "v6", "v7", "v17"}),
        ("max-staleness:10", {"v7", "v17"}),
        ("latest-only", {"v17"}),
        ("min-version:7", {"v7", "v17"}),
        ("max-staleness:0", {"v17"}),
        ("max-staleness:11", {"v6", "v7", "v17"}),
    ],
)
async def test_the_policy_matrix(tmp_path: Path, policy: str, served: set[str]) -> None:
    versions = {"v3": "3", "v6": "6", "v7": "7", "v17": "17"}
    async with rig(tmp_path, versions, config=EngineConfig(speed=0)) as world:
        for _ in range(40):
            status, headers, _ = await world.generate(1, x_smg_version_policy=policy)
            assert status == 200
            url = headers["x-smg-routed-worker-id"]
            name = next(name for name, engine in world.engines.items() if engine.url == url)
            assert headers["x-smg-weight-version"] == versions[name]

        assert {name for name in versions if world.received(name)} == served


async def test_the_header_may_loosen_the_pools_policy(tmp_path: Path) -> None:
    async with rig(
        tmp_path, {"new": "8", "old": "7"}, routing=LATEST, config=EngineConfig(speed=0)
    ) as world:
        for _ in range(40):
            await world.generate(1, x_smg_version_policy="any")
        assert world.received("old") > 0

        before = world.received("old")
        for _ in range(40):
            await world.generate(1)
        assert world.received("old") == before


async def test_a_bad_policy_header_is_400_after_the_key(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, api_keys=("k0",)) as world:
        status, _, body = await world.generate(x_smg_version_policy="newest")
        assert (status, body["error"]["code"]) == (401, "unauthorized")

        status, headers, body = await world.generate(
            x_smg_version_policy="newest", authorization="Bearer k0"
        )
        assert (status, body["error"]["code"]) == (400, "invalid_version_policy")
        assert headers["x-smg-error-code"] == "invalid_version_policy"
        assert world.received("e0") == 0


async def test_mixed_flags_are_exact_over_a_flip(tmp_path: Path) -> None:
    """Forty requests of different lengths overlap a change of weights on a running engine."""
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=2.0)) as world:
        engine = world.engines["e0"]
        waiting = [
            asyncio.create_task(world.generate(5 + 4 * i, x_request_id=f"r{i}")) for i in range(40)
        ]
        await until(lambda: sum(task.done() for task in waiting) >= 5)
        # In place: running requests keep their KV and go on with the new weights.
        for path, body in (
            ("/pause_generation", {"mode": "in_place"}),
            (
                "/update_weights_from_disk",
                {"model_path": "/w", "weight_version": "8", "flush_cache": False},
            ),
            ("/continue_generation", {}),
        ):
            async with world.client.post(engine.url + path, json=body) as answer:
                assert answer.status == 200, await answer.text()
        answers = await asyncio.gather(*waiting)

        truth = {}
        for entry in engine.journal.of("/generate"):
            (generation,) = entry.generations
            made_by = [span.version for span in generation.truth]
            truth[entry.header("x-request-id")] = made_by
        kinds = Counter(len(made_by) for made_by in truth.values())
        assert kinds[1] >= 5
        assert kinds[2] >= 5
        for i, (status, headers, _) in enumerate(answers):
            made_by = truth[f"r{i}"]
            assert status == 200
            assert headers["x-smg-weight-version"] == made_by[-1]
            assert headers.get("x-smg-mixed-version") == ("true" if len(made_by) > 1 else None)
        # The engine's reports corrected its row; the max stays what the table said.
        assert world.engine("e0").version == "8"
        assert world.app.fleet.pool("pool").fleet_max == "7"  # type: ignore[union-attr]


async def test_before_a_version_there_is_no_stamp_and_afterwards_always(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": None, "e1": None}) as world:
        for _ in range(10):
            status, headers, body = await world.generate()
            assert status == 200
            assert body["meta_info"]["weight_version"] == "default"
            assert "x-smg-weight-version" not in headers
            assert headers["x-smg-routed-worker-id"] in {e.url for e in world.engines.values()}
        for name in ("e0", "e1"):
            await refit(world, name, "1")
        for path, body in (
            ("/generate", {"text": "a"}),
            ("/generate", {"text": "a", "stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/completions", {"prompt": "a", "stream": True}),
            ("/v1/embeddings", {"input": "a"}),
            ("/generate", {"nonsense": True}),
        ):
            async with world.client.post(world.url + path, json=body) as answer:
                await answer.read()
                assert answer.headers["x-smg-weight-version"] == "1", (path, answer.status)
                assert "x-smg-mixed-version" not in answer.headers


async def test_an_unsynced_engine_gets_nothing_once_the_pool_has_a_version(tmp_path: Path) -> None:
    config = EngineConfig(speed=0)
    async with rig(tmp_path, {"e0": None, "e1": None}, config=config) as world:
        for _ in range(30):
            await world.generate(1)
        assert world.received("e0") > 0
        assert world.received("e1") > 0

        await refit(world, "e0", "1")
        before = world.received("e1")
        for policy in ("any", "latest-only", "max-staleness:9", "min-version:1"):
            for _ in range(30):
                status, _, _ = await world.generate(1, x_smg_version_policy=policy)
                assert status == 200

        assert world.received("e1") == before


async def test_a_pool_may_opt_in_to_unsynced_engines(tmp_path: Path) -> None:
    routing = PoolSettings(admit_unsynced=True)
    async with rig(
        tmp_path, {"e0": "1", "e1": None}, routing=routing, config=EngineConfig(speed=0)
    ) as world:
        for _ in range(30):
            await world.generate(1)
        assert world.received("e1") > 0

        before = world.received("e1")
        for _ in range(30):
            await world.generate(1, x_smg_version_policy="latest-only")
        assert world.received("e1") == before


async def test_field_failure_1_a_recovered_engine_waits_for_its_weights(tmp_path: Path) -> None:
    """miles#1724: a restarted engine answered with checkpoint weights that were trained on."""
    config = EngineConfig(speed=0)
    async with rig(tmp_path, {"e1": "7", "e2": "7"}, config=config) as world:
        await world.engines["e2"].restart()
        await world.edit("e2", weightVersion=None, trust="unsynced")
        before = world.received("e2")

        for _ in range(20):
            status, headers, _ = await world.generate(1)
            assert (status, headers["x-smg-weight-version"]) == (200, "7")
        assert world.received("e2") == before

        await world.edit("e2", trust=None)
        await refit(world, "e2", "7")
        for _ in range(20):
            await world.generate(1)
        assert world.received("e2") > before


async def test_an_engine_seen_to_restart_is_out_until_the_table_says_otherwise(
    tmp_path: Path,
) -> None:
    """What the proxy sees by itself: the engine named a version before, and says default now."""
    config = EngineConfig(speed=0, weight_version="default")
    async with rig(tmp_path, {"e1": "7", "e2": "7"}, config=config) as world:
        for _ in range(20):
            await world.generate(1)
        old = world.engines["e2"]
        old.config = EngineConfig(speed=0, port=old.port)
        await old.restart()
        versions = []
        for _ in range(40):
            status, headers, body = await world.generate(1)
            assert status == 200
            versions.append(body["meta_info"]["weight_version"])
            # Never "default"; the one answer that revealed it names no version it does not have.
            assert headers.get("x-smg-weight-version") in ("7", None)

        assert versions.count("default") == 1
        assert all(numeric(version) == 7 for version in versions if version != "default")
