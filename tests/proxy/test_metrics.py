"""Metrics at real sockets: every family moves, and no client and no table makes them grow."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from steersman.settings import HoldSettings, PoolSettings
from steersman_sim.engine import EngineConfig
from tests.proxy.support import Rig, rig, running, until

pytestmark = pytest.mark.usefixtures("adapter")


class Series(NamedTuple):
    """One line of the exposition, without its value."""

    name: str
    labels: frozenset[tuple[str, str]]


async def scrape(world: Rig) -> dict[Series, float]:
    """Every series; fails on one that is there twice."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(await world.metrics()):
        for sample in family.samples:
            series = Series(sample.name, frozenset(sample.labels.items()))
            assert series not in found
            found[series] = sample.value
    return found


def total(scraped: dict[Series, float], name: str, **labels: str) -> float:
    """The sum of a name's series that have at least these labels."""
    return sum(
        value
        for series, value in scraped.items()
        if series.name == name and series.labels >= labels.items()
    )


def is_counter(series: Series) -> bool:
    return series.name.endswith(("_total", "_count", "_sum", "_bucket"))


@contextlib.asynccontextmanager
async def open_stream(world: Rig) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of ``e0`` that runs and has said something."""
    body = {
        "text": "a",
        "stream": True,
        "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": True},
    }
    headers = {"x-smg-target-worker": "e0"}
    async with world.client.post(f"{world.url}/generate", json=body, headers=headers) as answer:
        assert answer.status == 200
        await answer.content.readline()
        yield answer


# --- each family moves --------------------------------------------------------------------------------


async def one_request(world: Rig) -> None:
    assert (await world.generate())[0] == 200


async def one_stream(world: Rig) -> None:
    body = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 4}}
    async with world.client.post(f"{world.url}/generate", json=body) as answer:
        await answer.read()
    await world.idle()


async def a_new_version(world: Rig) -> None:
    await world.edit("e0", weightVersion="9")


async def a_pause(world: Rig) -> None:
    await world.edit("e0", control="paused")
    assert (await world.generate())[0] == 200


async def a_closed_gate(world: Rig) -> None:
    await world.edit("e0", gate="closed")


async def a_request_that_nobody_may_take(world: Rig) -> None:
    for name in world.engines:
        await world.edit(name, control="asleep")
    assert (await world.generate())[0] == 503


async def an_answer_of_two_versions(world: Rig) -> None:
    engine = world.engines["e0"]
    waiting = asyncio.create_task(world.generate(1000, x_smg_target_worker="e0"))
    await engine.until(lambda: engine.core.ranks[0].scheduler.generated_tokens > 5)
    for path, body in (
        ("/pause_generation", {"mode": "in_place"}),
        (
            "/update_weights_from_disk",
            {"model_path": "/w", "weight_version": "8", "flush_cache": False},
        ),
        ("/continue_generation", {}),
    ):
        async with world.client.post(engine.url + path, json=body) as answer:
            assert answer.status == 200
    _, headers, _ = await waiting
    assert headers["x-smg-mixed-version"] == "true"


async def a_version_that_changes_under_a_stream(world: Rig) -> None:
    async with open_stream(world):
        await world.edit("e0", weightVersion="9")
    await world.idle()


async def an_unknown_path(world: Rig) -> None:
    async with world.client.get(f"{world.url}/nowhere") as answer:
        assert answer.status == 404


async def a_request_with_two_readings(world: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.app.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost : proxy\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()


async def a_death(world: Rig) -> None:
    await world.engines["e0"].die()
    while world.engine("e0").healthy:
        await world.generate()


async def a_wait(world: Rig) -> None:
    for name in world.engines:
        await world.edit(name, gate="closed")
    waiting = asyncio.create_task(world.generate())
    await until(lambda: world.app.hold.depth("pool") == 1)
    for name in world.engines:
        await world.edit(name, gate="open")
    assert (await waiting)[0] == 200


async def a_bad_table(world: Rig) -> None:
    world.file.path.write_text("pools: [")
    await until(lambda: world.app.watcher is not None and world.app.watcher.error is not None)


Act = Callable[[Rig], Awaitable[None]]

MOVES: dict[str, tuple[Act, dict[str, str], float, float]] = {
    # name: what happens, labels, before, after
    "smg_rl_worker_weight_version": (a_new_version, {"worker": "e0"}, 7, 9),
    "smg_rl_worker_control_state": (a_pause, {"worker": "e0"}, 0, 1),
    "smg_rl_candidates_filtered_total": (a_pause, {"reason": "paused"}, 0, 1),
    "smg_rl_requests_unroutable_total": (a_request_that_nobody_may_take, {}, 0, 1),
    "smg_rl_mixed_version_total": (an_answer_of_two_versions, {}, 0, 1),
    "smg_rl_version_change_with_inflight_total": (
        a_version_that_changes_under_a_stream,
        {},
        0,
        1,
    ),
    "smg_router_requests_total": (one_request, {"model": "sim-model"}, 0, 1),
    "smg_router_request_duration_seconds_count": (one_request, {"endpoint": "/generate"}, 0, 1),
    "smg_router_request_errors_total": (an_unknown_path, {"error_type": "unknown_url"}, 0, 1),
    "steersman_malformed_requests_total": (
        a_request_with_two_readings,
        {"fault": "header"},
        0,
        1,
    ),
    "smg_router_ttft_seconds_count": (one_stream, {"model": "sim-model"}, 0, 1),
    "smg_worker_requests_total": (one_request, {"model": "sim-model"}, 0, 1),
    "smg_worker_health": (a_death, {"worker": "e0"}, 1, 0),
    "steersman_hold_seconds_count": (a_wait, {"pool": "pool"}, 0, 1),
    "steersman_mixed_version_total": (an_answer_of_two_versions, {"streaming": "false"}, 0, 1),
    "steersman_worker_gate_open": (a_closed_gate, {"worker": "e0"}, 1, 0),
    "steersman_pool_eligible_engines": (a_closed_gate, {"pool": "pool"}, 2, 1),
    "steersman_upstream_failures_total": (a_death, {"failure": "connect_refused"}, 0, 3),
    "steersman_table_epoch": (a_new_version, {"part": "seq"}, 1, 2),
    "steersman_table_reload_failures_total": (a_bad_table, {}, 0, 1),
}


@pytest.mark.parametrize("name", MOVES)
async def test_each_family_moves(tmp_path: Path, name: str) -> None:
    act, labels, before, after = MOVES[name]
    async with rig(tmp_path, {"e0": "7", "e1": "7"}) as world:
        urls = {name: engine.url for name, engine in world.engines.items()}
        labels = {key: urls.get(value, value) for key, value in labels.items()}
        assert total(await scrape(world), name, **labels) == before

        await act(world)
        await world.idle()

        assert total(await scrape(world), name, **labels) == after


async def test_gauges_of_what_is_under_way(tmp_path: Path) -> None:
    """Requests in flight and in the hold: up while they are there, and down again."""
    async with rig(tmp_path, {"e0": "7"}) as world:
        worker = world.engines["e0"].url
        async with open_stream(world):
            assert total(await scrape(world), "smg_worker_requests_active", worker=worker) == 1
        await world.idle()
        assert total(await scrape(world), "smg_worker_requests_active", worker=worker) == 0

        await world.edit("e0", control="paused")
        waiting = asyncio.create_task(world.generate())
        await until(lambda: world.app.hold.depth("pool") == 1)
        seen = await scrape(world)
        assert total(seen, "steersman_hold_depth", pool="pool") == 1
        assert total(seen, "steersman_hold_bytes", pool="pool") > 10
        await world.edit("e0", control="active")
        await waiting
        seen = await scrape(world)
        assert total(seen, "steersman_hold_depth", pool="pool") == 0
        assert total(seen, "steersman_hold_bytes", pool="pool") == 0


async def test_who_was_turned_away_did_not_wait(tmp_path: Path) -> None:
    routing = PoolSettings(hold=HoldSettings(max_requests=1))
    async with rig(tmp_path, {"e0": "7"}, routing=routing) as world:
        await world.edit("e0", control="paused")
        waiting = asyncio.create_task(world.generate())
        await until(lambda: world.app.hold.depth("pool") == 1)
        for _ in range(3):
            status, headers, _ = await world.generate()
            assert (status, headers["x-smg-error-code"]) == (503, "hold_full")
        await world.edit("e0", control="active")
        assert (await waiting)[0] == 200

        seen = await scrape(world)
        assert total(seen, "steersman_hold_seconds_count") == 1
        assert total(seen, "smg_router_request_errors_total", error_type="hold_full") == 3
        assert total(seen, "smg_rl_requests_unroutable_total") == 3


async def test_each_family_has_one_help_line_and_the_expected_type(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}) as world:
        await one_stream(world)
        families = {f.name: f for f in text_string_to_metric_families(await world.metrics())}

    for name in MOVES:
        family = families[name.removesuffix("_total").removesuffix("_count")]
        assert family.documentation
        kind = "counter" if name.endswith("_total") else "gauge"
        assert family.type == ("histogram" if name.endswith("_count") else kind)


async def test_a_paused_engines_gauges_are_there_and_say_so(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}) as world:
        worker = world.engines["e0"].url
        for control, state in (("active", 0), ("paused", 1), ("asleep", 2), ("active", 0)):
            await world.edit("e0", control=control)
            seen = await scrape(world)
            expected = {
                "smg_rl_worker_control_state": state,
                "smg_rl_worker_weight_version": 7,
                "smg_worker_requests_active": 0,
                "smg_worker_health": 1,
            }
            for name, value in expected.items():
                assert seen[Series(name, frozenset({("worker", worker)}))] == value


async def test_a_version_that_is_no_number_has_no_gauge(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "step-7", "e1": "8"}) as world:
        seen = await scrape(world)

        workers = [
            dict(s.labels)["worker"] for s in seen if s.name == "smg_rl_worker_weight_version"
        ]
        assert workers == [world.engines["e1"].url]


# --- bounds -------------------------------------------------------------------------------------------


async def test_field_failure_50_clients_cannot_make_series(tmp_path: Path) -> None:
    """smg#2093, kthena#1378: names chosen by clients became series, and 404s counted as success."""
    draw = random.Random(50)
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=0)) as world:
        world.file.others = [{"name": "second", "model": "second-model", "engines": []}]
        world.file.write()
        await until(lambda: world.app.fleet.pool("second") is not None)
        sent = 0

        async def strange() -> None:
            nonlocal sent
            sent += 1
            word = uuid.UUID(int=draw.getrandbits(128)).hex
            known = {"model": "sim-model", "text": "a", "sampling_params": {"max_new_tokens": 1}}
            headers = {"x-session-id": word}
            kind = draw.randrange(8)
            method, path, body = "POST", "/generate", known
            match kind:
                case 0:
                    path = f"/x/{word}"
                case 1:
                    body = known | {"model": word}
                case 2:
                    headers |= {"x-smg-version-policy": word}
                case 3:
                    headers |= {"x-smg-version-policy": f"min-version:{word}"}
                case 4:
                    headers |= {"x-smg-target-worker": word}
                case 5:
                    headers |= {"x-steersman-pool": word}
                case 6:
                    method, path = "GET", f"/v1/models/{word}"
                case _:
                    method = draw.choice(["POST", "PATCH", "PROPFIND", "M-SEARCH"])
            async with world.client.request(
                method, world.url + path, json=body, headers=headers
            ) as answer:
                await answer.read()
                assert answer.status in (200, 400, 404, 405, 501, 503)

        async def many(count: int) -> None:
            for _ in range(count // 20):
                await asyncio.gather(*(strange() for _ in range(20)))

        await many(400)
        first = await scrape(world)
        assert total(first, "smg_router_requests_total") == sent

        # Until about five seconds are over or 5,000 were sent, whichever comes first.
        deadline = asyncio.get_running_loop().time() + 5
        while sent < 5_000 and asyncio.get_running_loop().time() < deadline:
            await many(200)
        last = await scrape(world)

        assert last.keys() == first.keys()
        assert len(last) < 1_000
        assert total(last, "smg_router_requests_total") == sent
        codes = {
            label: total(last, "smg_router_request_errors_total", error_type=label)
            for label in ("unknown_url", "model_not_found", "invalid_version_policy")
        }
        assert min(codes.values()) > 0
        assert {dict(s.labels).get("model") for s in last} <= {
            None,
            "unknown",
            "sim-model",
            "second-model",
        }


async def test_field_failure_50_series_of_engines_that_left_are_gone(tmp_path: Path) -> None:
    """Each engine is replaced a hundred times, as a cluster replaces pods, with traffic on."""
    config = EngineConfig(host="0.0.0.0", speed=0)
    async with contextlib.AsyncExitStack() as stack:
        sims = await stack.enter_async_context(rig(tmp_path, {"a": "7", "b": "7"}, config=config))
        (tmp_path / "replaced").mkdir()
        ports = [engine.port for engine in sims.engines.values()]

        def rows(round_: int) -> list[dict[str, object]]:
            # Every address of 127.0.0.0/8 leads to the same two engines.
            return [
                {
                    "id": f"e{slot}-{round_}",
                    "url": f"http://127.0.{slot}.{round_ + 1}:{port}",
                    "weightVersion": "7",
                }
                for slot, port in enumerate(ports)
            ]

        world = await stack.enter_async_context(running(tmp_path / "replaced", rows(0)))
        before: dict[Series, float] = {}
        sizes = set()
        for round_ in range(100):
            world.file.rows = rows(round_)
            world.file.write()
            await world.applied()
            answers = await asyncio.gather(*(world.generate(1) for _ in range(6)))
            assert {status for status, _, _ in answers} == {200}
            seen = await scrape(world)

            known = {str(row["url"]) for row in world.file.rows}
            workers = {dict(s.labels)["worker"] for s in seen if dict(s.labels).get("worker")}
            assert workers == known
            for series, value in before.items():
                if is_counter(series) and series in seen:
                    assert value <= seen[series], series
                elif is_counter(series):
                    assert dict(series.labels)["worker"] not in known, series
            sizes.add(len(seen))
            before = seen

        # What an engine counts appears with its first request; nothing else varies.
        assert max(sizes) - min(sizes) <= 4
        assert total(before, "smg_router_requests_total", endpoint="/generate") == 600
