"""Which paths the proxy serves: what it does not pass on, and what it answers for its engines."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from steersman_sim.engine import EngineConfig, Fault, Runtime
from tests.proxy.support import Rig, rig, until

pytestmark = pytest.mark.usefixtures("adapter")


@pytest.fixture(params=[Runtime.SGLANG, Runtime.VLLM], ids=["sglang", "vllm"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    config = EngineConfig(runtime=request.param, speed=50.0)
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=config) as started:
        yield started


async def ask(
    world: Rig, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, str], Any]:
    """One request whose path goes out as it is written."""
    async with world.client.request(
        method, URL(world.url + path, encoded=True), json=body
    ) as answer:
        raw = await answer.read()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, headers, json.loads(raw) if raw else None


NOT_SERVED = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/status"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/pause"),
    ("POST", "/sleep"),
    ("POST", "/release_memory_occupation"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/update_weight_version"),
    ("POST", "/collective_rpc"),
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("GET", "/v1/rl/version"),
    ("GET", "/_sim/state"),
    ("POST", "/generate/"),
    ("POST", "//generate"),
    ("POST", "/./generate"),
    ("POST", "/generate%2f..%2fpause_generation"),
    ("POST", "/v1/../pause_generation"),
    ("POST", "/%67enerate"),
    ("GET", "/v1/models/..%2f..%2fpause_generation"),
    ("GET", "/v1/models/../../get_server_info"),
    ("GET", "/v1/models/"),
]


NOT_ALLOWED = [
    ("GET", "/generate"),
    ("DELETE", "/v1/models"),
    ("POST", "/v1/models"),
    ("GET", "/abort_request"),
    ("OPTIONS", "/generate"),
    ("PATCH", "/v1/chat/completions"),
]


def requests_of_engines(world: Rig) -> int:
    return sum(engine.journal.count for engine in world.engines.values())


async def test_what_is_not_served_reaches_no_engine(world: Rig) -> None:
    _, port = world.url.rsplit(":", 1)
    for method, path in NOT_SERVED:
        # Written by hand: every client library tidies paths.
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        head = f"{method} {path} HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{{}}".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n"), (method, path, answer)
        code = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
        assert code in ("unknown_url", "model_not_found")
        assert f"x-smg-error-code: {code}".encode() in answer

    assert requests_of_engines(world) == 0


async def test_a_known_path_with_another_method_is_405_with_the_right_ones(world: Rig) -> None:
    for method, path in NOT_ALLOWED:
        status, headers, body = await ask(world, method, path, {})
        assert (status, body["error"]["code"]) == (405, "method_not_allowed"), (method, path)
        assert method not in headers["allow"].split(", ")
        assert headers["allow"]

    assert requests_of_engines(world) == 0


async def test_an_abort_ends_the_request_on_whichever_open_engine_has_it(world: Rig) -> None:
    await world.edit("e1", gate="closed")
    body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True}
    long = asyncio.create_task(ask(world, "POST", "/v1/completions", body))
    await world.engines["e0"].until(lambda: world.engines["e0"].core.in_flight == 1)

    status, _, said = await ask(world, "POST", "/abort_request", {"rid": "", "abort_all": True})

    assert status == 200
    assert [entry["engine"] for entry in said["results"]] == ["e0"]
    assert [(e["engine"], e["reason"]) for e in said["skipped"]] == [("e1", "gate_closed")]
    _, _, cut = await long
    assert cut["choices"][0]["finish_reason"] == "abort"
    assert world.engines["e1"].journal.count == 0


async def test_a_flush_reaches_every_engine_that_is_open_and_awake(world: Rig) -> None:
    for name, changes, reason in (
        ("e1", {"gate": "closed"}, "gate_closed"),
        ("e1", {"gate": "open", "control": "asleep"}, "asleep"),
    ):
        await world.edit(name, **changes)
        for method in ("GET", "POST"):
            status, _, said = await ask(world, method, "/flush_cache")
            assert status == 200
            assert [(e["engine"], e["flushed"]) for e in said["results"]] == [("e0", True)]
            assert [(e["engine"], e["reason"]) for e in said["skipped"]] == [("e1", reason)]

    assert world.engines["e0"].journal.count == 4
    assert world.engines["e1"].journal.count == 0


async def test_loads_has_a_row_for_each_engine_that_may_be_asked(world: Rig) -> None:
    for path in ("/v1/loads", "/get_loads"):
        status, _, said = await ask(world, "GET", path)
        assert status == 200
        assert [row["engine"] for row in said["loads"]] == ["e0", "e1"]
        assert all("num_running_reqs" in row and "dp_rank" in row for row in said["loads"])
    await world.edit("e1", gate="closed")
    before = world.engines["e1"].journal.count

    _, _, said = await ask(world, "GET", "/v1/loads")

    assert [row["engine"] for row in said["loads"]] == ["e0"]
    assert [(e["engine"], e["reason"]) for e in said["skipped"]] == [("e1", "gate_closed")]
    assert world.engines["e1"].journal.count == before


async def test_info_comes_from_an_open_engine_and_names_it(world: Rig) -> None:
    await world.edit("e1", gate="closed")
    # vLLM has no /model_info; there the proxy makes it of /v1/models.
    paths = ["/server_info", "/get_server_info", "/model_info", "/get_model_info"]
    for path in paths:
        for _ in range(4):
            status, headers, said = await ask(world, "GET", path)
            assert status == 200
            assert said["weight_version"] == "7"
            assert headers["x-smg-routed-worker-id"] == world.engines["e0"].url
        status, headers, said = await ask(world, "HEAD", path)
        assert (status, said) == (200, None)
        assert int(headers["content-length"]) > 0

    assert world.engines["e1"].journal.count == 0


async def test_tokenizing_is_passed_to_an_open_engine(world: Rig) -> None:
    await world.edit("e1", gate="closed")
    spellings = [""] if world.engines["e0"].config.runtime is Runtime.VLLM else ["", "/v1"]
    for prefix in spellings:
        status, headers, said = await ask(world, "POST", f"{prefix}/tokenize", {"prompt": "a b"})
        assert status == 200
        assert headers["x-smg-routed-worker-id"] == world.engines["e0"].url
        body = {"tokens": said["tokens"]}
        status, _, said = await ask(world, "POST", f"{prefix}/detokenize", body)
        assert (status, said["prompt"]) == (200, "a b")

    assert world.engines["e1"].journal.count == 0


async def test_questions_to_engines_count_in_flight_and_end_with_their_client(world: Rig) -> None:
    path = "/v1/loads" if world.engines["e0"].config.runtime is Runtime.SGLANG else "/metrics"
    world.engines["e0"].faults.arm(path, Fault(hang=True, times=1))
    asking = asyncio.create_task(ask(world, "GET", "/v1/loads"))
    await until(lambda: world.engine("e0").load.requests == 1)

    asking.cancel()
    await asyncio.wait([asking])

    await world.idle()
    await world.engines["e0"].until(
        lambda: all(entry.disconnected for entry in world.engines["e0"].journal.of(path))
    )


@pytest.mark.parametrize("given", [None, "", "mine"])
async def test_an_engine_gets_one_request_id_and_so_does_the_client(
    world: Rig, given: str | None
) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    async with world.client.post(
        f"{world.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers
    ) as answer:
        assert answer.status == 200
        returned = answer.headers.getall("x-request-id", [])

    (entry,) = [e for engine in world.engines.values() for e in engine.journal.entries]
    sent = [value.decode() for name, value in entry.raw_headers if name.lower() == b"x-request-id"]
    if given:
        assert sent == [given]
        assert set(returned) <= {given}
    else:
        assert len(sent) == 1
        assert sent[0]
        assert returned == sent
