"""Why an engine is in or out: the header, the metrics port, the command and the 503 agree."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.policy import LatestOnly
from steersman.settings import PoolSettings, RoutingPolicy
from steersman_sim.engine import EngineConfig
from tests.proxy.support import Rig, rig, until

# One engine for each reason that the table can give, in the order of the table.
ROWS: dict[str, dict[str, Any]] = {
    "fine": {"weightVersion": "9"},
    "closed": {"weightVersion": "9", "gate": "closed"},
    "paused": {"weightVersion": "9", "control": "paused"},
    "asleep": {"weightVersion": "9", "control": "asleep"},
    "unsynced": {"weightVersion": None, "trust": "unsynced"},
    "uncertain": {"weightVersion": "9", "trust": "uncertain"},
    "failed": {"weightVersion": "9", "failed": True},
    "stale": {"weightVersion": "8"},
}
REASONS = {
    "fine": None,
    "closed": "gate_closed",
    "paused": "paused",
    "asleep": "asleep",
    "unsynced": "unsynced",
    "uncertain": "uncertain",
    "failed": "failed",
    "stale": "stale",
}
LATEST = PoolSettings(version_policy=LatestOnly(), policy=RoutingPolicy.ROUND_ROBIN)


def fleet(tmp_path: Path, **changes: Any) -> Any:
    versions = dict.fromkeys(ROWS, "9")
    return rig(tmp_path, versions, config=EngineConfig(speed=0), routing=LATEST, **changes)


async def arrange(world: Rig, rows: dict[str, dict[str, Any]] = ROWS) -> None:
    for name, changes in rows.items():
        world.file.set(name, **changes)
    await world.applied()


async def by_header(world: Rig, path: str = "/generate", **headers: str) -> dict[str, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"text": "hello", "stream": True}
    async with world.client.post(
        world.url + path, json=body, headers=sent | {"x-steersman-explain": "1"}
    ) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert "x-smg-routed-worker-id" not in answer.headers
        found: dict[str, Any] = await answer.json()
        return found


async def by_port(world: Rig, query: str = "") -> dict[str, Any]:
    async with world.client.get(f"{world.app.metrics_url}/explain{query}") as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def by_command(world: Rig, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "steersman.cli",
        "explain",
        "--proxy",
        world.app.metrics_url,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out or err).decode()


def reasons(explanation: dict[str, Any]) -> dict[str, str | None]:
    return {engine["id"]: engine["reason"] for engine in explanation["engines"]}


async def test_the_header_asks_why_and_sends_nothing_to_engines(tmp_path: Path) -> None:
    async with fleet(tmp_path) as world:
        await arrange(world)
        for path in ("/generate", "/v1/chat/completions", "/v1/embeddings"):
            seen = await by_header(world, path)
            assert reasons(seen) == REASONS
            assert (seen["outcome"], seen["chosen"]) == ("select", "fine")
            assert (seen["policy"], seen["fleet_max"]) == ("latest-only", "9")
            assert all(engine["sentence"] for engine in seen["engines"])
            assert all(engine["in_flight"] == 0 for engine in seen["engines"])

        assert sum(engine.journal.count for engine in world.engines.values()) == 0
        assert all(engine.load.total == 0 for engine in world.app.fleet.engines())
        # Asking took nobody's turn and is counted as no selection.
        assert 'smg_worker_requests_total{model="sim-model"' in await world.metrics()
        assert not re.search(r"smg_worker_requests_total\{.*\} [1-9]", await world.metrics())


async def test_the_header_respects_what_else_the_request_says(tmp_path: Path) -> None:
    async with fleet(tmp_path, api_keys=("k0",)) as world:
        await arrange(world)
        key = {"authorization": "Bearer k0"}

        seen = await by_header(world, **key, x_smg_version_policy="min-version:8")
        assert reasons(seen)["stale"] is None
        seen = await by_header(world, **key, x_smg_target_worker="asleep")
        assert seen["outcome"] == "refuse"
        assert "asleep" in seen["summary"]
        seen = await by_header(world, **key, x_smg_routing_key="conversation 1")
        assert sorted(engine["rank"] for engine in seen["engines"]) == list(range(1, 9))
        assert seen["chosen"] == "fine"

        async with world.client.post(
            f"{world.url}/generate", json={}, headers={"x-steersman-explain": "1"}
        ) as answer:
            assert answer.status == 401


async def test_the_metrics_port_and_the_command_say_the_same(tmp_path: Path) -> None:
    async with fleet(tmp_path) as world:
        await arrange(world)
        seen = await by_header(world)
        assert await by_port(world) == seen
        assert await by_port(world, "?model=sim-model") == seen
        assert await by_port(world, "?pool=pool&policy=latest-only") == seen

        code, text = await by_command(world, "sim-model", "-o", "json")
        assert code == 0
        assert json.loads(text) == seen
        code, text = await by_command(world, "sim-model")
        assert code == 0
        _, _, *lines, summary = text.splitlines()
        assert summary == seen["summary"]
        for engine, line in zip(seen["engines"], lines, strict=True):
            assert line.startswith(f"{engine['id']} ")
            assert (engine["reason"] or "eligible") in line
            if engine["reason"]:
                assert engine["sentence"] in line

        loose = await by_header(world, x_smg_version_policy="any")
        _, text = await by_command(world, "--policy", "any", "-o", "json")
        assert json.loads(text) == loose
        assert reasons(loose)["stale"] is None


async def test_the_503_says_the_same(tmp_path: Path) -> None:
    hopeless = {name: row for name, row in ROWS.items() if name not in ("closed", "paused")}
    hopeless |= {name: {"control": "asleep"} for name in ("fine", "closed", "paused")}
    async with fleet(tmp_path) as world:
        await arrange(world, hopeless)
        world.file.pool["fleetMax"] = "9"
        world.file.write()
        await until(lambda: world.app.fleet.pool("pool").fleet_max == "9")

        status, headers, body = await world.generate()
        seen = await by_header(world)

        assert (status, headers["x-smg-error-code"]) == (503, "no_available_workers")
        assert seen["outcome"] == "refuse"
        assert body["error"]["message"] == seen["summary"]
        counted: dict[str, int] = {}
        for reason in reasons(seen).values():
            assert reason is not None
            counted[reason] = counted.get(reason, 0) + 1
        assert body["error"]["reasons"] == counted
        code, text = await by_command(world)
        assert code == 1
        assert text.splitlines()[-1] == seen["summary"]
        async with world.client.get(f"{world.app.metrics_url}/status") as answer:
            rows = (await answer.json())["pools"][0]["engines"]
        assert {row["id"]: (row["reason"], row["message"]) for row in rows} == {
            engine["id"]: (engine["reason"], engine["sentence"]) for engine in seen["engines"]
        }


async def test_a_request_that_would_wait_is_told_so_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "9"}, routing=LATEST) as world:
        await world.edit("e0", control="paused")
        waiting = asyncio.create_task(world.generate())
        await until(lambda: world.app.hold.depth("pool") == 1)

        seen = await by_header(world)

        assert (seen["outcome"], seen["waiting"]) == ("hold", 1)
        assert reasons(seen) == {"e0": "paused"}
        assert world.app.hold.depth("pool") == 1
        assert world.engines["e0"].journal.count == 0
        await world.edit("e0", control="active")
        await waiting


async def test_a_full_engine_is_named(tmp_path: Path) -> None:
    routing = PoolSettings(max_in_flight_per_engine=1)
    async with rig(tmp_path, {"e0": "9"}, routing=routing) as world:
        running = asyncio.create_task(world.generate(100_000))
        await until(lambda: world.engine("e0").load.requests == 1)

        seen = await by_header(world)

        assert reasons(seen) == {"e0": "full"}
        assert seen["outcome"] == "hold"
        running.cancel()
        await asyncio.wait([running])
        await world.idle()


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=nobody", 404, "model_not_found"),
        ("?pool=nobody", 404, "model_not_found"),
        ("?policy=newest", 400, "invalid_version_policy"),
    ],
)
async def test_a_question_that_makes_no_sense_is_an_error(
    tmp_path: Path, query: str, status: int, code: str
) -> None:
    async with rig(tmp_path, {"e0": "9"}) as world:
        async with world.client.get(f"{world.app.metrics_url}/explain{query}") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)
        name, _, value = query[1:].partition("=")
        arguments = [value] if name == "model" else [f"--{name}", value]
        exit_code, said = await by_command(world, *arguments)
        assert exit_code == 1
        assert said.startswith("steersman explain: ")
        assert value in said
